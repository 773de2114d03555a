"""`jobledger doctor`: is the server there, is it right, does the work flow, and what to do if not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer
from rich.text import Text

from jobledger.admin.health import Asked, Health, examine
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.embedded import MONITOR_ABOVE
from jobledger.cli.errors import DONE, FAILED, exit_code
from jobledger.cli.groups import TOP
from jobledger.cli.output import Output
from jobledger.cli.text import plain

_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_PORT_DEFAULT: Final = 4222


@command(TOP, "doctor", takes=ROWS)
async def doctor(
    cli: Cli,
    *,
    directory: options.Directory = Path(".jobledger"),
    monitor: Annotated[
        str | None,
        typer.Option(
            "--monitor",
            metavar="URL",
            help="Monitoring page of the server, on this machine. (default: 4000 above the port of --url)",
        ),
    ] = None,
) -> int:
    """Check server, streams, consumers, projection, clock, disk and durability; exits with 0 if nothing failed."""
    target = cli.target
    asked = Asked(
        url=target.url,
        environment=target.environment,
        access=target.access,
        monitor_url=monitor or _monitor_beside(target.url),
        port=_port(target.url),
        directory=directory,
        former_ledger=cli.former_ledger,
    )
    found = await examine(asked, cli.rows)
    _report(cli.output, found)
    if found.stopped is not None:
        return exit_code(found.stopped)
    return DONE if found.is_good else FAILED


def _monitor_beside(url: str) -> str:
    parts = urlsplit(url.partition(",")[0])
    port = _port(url) + MONITOR_ABOVE
    host = parts.hostname or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _port(url: str) -> int:
    try:
        return urlsplit(url.partition(",")[0]).port or _PORT_DEFAULT
    except ValueError:  # such a URL has no server either, and that is what gets reported
        return _PORT_DEFAULT


def _report(output: Output, found: Health) -> None:
    if output.as_json:
        output.object({"ok": found.is_good, "checks": found.checks})
        return
    width = max(len(check.check) for check in found.checks)
    for check in found.checks:
        head = Text.assemble(
            (f"{check.status:<5}", _STYLES[check.status]), (f"{check.check:<{width}}  ", "bold")
        )
        output.hanging(head, Text(plain(check.found)))
        if check.advice:
            output.hanging(Text(" " * len(head)), Text(plain(f"-> {check.advice}")))
