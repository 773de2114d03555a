"""`jobledger doctor`: checks of the server, the streams and the flow of work, with advice."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from rich.text import Text

from jobledger.admin.amounts import size
from jobledger.admin.checks import Check
from jobledger.admin.diagnoses import words_of
from jobledger.admin.health import Examination, Health, examine
from jobledger.admin.projection_files import PROJECTIONS, READ_MODELS
from jobledger.admin.server_pages import Monitor
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.embedded import MONITOR_ABOVE
from jobledger.cli.errors import DONE, FAILED, UsageError, exit_code
from jobledger.cli.groups import TOP
from jobledger.cli.output import Output
from jobledger.cli.session import data_folder
from jobledger.cli.text import LEVEL_STYLES, moment, plain
from jobledger.ledger.model.errors import NoDataFolderError
from jobledger.ledger.variables import variable
from jobledger.projections import ProjectionError
from jobledger.projections.unused import UNUSED_DAYS, UnusedProjection, find_unused, remove

_PORT_DEFAULT: Final = 4222


@command(TOP, "doctor", takes=ROWS)
async def doctor(
    cli: Cli,
    *,
    directory: options.Directory = Path(".jobledger"),
    monitor: Annotated[
        list[str] | None,
        typer.Option(
            "--monitor",
            metavar="URL",
            help="Monitoring page of a server; repeat it, or separate several by commas. (default: on this machine, "
            "4000 above the port of --url)",
        ),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            metavar="",
            help=f"Instead, name projections on this machine that nobody used for {UNUSED_DAYS} days.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="With --clean: remove them.")] = False,
) -> int:
    """Check server, streams, projection, clock and disk, and tell what hurts; exits with 0 if nothing failed."""
    if clean or yes:
        return _clean(cli.output, clean=clean, yes=yes)
    target = cli.target
    asked = Examination(
        url=target.url,
        environment=target.environment,
        access=target.access,
        inbox_prefix=target.settings.get("inbox_prefix") or os.environ.get(variable("inbox_prefix"), ""),
        monitors=_monitors(target.url, monitor or []),
        directory=directory,
        former_ledger=cli.former_ledger,
    )
    found = await examine(asked, cli.rows)
    _report(cli.output, found)
    _hint(cli.output)
    if found.stopped is not None:
        return exit_code(found.stopped)
    return DONE if found.is_good else FAILED


def _hint(output: Output) -> None:
    with contextlib.suppress(NoDataFolderError, OSError):  # no home folder, so no projections
        unused = len(_unused())
        if unused:
            output.note(f"{unused} projections lie unused; `jobledger doctor --clean` names them")


def _unused() -> list[UnusedProjection]:
    """Return projections and read models unused for `UNUSED_DAYS`. Raises: NoDataFolderError, OSError."""
    folders = [data_folder() / name for name in (PROJECTIONS, READ_MODELS)]
    return find_unused(folders, datetime.now(UTC) - timedelta(days=UNUSED_DAYS))


def _clean(output: Output, *, clean: bool, yes: bool) -> int:
    """List the unused projections, and remove them with --yes. Raises: UsageError, OSError."""
    if not clean:
        raise UsageError("--yes says that --clean is to remove what it names: give both")
    found = _unused()
    if yes:
        found = [each for each in found if _removed(output, each)]
    if output.as_json:
        output.object({"removed": yes, "files": [_as_object(each) for each in found]})
        return DONE
    if not found:
        output.say(f"every projection in {data_folder()} was used within {UNUSED_DAYS} days")
        return DONE
    rows = [(str(each.file), size(each.size_bytes), f"{each.used_at:%Y-%m-%d}") for each in found]
    output.table(("file~", "size>", "last used!"), rows)
    total = f"{len(found)} projections, {size(sum(each.size_bytes for each in found))}"
    advice = "nothing was removed; `jobledger doctor --clean --yes` removes them"
    output.say(f"removed: {total}" if yes else f"{total}: {advice}")
    return DONE


def _removed(output: Output, each: UnusedProjection) -> bool:
    try:
        remove(each.file)
    except ProjectionError as error:  # for example, a process has just opened it: still remove the others
        output.note(str(error))
        return False
    return True


def _as_object(each: UnusedProjection) -> dict[str, Any]:
    return {"file": str(each.file), "size_bytes": each.size_bytes, "used_at": each.used_at}


def _monitors(url: str, named: list[str]) -> tuple[Monitor, ...]:
    """Return the monitoring pages that were named, or else the pages of an embedded server."""
    pages = [each.strip() for word in named for each in word.split(",") if each.strip()]
    if pages:
        return tuple(Monitor(each if "://" in each else f"http://{each}") for each in pages)
    return tuple(_monitor_beside(each) for each in url.split(","))


def _monitor_beside(url: str) -> Monitor:
    host, port = urlsplit(url).hostname or "127.0.0.1", _port(url)
    return Monitor(f"http://{f'[{host}]' if ':' in host else host}:{port + MONITOR_ABOVE}", port)


def _port(url: str) -> int:
    try:
        return urlsplit(url.partition(",")[0]).port or _PORT_DEFAULT
    except ValueError:  # connecting to such a URL fails, too, with an error of its own
        return _PORT_DEFAULT


def _report(output: Output, found: Health) -> None:
    if output.as_json:
        output.object({"ok": found.is_good, "checks": found.checks, "diagnoses": found.diagnoses})
        return
    now = datetime.now(UTC)
    hurting = [
        Check(
            check=each.object,
            status=each.level,
            found=words_of(each, lambda at: f"since {moment(at, now)}"),
            advice=each.advice,
        )
        for each in found.diagnoses
    ]
    _tell(output, found.checks)
    _tell(output, hurting)


def _tell(output: Output, checks: list[Check]) -> None:
    width = max((len(check.check) for check in checks), default=0)
    for check in checks:
        head = Text.assemble(
            (f"{check.status:<5}", LEVEL_STYLES[check.status]), (f"{check.check:<{width}}  ", "bold")
        )
        output.hanging(head, Text(plain(check.found)))
        if check.advice:
            output.hanging(Text(" " * len(head)), Text(plain(f"-> {check.advice}")))
