"""`jobledger jobs list`: jobs from the projection, brought up to date first."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.command import CHOOSES, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import JOBS
from jobledger.cli.past import asked, rows_begin, viewed
from jobledger.cli.text import age, colored, shortened
from jobledger.cli.times import time_of
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.model.times import time_text
from jobledger.ledger.model.trace import trace_id
from jobledger.projections import JobRow


@command(JOBS, "list", takes=CHOOSES)
async def list_jobs(
    cli: Cli,
    *,
    state: options.State = None,
    queue: options.Queue = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Only jobs of this task.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only jobs created at this time (UTC) or later."),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace", metavar="ID", help="Only jobs of this trace: its id, or a traceparent that holds it."
        ),
    ] = None,
    members: Annotated[
        bool, typer.Option("--members", metavar="", help="The children of runs, too.")
    ] = False,
    limit: options.Limit = 50,
    at: options.At = None,
    sequence: options.Sequence = None,
) -> None:
    """List jobs, the newest first, as the ledger has them at this moment or had them at a past one."""
    if queue is not None:
        check_token("queue", queue)
    begin = time_of("--since", since)
    filters: dict[str, Any] = {
        "state": state,
        "queue": queue,
        "task": task,
        "trace_id": _trace_id(trace) if trace is not None else None,
        "since": time_text(begin) if begin is not None else None,
        "said": cli.said,
        "members": members,
    }
    past, output = asked(at, sequence), cli.output
    async with viewed(cli, past) as view:
        found = view.store.jobs(limit, **filters)
    if output.as_json:
        for row in found:
            output.object({**msgspec.structs.asdict(row), **rows_begin(view)})
    elif not found:
        is_bare = past is None and not any(filters.values())
        said = "no jobs; add one with `jobledger enqueue`" if is_bare else "no jobs"
        output.say(said if members or is_bare else f"{said}; children of runs are listed with --members")
    else:
        output.table(("id!", "queue", "task", "status!", "age>"), [_row(row, view.now) for row in found])
        if len(found) == limit:
            output.note(f"the newest {limit} are shown; --limit shows more")


def _trace_id(given: str) -> str:
    """Return the trace id of what a person has copied from a log or a header. Raises: UsageError."""
    found = (trace_id(given) or given).lower()
    if not re.fullmatch(r"[0-9a-f]{32}", found):
        raise UsageError("--trace takes a trace id, 32 hexadecimal digits, or a whole traceparent")
    return found


def _row(row: JobRow, now: datetime) -> tuple[Any, ...]:
    created = datetime.fromisoformat(row.created_at)
    return (
        shortened(row.id, 36),
        shortened(row.queue, 64),
        shortened(row.task, 64),
        colored(row.status),
        age(created, now).removesuffix(" ago"),
    )
