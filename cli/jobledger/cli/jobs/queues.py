"""`jobledger queues list`: the jobs of each queue and its pause, now or at a past moment."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final

import typer

from jobledger.admin.objects.fleet import queue_shown
from jobledger.admin.queues import by_priority as each_priority
from jobledger.admin.queues import listed, together
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import QUEUES
from jobledger.cli.past import asked, rows_begin, viewed
from jobledger.cli.text import Cell, age, shortened
from jobledger.ledger import QueueState
from jobledger.ledger.model.job import CLOSED_STATES, LATER_STATES, JobState
from jobledger.ledger.model.subjects import check_token
from jobledger.projections import QueueRow

#: Columns, and the states whose jobs each counts; --json has each state.
COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "queued>": (JobState.QUEUED,),
    "running>": (JobState.RUNNING,),
    "held>": (JobState.HELD,),
    "later>": tuple(state for state in LATER_STATES if state is not JobState.HELD),
    "dead>": (JobState.DEAD_LETTERED,),
    "ended>": tuple(state for state in JobState if state in CLOSED_STATES),
}
_WAITS: Final = "oldest waits>"
_WIDE: Final = 120  #: width of a terminal with room for all columns


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
    """List every queue that ever had a job or is paused: its jobs by state, and who paused it."""
    if queue is not None:
        check_token("queue", queue)
    output = cli.output
    async with viewed(cli, asked(at, sequence)) as view:
        rows, paused = listed(view.store, queue, view.now)
    lines = each_priority(rows) if by_priority else together(rows)
    if output.as_json:
        for row in lines:
            output.object(queue_shown(row, paused), **rows_begin(view))
    elif not lines:
        output.say("no queues")
    else:
        heads = _heads(is_wide=output.console.width >= _WIDE, is_long=by_priority or bool(paused))
        named = ("queue", "priority!") if by_priority else ("queue",)
        cells = [_cells(row, heads, view.now, paused, by_priority=by_priority) for row in lines]
        output.table((*named, *heads, *(["paused"] if paused else [])), cells)


def _heads(*, is_wide: bool, is_long: bool) -> list[str]:
    """Return the columns of counts: in 80 columns without ended jobs, beside further ones without the oldest wait."""
    counts = [head for head in COUNTS if is_wide or head != "ended>"]
    return [*counts, _WAITS] if is_wide or not is_long else counts


def _cells(
    row: QueueRow,
    heads: list[str],
    now: datetime,
    paused: Mapping[str, QueueState],
    *,
    by_priority: bool,
) -> list[Cell]:
    since = datetime.fromisoformat(row.oldest_waiting) if row.oldest_waiting else None
    waits = "" if since is None else age(since, max(now, since)).removesuffix(" ago")
    return [
        shortened(row.queue, 64),
        *([row.priority] if by_priority else []),
        *(waits if head == _WAITS else counted(row, COUNTS[head]) for head in heads),
        *([_pause(paused.get(row.queue), now)] if paused else []),
    ]


def counted(row: QueueRow, states: tuple[str, ...]) -> int:
    """Return how many jobs of a queue are in these states."""
    return sum(row.counts.get(state, 0) for state in states)


def _pause(state: QueueState | None, now: datetime) -> str:
    """Return who paused a queue, and how long the pause lasts; "" for a queue that is not paused."""
    if state is None:
        return ""
    ends = "" if state.until is None else f", ends {age(state.until, now)}"
    return shortened(f"by {state.by}{ends}", 64)
