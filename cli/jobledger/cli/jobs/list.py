"""`jobledger jobs list`: jobs from the projection, which is brought up to date first; or their number in each state."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from jobledger.cli import options, search
from jobledger.cli.command import CHOOSES, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import JOBS
from jobledger.cli.pairs import pairs
from jobledger.cli.times import time_of
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.model.times import time_text
from jobledger.ledger.model.trace import trace_id

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
    from jobledger.cli.jobs.page import show_jobs  # noqa: PLC0415 - reads a projection, which the help does not
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
    """Return the trace id in text that a person copied from a log or a header. Raises: UsageError."""
    found = (trace_id(given) or given).lower()
    if not re.fullmatch(r"[0-9a-f]{32}", found):
        raise UsageError("--trace takes a trace id, 32 hexadecimal digits, or a whole traceparent")
    return found
