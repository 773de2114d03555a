"""`jobledger jobs list`: jobs from the projection, brought up to date first; or how many there are in each state."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
import typer

from jobledger.admin.lists.jobs import CountedJobs, JobPage, count_jobs, list_jobs
from jobledger.admin.lists.search import unknown_values
from jobledger.admin.past import AsOf
from jobledger.admin.rows import View
from jobledger.cli import options, search
from jobledger.cli.command import CHOOSES, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import JOBS
from jobledger.cli.output import Output
from jobledger.cli.pairs import pairs
from jobledger.cli.past import asked, option_words, rows_begin, viewed
from jobledger.cli.text import age, colored, shortened
from jobledger.cli.times import time_of
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.model.times import shown_time, time_text
from jobledger.ledger.model.trace import trace_id
from jobledger.projections import JobFilter, JobRow, SearchLimits
from jobledger.projections.search import read_words

# A page of jobs, or how many there are in each state, as `jobledger jobs list` shows them

_LIMITS: Final = SearchLimits(seconds_max=2.0)  #: a command delays only the person who typed it


async def show_jobs(
    cli: Cli,
    given: JobFilter,
    sought: str,
    *,
    limit: int,
    after: str | None,
    counts: bool,
    at: str | None,
    sequence: int | None,
) -> None:
    """Show the jobs that options and a search choose. Raises: UsageError, and as `list_jobs`."""
    past = asked(at, sequence)
    async with viewed(cli, past) as view:
        chosen = given.both(search.parsed(sought, view.now)) if sought else given
        if counts:
            _show_counts(cli.output, await count_jobs(view, chosen, limits=_LIMITS))
            return
        page = await list_jobs(view, chosen, cursor=after, limit=limit, limits=_LIMITS)
        unknown = [] if page.items else unknown_values(read_words(sought), view.store)
    words = list(_words(cli, sought, given, past, limit))
    _show(cli, page, view, words, is_bare=past is None and chosen == JobFilter(members=given.members))
    if not cli.output.as_json:
        for sentence in unknown:
            cli.output.note(sentence)


def _show(cli: Cli, page: JobPage, view: View, words: Sequence[str], *, is_bare: bool) -> None:
    """Show a page. `words`: the command that lists these jobs; `is_bare`: no option or search narrows the choice."""
    output = cli.output
    if output.as_json:
        for row in page.items:
            output.object({**msgspec.structs.asdict(row), **rows_begin(view)})
    elif page.items:
        output.table(("id!", "queue", "task", "status!", "age>"), [_row(row, view.now) for row in page.items])
    elif page.next is None:
        said = "no jobs; add one with `jobledger enqueue`" if is_bare else "no jobs"
        output.say(
            said if is_bare or "--members" in words else f"{said}; children of runs are listed with --members"
        )
    if page.searched_back_to is not None:
        output.note(f"{_searched(page.searched_back_to)}, and older jobs may fit, too")
    if page.next is not None:
        output.note(f"the next page: `{' '.join(words)} --after {page.next}`")


def _show_counts(output: Output, found: CountedJobs) -> None:
    if output.as_json:
        output.object(found)
        return
    counts = [(colored(state), count) for state, count in found.by_state.items() if count]
    if counts:
        output.table(("status!", "jobs>"), counts)
    else:
        output.say("no jobs")
    if found.searched_back_to is not None:
        output.note(f"{_searched(found.searched_back_to)}: older ones are not counted")


def _searched(back_to: str) -> str:
    return f"only jobs since {shown_time(datetime.fromisoformat(back_to))} were looked at"


def _words(cli: Cli, sought: str, chosen: JobFilter, past: AsOf | None, limit: int) -> Iterator[str]:
    """Yield the command that lists these jobs, as it is typed: the search, and what the options chose."""
    yield "jobledger jobs list"
    if sought:
        yield shlex.quote(sought)
    said = chosen.said
    repeated = {
        "state": chosen.states,
        "input": [f"{field}={value}" for field, value in chosen.input],
        "metadata": [f"{key}={value}" for key, value in said.metadata],
        "fingerprint": chosen.fingerprints,
    }
    single = {
        **{name: getattr(chosen, name) for name in ("queue", "task", "since", "until", "batch")},
        **{name: getattr(chosen, name) for name in ("id_prefix", "error_type", "text")},
        **{name: getattr(said, name) for name in said.__struct_fields__ if name != "metadata"},
        "trace": chosen.trace_id,
    }
    repeated |= {name: [value] for name, value in single.items() if value is not None}
    for name, values in repeated.items():
        for value in values:
            yield f"--{name.replace('_', '-')} {shlex.quote(value)}"
    yield from cli.place_words()
    if chosen.members:
        yield "--members"
    if past is not None:
        yield option_words(past)
    yield f"--limit {limit}"


def _row(row: JobRow, now: datetime) -> tuple[Any, ...]:
    created = datetime.fromisoformat(row.created_at)
    return (
        shortened(row.id, 36),
        shortened(row.queue, 64),
        shortened(row.task, 64),
        colored(row.status),
        age(created, now).removesuffix(" ago"),
    )


_States = Annotated[
    list[JobState] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help=f"Only jobs in this state; repeat it for more: {', '.join(JobState)}.",
    ),
]
_Task = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only jobs of this task.")]
_Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only jobs created at this time (UTC) or later."),
]
_Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only jobs created before this time (UTC).")
]
_Trace = Annotated[
    str | None,
    typer.Option(
        "--trace", metavar="ID", help="Only jobs of this trace: its id, or a traceparent that holds it."
    ),
]
_Batch = Annotated[str | None, typer.Option("--batch", metavar="ID", help="Only jobs of this batch.")]
_IdPrefix = Annotated[
    str | None, typer.Option("--id-prefix", metavar="ID", help="Only jobs whose id begins so.")
]
_Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="FIELD=VALUE",
        help="Only jobs whose input has this value: user=7, or /user/name=Ada with a JSON pointer. Repeat it for more.",
    ),
]
_ErrorType = Annotated[
    str | None,
    typer.Option("--error-type", metavar="TYPE", help="Only jobs whose newest failure is of this type."),
]
_Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint", metavar="HEX", help="Only dead letters with this fingerprint, or a prefix of it."
    ),
]
_Text = Annotated[
    str | None,
    typer.Option(
        "--text", metavar="TEXT", help="Only jobs with this text in input, result, error or metadata."
    ),
]
_Members = Annotated[bool, typer.Option("--members", metavar="", help="The children of runs, too.")]
_Counts = Annotated[
    bool, typer.Option("--counts", metavar="", help="How many jobs are in each state, and no list.")
]


@command(JOBS, "list", takes=CHOOSES)
async def list_command(
    cli: Cli,
    *,
    query: search.Query = None,
    state: _States = None,
    queue: options.Queue = None,
    task: _Task = None,
    since: _Since = None,
    until: _Until = None,
    trace: _Trace = None,
    batch: _Batch = None,
    id_prefix: _IdPrefix = None,
    input_: _Input = None,
    error_type: _ErrorType = None,
    fingerprint: _Fingerprint = None,
    text: _Text = None,
    members: _Members = False,
    limit: options.Limit = 50,
    after: options.After = None,
    counts: _Counts = False,
    at: options.At = None,
    sequence: options.Sequence = None,
) -> None:
    """List jobs, the newest first, as the ledger has them at this moment or had them at a past one."""
    from jobledger.cli.jobs.list import show_jobs  # noqa: PLC0415 - reads a projection, which the help does not
    from jobledger.projections import JobFilter  # noqa: PLC0415

    sought = search.search_of(query)
    if queue is not None:
        check_token("queue", queue)
    begin, end = time_of("--since", since), time_of("--until", until)
    given = JobFilter(
        states=tuple(each.value for each in state or ()),
        queue=queue,
        task=task,
        since=time_text(begin) if begin is not None else None,
        until=time_text(end) if end is not None else None,
        said=cli.said,
        trace_id=_trace_id(trace) if trace is not None else None,
        batch=batch,
        id_prefix=id_prefix,
        input=tuple(pairs(input_ or [], "--input").items()),
        error_type=error_type,
        fingerprints=() if fingerprint is None else (fingerprint,),
        text=text,
        members=members,
    )
    await show_jobs(cli, given, sought, limit=limit, after=after, counts=counts, at=at, sequence=sequence)


def _trace_id(given: str) -> str:
    """Return the trace id of what a person has copied from a log or a header. Raises: UsageError."""
    found = (trace_id(given) or given).lower()
    if not re.fullmatch(r"[0-9a-f]{32}", found):
        raise UsageError("--trace takes a trace id, 32 hexadecimal digits, or a whole traceparent")
    return found
