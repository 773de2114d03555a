"""`jobledger queues list`: what each queue holds, now or at a past moment."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
import typer

from jobledger.admin.queues import by_priority as each_priority
from jobledger.admin.queues import together
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import QUEUES
from jobledger.cli.output import Cell
from jobledger.cli.past import asked, rows_begin, viewed
from jobledger.cli.text import age, shortened
from jobledger.ledger.model.subjects import check_token
from jobledger.projections import QueueRow

#: Columns that add several states up, so that a line fits into 80 characters; --json has each state.
_LATER: Final = ("scheduled", "held", "retry_wait", "paused")
_ENDED: Final = ("completed", "cancelled", "discarded")


@command(QUEUES, "list", takes=ROWS)
async def list_queues(
    cli: Cli,
    *,
    queue: options.Queue = None,
    by_priority: Annotated[
        bool, typer.Option("--by-priority", metavar="", help="A line for each priority of a queue.")
    ] = False,
    at: options.At = None,
    sequence: options.Sequence = None,
) -> None:
    """List every queue that ever had a job: its jobs by state, and how long the oldest has waited for a worker."""
    if queue is not None:
        check_token("queue", queue)
    output = cli.output
    async with viewed(cli, asked(at, sequence)) as view:
        rows = view.store.queues(queue)
    lines = each_priority(rows) if by_priority else together(rows)
    if output.as_json:
        for row in lines:
            output.object({**_object(row, by_priority=by_priority), **rows_begin(view)})
    elif not lines:
        output.say("no queues")
    else:
        head = ("queue", "queued>", "running>", "later>", "ended>", "dead>", "oldest waits>")
        columns = (head[0], "priority!", *head[1:]) if by_priority else head
        output.table(columns, [_cells(row, view.now, by_priority=by_priority) for row in lines])


def _object(row: QueueRow, *, by_priority: bool) -> dict[str, Any]:
    body = msgspec.structs.asdict(row)
    return body if by_priority else {name: value for name, value in body.items() if name != "priority"}


def _cells(row: QueueRow, now: datetime, *, by_priority: bool) -> list[Cell]:
    def count(*states: str) -> int:
        return sum(row.counts.get(state, 0) for state in states)

    since = datetime.fromisoformat(row.oldest_waiting) if row.oldest_waiting else None
    waits = "" if since is None else age(since, max(now, since)).removesuffix(" ago")
    return [
        shortened(row.queue, 64),
        *([row.priority] if by_priority else []),
        count("queued"),
        count("running"),
        count(*_LATER),
        count(*_ENDED),
        count("dead_lettered"),
        waits,
    ]
