"""`jobledger doctor`: is the server there, is it right, does the work flow, and what to do if not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer
from rich.text import Text

from jobledger.cli import options
from jobledger.cli.embedded import MONITOR_ABOVE
from jobledger.cli.errors import DONE, FAILED, UsageError, exit_code
from jobledger.cli.health import checks
from jobledger.cli.health.checks import Check
from jobledger.cli.output import Output
from jobledger.cli.projection.projection import projection_status
from jobledger.cli.session import Target, opened, projection_path, run
from jobledger.cli.text import plain
from jobledger.ledger import Ledger, LedgerConfig
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.model.errors import ConfigurationError, LedgerError
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.connection import open_connection, redact
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.streams import specifications
from jobledger.projections import EventGapError, ProjectionError
from jobledger.projections.agreement import refuse_lost_beginning

_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_PORT_DEFAULT: Final = 4222
#: What a list that has to read it first takes seconds for.
LAG_WARN_EVENTS: Final = 100_000
_BACK_UP: Final = "bring the store back from a back-up; `jobledger audit verify` tells what else is wrong"


def doctor(
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
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Look at server, streams, consumers, projection, clock, disk and durability; exit 0 if nothing failed."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    Names(environment)  # refuses a wrong name before anything is asked
    code = run(lambda: _doctor(output, target, directory, monitor or _monitor_beside(url), projection))
    raise typer.Exit(code)


async def _doctor(output: Output, target: Target, directory: Path, monitor: str, chosen: Path | None) -> int:
    found: list[Check] = []
    code = DONE
    try:
        complete = await _look_at_server(found, target, monitor)
        if complete:
            await _look_at_ledger(found, target, chosen)
    except ConfigurationError:
        raise
    except (LedgerError, ProjectionError) as error:
        # The sentence says what to do, after the colon.
        found.append(Check(check="ledger" if found else "server", status="fail", found=str(error)))
        code = exit_code(error) if not isinstance(error, ProjectionError) and len(found) == 1 else FAILED
    disk = checks.check_disk(directory)
    if disk is not None:
        found.append(disk)
    if code == DONE and any(check.status == "fail" for check in found):
        code = FAILED
    _report(output, found)
    return code


async def _look_at_server(found: list[Check], target: Target, monitor: str) -> bool:
    """Check all that needs no ledger, and makes none; return whether every stream of it exists and is right."""
    config = LedgerConfig(url=target.url, environment=target.environment)
    names = Names(target.environment)
    shown = ", ".join(redact(each) for each in target.url.split(","))
    connection = await open_connection(
        target.url, name="jobledger-doctor", timeout_s=config.connect_timeout_s
    )
    try:
        inbox = Inbox(connection)
        await inbox.open()
        found += await checks.check_server(connection, shown)
        found.append(await checks.check_jetstream(inbox))
        complete = True
        for spec in specifications(
            names, ledger_bytes_max=config.ledger_bytes_max, lease_s=config.lease_s, replicas=config.replicas
        ):
            check, exists = await checks.check_stream(inbox, spec)
            found.append(check)
            complete = complete and exists and check.status != "fail"
        if complete:
            found += await checks.check_consumers(inbox, names.ledger_stream)
        found.append(await checks.check_clock(inbox, names.ledger_stream))
        found.append(await checks.check_durability(monitor, _port(target.url)))
    finally:
        await connection.close()
    return complete


async def _look_at_ledger(found: list[Check], target: Target, chosen: Path | None) -> None:
    """Check what is read through the ledger: workers and projection."""
    async with opened(target) as ledger:
        live = [info for info in await ledger.leases.all() if not info.stopped]
        jobs = sum(info.running for info in live)
        advice = "" if live else "start one with `jobledger worker --app MODULE`"
        status: checks.Level = "ok" if live else "warn"
        found.append(
            Check(
                check="workers", status=status, found=f"{len(live)} live, {jobs} jobs running", advice=advice
            )
        )
        found.append(await _check_beginning(ledger))
        try:
            path = await projection_path(ledger, chosen)
        except UsageError as error:  # workers in containers need no projection, nor a home folder for one
            found.append(Check(check="projection", status="warn", found=str(error)))
            return
        found.append(await _check_projection(ledger, path))


async def _check_beginning(ledger: Ledger) -> Check:
    """Look whether what came before the ledger's first event was archived. Raises: UnreachableError."""
    head = await ledger.log.head()
    found = f"begins at stream sequence {head.first_sequence:,}, ends at {head.last_sequence:,}"
    try:
        await refuse_lost_beginning(ledger.log, 0, head)
    except EventGapError as error:
        lost = f"{error.expected:,} to {error.found - 1:,}"
        found = f"{found}, and no archive run moved {lost}: they were lost"
        return Check(check="ledger", status="fail", found=found, advice=_BACK_UP)
    return Check(check="ledger", status="ok", found=found)


async def _check_projection(ledger: Ledger, path: Path) -> Check:
    body, problem = await projection_status(ledger, path)
    if problem is not None:
        return Check(check="projection", status="fail", found=str(problem))
    if not body["exists"]:
        return Check(check="projection", status="ok", found="none yet; `jobledger jobs list` makes it")
    behind = body["lag_events"]
    if not behind:
        found = f"up to date, at stream sequence {body['position']:,}"
        return Check(check="projection", status="ok", found=found)
    found = f"at stream sequence {body['position']:,}, {behind:,} events behind"
    if behind > LAG_WARN_EVENTS:
        advice = "the next list has to read them first: let `jobledger projection run` follow the ledger"
        return Check(check="projection", status="warn", found=found, advice=advice)
    return Check(check="projection", status="ok", found=f"{found}; lists catch up by themselves")


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


def _report(output: Output, found: Sequence[Check]) -> None:
    if output.as_json:
        output.object({"ok": all(check.status != "fail" for check in found), "checks": list(found)})
        return
    width = max(len(check.check) for check in found)
    for check in found:
        head = Text.assemble(
            (f"{check.status:<5}", _STYLES[check.status]), (f"{check.check:<{width}}  ", "bold")
        )
        output.hanging(head, Text(plain(check.found)))
        if check.advice:
            output.hanging(Text(" " * len(head)), Text(plain(f"-> {check.advice}")))
