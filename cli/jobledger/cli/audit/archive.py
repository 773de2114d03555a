"""`jobledger audit archive`: move old events out of the ledger into exports that can be verified."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from jobledger.admin.amounts import size
from jobledger.audit.archive import ArchivePlan, Archiver, Done, Step, archive_deps
from jobledger.audit.archive.chain import open_archive
from jobledger.audit.archive.mirror import local_folder, shown
from jobledger.audit.counts import CountEverything
from jobledger.cli.audit.options import WithoutPayloads
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import ArchiveNotWrittenError, UsageError
from jobledger.cli.groups import AUDIT
from jobledger.cli.output import Output
from jobledger.cli.session import operator, run
from jobledger.cli.times import parse_time
from jobledger.ledger import Ledger
from jobledger.ledger.model.times import time_text
from jobledger.projections.early_counts import counting

#: The slow steps of an archive run, and the words shown during each.
_STEPS: Final[dict[Step, str]] = {
    "export": "writing the export",
    "copy": "copying large values",
    "check": "checking the events to move",
    "send": "sending the export",
    "carry": "copying unfinished jobs forward",
    "count": "counting the events to move",
}


def _named(text: str) -> Path:
    """Read --to; refuse an empty one, as from an unset variable: it would mean the current folder."""
    if not text.strip():
        raise UsageError("--to is empty: name the folder of the archive")
    try:
        path = local_folder(text)
        is_file = path.exists() and not path.is_dir()
    except OSError as error:
        raise UsageError(f"--to {text}: {error.strerror}") from error
    if is_file:
        raise UsageError(f"--to {path}: this is a file, and an archive is a folder")
    return path


@command(AUDIT, "archive", takes=ROWS)
def archive(
    cli: Cli,
    *,
    before: Annotated[
        str,
        typer.Option("--before", metavar="TIME", help="Move events that were stored before this time (UTC)."),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="DIR",
            parser=_named,
            help="Folder of the archive, always the same, made if missing; or a URI, such as s3://bucket/ledger.",
        ),
    ],
    plan: Annotated[
        bool, typer.Option("--plan", metavar="", help="Show what would happen, and change nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            metavar="",
            help="Archive even if subscribers would miss events, or the events are not sound.",
        ),
    ] = False,
    without_payloads: WithoutPayloads = False,
) -> None:
    """Move the ledger's oldest events into DIR: finished jobs are moved out, unfinished ones are copied forward.

    The next run finishes one that was interrupted. Without this command nothing is ever deleted.
    """
    output, moment = cli.output, parse_time("--before", before)

    async def do() -> ArchivePlan | Done:
        async with cli.ledger() as ledger:
            with output.steps(_STEPS) as progress:
                deps = archive_deps(
                    ledger,
                    by=operator(),
                    on_progress=progress,
                    count=await _count(cli, ledger, folder),
                    with_payloads=not without_payloads,
                )
                archiver = Archiver(ledger.log, folder, deps)
                return await (archiver.plan(moment) if plan else archiver.run(moment, force=force))

    with _explained(output, folder):
        outcome = run(do)
    _tell(output, outcome, moment)


def _tell(output: Output, outcome: ArchivePlan | Done, before: datetime) -> None:
    if output.as_json:
        output.object(outcome if isinstance(outcome, ArchivePlan) else _object(outcome))
    elif isinstance(outcome, ArchivePlan):
        _tell_plan(output, outcome, before)
    else:
        _tell_done(output, outcome, before)


@contextmanager
def _explained(output: Output, folder: Path) -> Generator[None, None, None]:
    """Say that nothing is lost, when an interrupt or a write error ends the run.

    Raises: ArchiveNotWrittenError.
    """
    try:
        yield
    except KeyboardInterrupt:
        output.note("interrupted: nothing is lost; run the command again to resume")
        raise
    except OSError as error:
        where = error.filename or shown(folder)
        reason = error.strerror or str(error)
        raise ArchiveNotWrittenError(
            f"the archive cannot be written, {where}: {reason}; nothing is lost: fix that and run the command again"
        ) from error


async def _count(cli: Cli, ledger: Ledger, folder: Path) -> CountEverything:
    """Return the function that counts the events to move: by the projection, else by the archive."""
    path = await cli.rows(ledger).path()
    return counting(ledger.log, path, past=lambda: open_archive(ledger.log, folder))


def _object(done: Done) -> dict[str, object]:
    return {**msgspec.structs.asdict(done), "exports": [shown(export) for export in done.exports]}


def _nothing(before: datetime, first_sequence: int) -> str:
    since = f"the ledger begins at stream sequence {first_sequence:,}"
    return f"nothing to archive that was stored before {time_text(before)}: {since}"


def _tell_plan(output: Output, plan: ArchivePlan, before: datetime) -> None:
    if plan.unfinished:
        output.say(f"an earlier run, up to stream sequence {plan.unfinished:,}, is finished first")
    if not plan.events:
        output.say(_nothing(before, plan.first_sequence))
    else:
        output.facts(
            [
                ("moves", f"stream sequence {plan.first_sequence:,} to {plan.through_sequence:,}"),
                ("events", f"{plan.events:,} ({size(plan.bytes)})"),
                ("stored until", time_text(plan.stored_until) if plan.stored_until is not None else None),
                ("finished jobs", plan.jobs_archived),
                ("jobs copied forward", f"{plan.jobs_carried:,}, {plan.work_items:,} with a fresh work item"),
            ]
        )
    for each in plan.unread:
        who = (
            "no worker has dealt with" if each.is_ours else f"subscriber {each.consumer} has not acknowledged"
        )
        output.say(f"{who} stream sequence {each.sequence:,}: the run would be refused")
    _tell_bound(output, plan.held_back_by)
    output.say("nothing was changed")


def _tell_done(output: Output, done: Done, before: datetime) -> None:
    if not done.exports:
        output.say(_nothing(before, done.first_sequence))
    else:
        moved = "1 event was" if done.events == 1 else f"{done.events:,} events were"
        output.say(f"{moved} moved from the ledger to the archive", style="bold green")
        output.facts(
            [
                ("the ledger begins at", done.first_sequence),
                ("finished jobs", done.jobs_archived),
                ("jobs copied forward", done.jobs_carried),
                *(("export", shown(export)) for export in done.exports),
            ]
        )
    _tell_bound(output, done.held_back_by)


def _tell_bound(output: Output, held_back_by: str) -> None:
    if held_back_by:
        output.say(f"held back by {held_back_by}: that event must stay, and so must every later one")
