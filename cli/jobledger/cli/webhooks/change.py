"""`jobledger webhooks set`, `rotate` and `keygen`: choose the events of a webhook, its receiver and its secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from jobledger.admin.hooks.webhooks import KEEP_OLD_S, WebhookInfo, rotate_webhook, set_webhook
from jobledger.admin.verbs.webhooks import webhook_words
from jobledger.cli.bulk import Why
from jobledger.cli.command import CREATES, LEDGER, OFFLINE, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import WEBHOOKS
from jobledger.cli.output import Output
from jobledger.cli.pairs import pairs
from jobledger.cli.session import operator
from jobledger.cli.text import plain
from jobledger.cli.times import seconds
from jobledger.ledger.model.hooks.definition import FORMATS, PARTS, WATCH_EVENTS, WebhookTarget
from jobledger.ledger.webhooks.secrets import Secrets, make_key_file, new_secret

_KEEP_OLD_S_MAX: Final = 366 * 24 * 3600.0

Name = Annotated[str, typer.Argument(metavar="NAME", help="The webhook's name.")]
_To = Annotated[str | None, typer.Option("--to", metavar="URL", help="Post each event here.")]
_Enqueue = Annotated[
    str | None, typer.Option("--enqueue", metavar="TASK", help="Or make a job of this task for each event.")
]
_InQueue = Annotated[
    str | None,
    typer.Option("--in-queue", metavar="QUEUE", help="The queue of those jobs. (default: the task's)"),
]
_Event = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="TYPE",
        help=f"A type of event, such as completed, or {' or '.join(WATCH_EVENTS)}; may be given again.",
    ),
]
_Queue = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="Only events of jobs of this queue.")
]
_Task = Annotated[
    str | None, typer.Option("--task", metavar="TASK", help="Only events of jobs of this task.")
]
_Job = Annotated[str | None, typer.Option("--job", metavar="ID", help="Only events of jobs of this id.")]
Secret = Annotated[
    str | None,
    typer.Option(
        "--secret", metavar="REF", help="What signs: env:NAME or file:/PATH, where the gateway finds it."
    ),
]
_New = Annotated[
    bool,
    typer.Option(
        "--new-secret", metavar="", help="Make a secret, show it once, keep it sealed by --key-file."
    ),
]
_KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        envvar="JOBLEDGER_KEY_FILE",
        help="What seals secrets: `webhooks keygen`.",
    ),
]
_Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include", metavar="PART", help=f"Send this, too: {', '.join(PARTS)}; may be given again."
    ),
]
_Format = Annotated[
    str | None, typer.Option("--format", metavar="FORM", help=f"The form of a message: {', '.join(FORMATS)}.")
]
_Header = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="Send this header; VALUE may be a reference."),
]
_AllowHttp = Annotated[
    bool, typer.Option("--allow-http", metavar="", help="Let the URL be without encryption.")
]
_AllowPrivate = Annotated[
    bool,
    typer.Option(
        "--allow-private", metavar="", help="Let the URL name an address that is not of the public internet."
    ),
]
_KeepOld = Annotated[
    float,
    typer.Option(
        "--keep-old",
        metavar="SPAN",
        parser=seconds(0.0, _KEEP_OLD_S_MAX),
        help="Let the old secret sign, too, for this long.",
    ),
]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")]


@command(WEBHOOKS, "set", takes=(*LEDGER, CREATES))
async def set_(
    cli: Cli,
    *,
    name: Name,
    to: _To = None,
    enqueue: _Enqueue = None,
    in_queue: _InQueue = None,
    event: _Event = None,
    queue: _Queue = None,
    task: _Task = None,
    job: _Job = None,
    secret: Secret = None,
    new_secret: _New = False,
    key_file: _KeyFile = None,
    include: _Include = None,
    format: _Format = None,  # noqa: A002 - the option's word
    header: _Header = None,
    allow_http: _AllowHttp = False,
    allow_private: _AllowPrivate = False,
    reason: Why = "",
) -> None:
    """Make a webhook, or change one: options that are left out change nothing. It matches only later events."""
    reference, shown = chosen_secret(secret, key_file, new=new_secret)
    given: dict[str, Any] = {
        "target": _target(to, enqueue, in_queue),
        "events": None if event is None else tuple(event),
        "queue": queue,
        "task": task,
        "job": job,
        "secrets": (reference,) if reference else None,
        "include": None if include is None else tuple(include),
        "format": format,
        "headers": None if header is None else pairs(header, "--header"),
        "allow_http": allow_http or None,
        "allow_private": allow_private or None,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise UsageError("say what it is to do, such as --to URL --event completed --secret env:NAME")
    async with cli.ledger() as ledger:
        found = await set_webhook(ledger, name, changes, reason=reason, by=operator())
    tell(cli.output, found, shown)


@command(WEBHOOKS, "rotate")
async def rotate(
    cli: Cli,
    *,
    name: Name,
    secret: Secret = None,
    new_secret: _New = False,
    key_file: _KeyFile = None,
    keep_old: _KeepOld = KEEP_OLD_S,
    reason: Why = "",
) -> None:
    """Sign with another secret; receivers can still verify by the old one for the time of --keep-old."""
    reference, shown = chosen_secret(secret, key_file, new=new_secret)
    if not reference:
        raise UsageError("name the new secret with --secret REF, or have one made with --new-secret")
    async with cli.ledger() as ledger:
        found = await rotate_webhook(
            ledger, name, reference, keep_old_s=keep_old, reason=reason, by=operator()
        )
    tell(cli.output, found, shown)


@command(WEBHOOKS, "keygen", takes=OFFLINE)
def keygen(cli: Cli, *, file: _File) -> None:
    """Write a new key file, which seals secrets here and unseals them in the gateway; keep a copy."""
    try:
        make_key_file(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    if cli.output.as_json:
        cli.output.object({"key_file": str(file)})
    else:
        cli.output.say(f"{plain(str(file))} is written: start the gateway with --key-file {plain(str(file))}")


def _target(url: str | None, enqueue: str | None, in_queue: str | None) -> WebhookTarget | None:
    if url is None and enqueue is None:
        if in_queue is not None:
            raise UsageError("--in-queue is the queue of the jobs that --enqueue TASK makes: give both")
        return None
    return WebhookTarget(url=url or "", task=enqueue or "", queue=in_queue or "")


def chosen_secret(reference: str | None, key_file: Path | None, *, new: bool) -> tuple[str, str]:
    """Return the reference to the signing secret, "" for none, and a secret that was made for it, to be shown once.

    Raises: UsageError, SecretUnavailableError.
    """
    if not new:
        return reference or "", ""
    if reference is not None:
        raise UsageError("give --secret REF or --new-secret, not both")
    if key_file is None:
        raise UsageError(
            "--new-secret needs --key-file FILE to seal it; `jobledger webhooks keygen FILE` makes one"
        )
    made = new_secret()
    return Secrets(os.environ, key_file).seal(made.encode()), made


def tell(output: Output, found: WebhookInfo, secret: str = "") -> None:
    """Show a changed webhook, and a new secret, once."""
    if output.as_json:
        output.object({**msgspec.to_builtins(found), **({"secret": secret} if secret else {})})
        return
    output.say(webhook_words(found))
    until = found.definition.old_secret_until
    if until is not None and found.definition.secrets[1:]:
        output.note(f"the old secret signs, too, until {until:%Y-%m-%d %H:%M:%S}Z")
    if secret:
        output.note("give its receiver this secret; it is shown once:")
        output.say(secret)
