"""Options that name server and environment: every command that connects has them, and `jobledger --help` lists them.

They are declared apart from the other shared options, since `--help` must not load modules that connect.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Final

import typer

from jobledger.ledger.variables import variable

SERVER: Final = "Server"  #: a panel of --help


def no_secret(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """Refuse a password on the command line, where `ps` shows it to every user of the machine.

    Raises: UsageError.
    """
    name = str(parameter.name)
    if value is None or not is_typed(context, name):
        return value
    from jobledger.cli.errors import UsageError  # noqa: PLC0415 - the list of all commands connects to nothing
    from jobledger.ledger.nats.access import named  # noqa: PLC0415
    from jobledger.ledger.nats.addresses import holds_secret  # noqa: PLC0415

    if name != "url":
        how = f"set {variable(name)}, or name a file with --{name}-file"
        raise UsageError(f"--{name} on the command line can be read by every user of this machine: {how}")
    if holds_secret(value):
        raise UsageError(
            "--url with a password or token can be read by every user of this machine: "
            f"set JOBLEDGER_URL instead, or leave it out of --url and give {named('password_file')}, "
            f"{named('token_file')} or {variable('password')}"
        )
    return value


def is_typed(context: typer.Context, name: str) -> bool:
    """Return whether a parameter is on the command line; if not, a variable may have set it."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _option(name: str, metavar: str, told: str, *, is_secret: bool = False) -> Any:
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        envvar=variable(name),
        metavar=metavar,
        help=told,
        show_envvar=False,  # the help of all commands explains the names once
        hidden=is_secret,
        callback=no_secret if is_secret or name == "url" else None,
        rich_help_panel=SERVER,
    )
    return Annotated[str | None, option]


#: Options for the address of a server: parameter -> option.
PLACE: Final[dict[str, Any]] = {
    "url": _option(
        "url",
        "URL",
        "Server to use; several, separated by commas, for a cluster. (default: nats://127.0.0.1:4222)",
    ),
    "context": _option(
        "context",
        "NAME",
        "In the place of --url and credentials: a context of the `nats` command, which names them.",
    ),
    "environment": _option(
        "environment",
        "NAME",
        "Prefix of streams and subjects, so that several environments share a server.",
    ),
}
#: Credentials and TLS: arguments of `connect`.
ACCESS: Final[dict[str, Any]] = {
    "creds": _option("creds", "FILE", "Credentials file: JWT and seed."),
    "nkey": _option("nkey", "FILE", "File with the seed of an nkey."),
    "user": _option("user", "NAME", "User; the password comes by --password-file or JOBLEDGER_PASSWORD."),
    "password": _option("password", "WORD", "Only by its variable.", is_secret=True),
    "password_file": _option("password_file", "FILE", "File whose first line is the password."),
    "token": _option("token", "WORD", "Only by its variable.", is_secret=True),
    "token_file": _option("token_file", "FILE", "File whose first line is the token."),
    "tls_ca": _option(
        "tls_ca", "FILE", "Who signs the servers' certificates, in PEM. (default: the system's)"
    ),
    "tls_cert": _option("tls_cert", "FILE", "The client's own certificate, in PEM."),
    "tls_key": _option("tls_key", "FILE", "Its key, in PEM. (default: in the same file)"),
}
#: All options of the server.
SERVER_OPTIONS: Final[dict[str, Any]] = {**PLACE, **ACCESS}
_FLAGS: Final = frozenset(f"--{name.replace('_', '-')}" for name in SERVER_OPTIONS)


def in_one_line(names: Collection[str]) -> str:
    """Return the line that the help of a command shows in place of these options."""
    places = ", ".join(f"--{each}" for each in PLACE if each in names)
    return f"{places}, credentials and TLS: see `jobledger --help`."


def leading(words: list[str]) -> int:
    """Return how many first words of a command line are options of the server and their values."""
    count = 0
    while count < len(words) and words[count].partition("=")[0] in _FLAGS:
        count += 1 if "=" in words[count] else 2
    return min(count, len(words))
