"""`jobledger audit`: prove that the ledger is sound, tell a job's story, list what people did to jobs."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from jobledger.cli import options
from jobledger.cli.errors import LedgerNotSoundError, UsageError
from jobledger.cli.events import parse_time
from jobledger.cli.jobs import JobId, find_job
from jobledger.cli.output import Output
from jobledger.cli.session import Target, opened, run
from jobledger.cli.text import clock_time, colored, plain
from jobledger.ledger.acts import Act, acts
from jobledger.ledger.audit import Report
from jobledger.ledger.audit import verify as check
from jobledger.ledger.audit_file import read_report, write_report
from jobledger.ledger.codec import Stored
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.story import Line, Story, story
from jobledger.ledger.story_words import span

app = typer.Typer(
    help="Prove the ledger sound, tell what happened to a job, list what people did.", no_args_is_help=True
)

_LIMIT_MAX: Final = 100_000
_SEQUENCE_MAX: Final = 2**63 - 1


@app.command("verify")
def verify(
    *,
    first: Annotated[
        int | None,
        typer.Option("--from", min=1, max=_SEQUENCE_MAX, metavar="SEQ", help="Stream sequence to begin at."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            max=_SEQUENCE_MAX,
            metavar="SEQ",
            help="Stream sequence to end at. (default: the head)",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Earlier report, which the ledger must continue."),
    ] = None,
    kept: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Keep the report in this file, as JSON.")
    ] = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Read every event and prove that the ledger is sound; exits with 4 and names the first violation if not."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    before = read_report(against) if against is not None else None
    begin = first if first is not None else 1 if before is None else before.from_sequence
    _check_range(begin, last, before)
    if kept is not None and not kept.absolute().parent.is_dir():
        raise UsageError(f"--report {kept}: there is no folder {kept.absolute().parent}")
    report = run(lambda: _verify(output, target, begin, last, before))
    if output.as_json:
        output.object(report)
    else:
        _show_report(output, report)
    if kept is not None:
        _keep(output, report, kept, against)
    if not report.sound:
        raise LedgerNotSoundError(_first_violation(report))


def _check_range(begin: int, last: int | None, before: Report | None) -> None:
    if last is not None and last < begin:
        raise UsageError(f"--to {last} comes before --from {begin}")
    if before is None:
        return
    if begin != before.from_sequence:
        raise UsageError(
            f"--from {begin}: the earlier report begins at {before.from_sequence}, so must this check"
        )
    if last is not None and last < before.head_sequence:
        raise UsageError(
            f"--to {last}: the earlier report goes up to {before.head_sequence}, so must this check"
        )


async def _verify(
    output: Output, target: Target, begin: int, last: int | None, before: Report | None
) -> Report:
    async with opened(target) as ledger:
        with output.progress("checking the ledger") as progress:
            return await check(
                ledger.log, from_sequence=begin, to_sequence=last, before=before, on_progress=progress
            )


def _show_report(output: Output, report: Report) -> None:
    verdict, *rest = report.text().splitlines()
    output.say(verdict, style="bold green" if report.sound else "bold red")
    for line in rest:
        output.say(line)
    # Whole, so that they can be written down and compared.
    output.facts(
        [
            ("head", f"{report.head_sequence:,}" if report.events else "none: no event was there to check"),
            ("hash", report.head_hash or None),
            ("digest", report.digest),
        ]
    )


def _keep(output: Output, report: Report, path: Path, against: Path | None) -> None:
    """Write the report, unless it would take the place of the very one that the ledger does not continue."""
    if not report.sound and against is not None and path.resolve() == against.resolve():
        output.note(
            f"{path} is left as it was: what is wrong now must not become what the next check expects"
        )
        return
    try:
        write_report(report, path)
    except OSError as error:
        if report.sound:
            raise
        output.note(f"{path} cannot be written: {error.strerror}")  # what was found is what must be told
    else:
        output.note(f"the report is kept in {path}")


def _first_violation(report: Report) -> str:
    first = report.violations[0]
    about = f" of {first.job}" if first.job else ""
    place = f" at stream sequence {first.stream_sequence}" if first.stream_sequence else ""
    more = report.violations_count - 1
    rest = f" (and {more:,} more)" if more else ""
    return f"the ledger is not sound: rule `{first.rule}` is broken{place}{about}: {first.sentence}{rest}"


@app.command("trail")
def trail(
    *,
    job_id: JobId,
    queue: options.Queue = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Tell one job as a story: who did what and when, what it waited for and how long, which error."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _trail(output, target, projection, job_id, queue))


async def _trail(output: Output, target: Target, chosen: Path | None, job_id: str, queue: str | None) -> None:
    async with opened(target) as ledger:
        handle = await find_job(ledger, output, chosen, job_id, queue)
        history = await handle.history()
        now = ledger.clock.now()
    show_story(output, history, now)


def show_story(output: Output, history: Sequence[Stored], now: datetime) -> None:
    """Print the story of a job's events."""
    told, event = story(history, now=now), history[0].event
    if output.as_json:
        output.object(_story_object({"id": event.job, "queue": event.queue, "task": event.task}, told))
        return
    output.say(f"job {event.job}", style="bold")
    output.say(f"task {event.task} in queue {event.queue}; times are the server's, UTC", style="dim")
    _show_lines(output, told)


def _story_object(names: dict[str, Any], told: Story) -> dict[str, Any]:
    lines = [{**msgspec.structs.asdict(line), "text": line.text()} for line in told.lines]
    summary = {**msgspec.structs.asdict(told.summary), "text": told.summary.text()}
    return {**names, "lines": lines, "summary": summary}


def _show_lines(output: Output, told: Story) -> None:
    day = ""
    for line in told.lines:
        date = f"{line.at:%Y-%m-%d}"
        if date != day:
            output.say()
            output.say(date, style="dim")
            day = date
        output.hanging(_line_head(line), Text(plain(line.text())))
    output.say()
    output.say(told.summary.text(), style="bold")


def _line_head(line: Line) -> Text:
    since = "" if line.since_s is None else f"+{span(line.since_s)}"
    return Text(f"{line.stream_sequence:>6} {clock_time(line.at)} {since:>11}  ", style="dim")


@app.command("who")
def who(
    *,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Only what this operator or program did.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only since this time (UTC).")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=_LIMIT_MAX, metavar="N", help="At most this many.")
    ] = 50,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """List what people did to jobs, the newest first: cancel, retry, requeue and discard, with actor and reason."""
    begin = parse_time("--since", since) if since is not None else None
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _who(output, target, by, begin, limit))


async def _who(output: Output, target: Target, by: str | None, since: datetime | None, limit: int) -> None:
    newest: deque[Act] = deque(maxlen=limit)
    count = 0
    async with opened(target) as ledger:
        with output.progress("reading the ledger") as progress:
            found = acts(ledger.log, by=by, since=since, on_progress=progress)
            async with contextlib.aclosing(found):
                async for act in found:
                    newest.append(act)
                    count += 1
    for act in reversed(newest):
        if output.as_json:
            output.object(msgspec.structs.asdict(act))
        else:
            _show_act(output, act)
    if not count:
        output.say("nobody did anything to a job" if by is None and since is None else "no acts fit")
    elif count > limit:
        output.note(f"the newest {limit:,} of {count:,} are shown; --limit shows more")


def _show_act(output: Output, act: Act) -> None:
    head = Text(f"{act.at:%Y-%m-%d %H:%M:%S} ", style="dim")
    head.append_text(colored(act.act))
    head.pad_right(max(0, _ACT_WIDTH - len(act.act)))
    edited = ", with a new input" if act.new_input else ""
    reason = f": {act.reason}" if act.reason else ""
    output.hanging(head, Text(plain(f"{act.queue}/{act.job} by {act.by}{edited}{reason}")))


_ACT_WIDTH: Final = len("requeue  ")
