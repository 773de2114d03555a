"""`jobledger audit diff`: what changed between two moments, and whether two ledgers share a past."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from jobledger.admin.archived import with_archive
from jobledger.audit.diff import Difference, JobChange, Side, compare
from jobledger.audit.export import ExportLog, Selection
from jobledger.cli import options
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import PastsDifferError, UsageError
from jobledger.cli.groups import AUDIT
from jobledger.cli.output import Output
from jobledger.cli.text import colored
from jobledger.cli.times import parse_time
from jobledger.ledger.model.log import Log
from jobledger.projections.errors import MomentArchivedError
from jobledger.projections.moments import moment_of, refuse_archived

_LIMIT_MAX: Final = 100_000
_HEAD: Final = "head"
_DIGITS_MAX: Final = 18
_MOMENT: Final = "A stream sequence, a time (UTC), an export's folder, or head."
_NEW, _GONE = "new", "gone"  #: in place of a state: the job did not exist before, or does not exist after
_NO_TIME: Final = "a stream sequence, the folder of an export, head, or "

Moment = Annotated[str, typer.Argument(metavar="MOMENT", help=_MOMENT)]


@command(AUDIT, "diff")
async def diff(
    cli: Cli,
    *,
    before: Moment,
    after: Moment,
    limit: Annotated[
        int, typer.Option("--limit", min=0, max=_LIMIT_MAX, metavar="N", help="List at most this many jobs.")
    ] = 20,
    archives: options.Archives = None,
) -> None:
    """List the jobs that changed between two moments; exits with 4 if the two do not share a past."""
    found = await _diff(cli, before, after, archives or ())
    if cli.output.as_json:
        cli.output.object(_as_object(found, limit))
    else:
        _show(cli.output, found, limit)
    if not found.shares_past:
        raise PastsDifferError(
            f"the two differ from stream sequence {found.first_difference} on: {found.sentence}"
        )


async def _diff(cli: Cli, before: str, after: str, archives: Sequence[Path]) -> Difference:
    exports = [_export(word) for word in (before, after)]
    if archives and None not in exports:
        raise UsageError("--archive goes with moments of the ledger, and both that were given are exports")
    async with AsyncExitStack() as stack:
        live: Log | None = None
        if None in exports:
            ledger = await stack.enter_async_context(cli.ledger())
            live = await with_archive(ledger.log, archives)
        try:
            one, other = [
                await _side(export, live, word) for export, word in zip(exports, (before, after), strict=True)
            ]
        except MomentArchivedError as error:
            hint = f"`jobledger audit diff {shlex.join((before, after))} --archive DIR` reads that as well"
            raise MomentArchivedError(error.what, error.to, error.hint or hint) from error
        if one.log is other.log and one.last_sequence > other.last_sequence:
            raise UsageError(f"{before} comes after {after}: give the earlier moment first")
        with cli.output.progress("comparing") as progress:
            return await compare(one, other, subject=_subject(one, other), on_progress=progress)


def _export(word: str) -> ExportLog | None:
    """Return the export that a word names, None when it is a moment of the live ledger."""
    if word == _HEAD or word.isdecimal() or not Path(word).exists():
        return None
    return ExportLog(Path(word))


async def _side(export: ExportLog | None, live: Log | None, word: str) -> Side:
    log: Log | None = live if export is None else export
    assert log is not None, "a ledger is opened when a moment of it is asked for"
    head = await log.head()
    last = head.last_sequence
    if export is None and word != _HEAD:
        last = await _moment(log, word)
    return Side(log=log, first_sequence=max(1, head.first_sequence), last_sequence=last)


async def _moment(live: Log, word: str) -> int:
    """Return the stream sequence of a moment of the ledger.

    Raises: UsageError, MomentAheadError, MomentArchivedError if the ledger no longer has the jobs of that moment.
    """
    if word.isascii() and word.isdecimal() and len(word) <= _DIGITS_MAX:
        last = (await moment_of(live, stream_sequence=int(word))).stream_sequence
    else:
        last = (await moment_of(live, at=parse_time("MOMENT", word, _NO_TIME))).stream_sequence
    await refuse_archived(live, last)
    return last


def _subject(one: Side, other: Side) -> str | None:
    """Return the subject to read both sides by: an export of a selection is compared with the same selection.

    Raises: UsageError for two selections or two environments.
    """
    selections = {side.log.manifest.selection for side in (one, other) if isinstance(side.log, ExportLog)} - {
        Selection()
    }
    if len(selections) > 1:
        raise UsageError("the two exports hold different selections: they cannot be compared")
    if one.log.names.environment != other.log.names.environment:
        raise UsageError(
            f"the two are of environments {one.log.names.environment!r} and {other.log.names.environment!r}"
        )
    return selections.pop().subject(one.log.names) if selections else None


def _as_object(found: Difference, limit: int) -> dict[str, object]:
    answer = msgspec.structs.asdict(found)
    answer["shares_past"] = found.shares_past
    answer["jobs_changed"] = len(found.jobs)
    answer["jobs"] = found.jobs[:limit]
    return answer


def _show(output: Output, found: Difference, limit: int) -> None:
    jobs = "1 job" if len(found.jobs) == 1 else f"{len(found.jobs):,} jobs"
    new = sum(change.before is None for change in found.jobs)
    counts = f"{_counted(found.events_added, 'event')}, {_counted(found.attempts_added, 'attempt')}"
    output.say(
        f"{jobs} changed from stream sequence {found.before_sequence:,} to {found.after_sequence:,}: "
        f"{new:,} new, {counts}",
        style="bold",
    )
    if found.first_difference:
        output.say(f"the two differ from stream sequence {found.first_difference:,} on", style="bold red")
    if not found.jobs:
        return
    output.table(
        ["queue", "from", "to", "jobs>"],
        ([each.queue, each.before or _NEW, each.after or _GONE, each.jobs] for each in found.transitions),
    )
    if not limit:
        return
    output.say()
    for each in found.jobs[:limit]:
        output.line(_line(each))
    if len(found.jobs) > limit:
        output.note(f"{limit:,} of {len(found.jobs):,} jobs are listed; --limit lists more")


def _line(change: JobChange) -> Text:
    line = Text(f"{change.queue}/{change.id}  ")
    line.append_text(colored(change.before or _NEW)).append(" -> ").append_text(
        colored(change.after or _GONE)
    )
    return line.append(
        f"  {_counted(change.events_added, 'event')}, {_counted(change.attempts_added, 'attempt')}", "dim"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:+,} {noun}" if abs(number) == 1 else f"{number:+,} {noun}s"
