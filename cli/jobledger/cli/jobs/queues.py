"""`jobledger queues`: what each queue holds, now or at a past moment."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.output import Cell, Output
from jobledger.cli.past import Asked, asked, rows_begin, viewed
from jobledger.cli.session import Target, opened, run
from jobledger.cli.text import age, shortened
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.model.subjects import check_token
from jobledger.projections import QueueRow

app = typer.Typer(help="See what the queues hold.", no_args_is_help=True)

#: Columns that add several states up, so that a line fits into 80 characters; --json has each state.
_LATER: Final = ("scheduled", "held", "retry_wait", "paused")
_ENDED: Final = ("completed", "cancelled", "discarded")
_RANKS: Final = {"high": 0, "normal": 1, "low": 2}


@app.callback()
def _queues() -> None:
    """Keep `list` a command of its own, whatever their number."""


@app.command("list")
def list_queues(
    *,
    queue: options.Queue = None,
    by_priority: Annotated[
        bool, typer.Option("--by-priority", metavar="", help="A line for each priority of a queue.")
    ] = False,
    at: options.At = None,
    sequence: options.Sequence = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """List every queue that ever had a job: its jobs by state, and how long the oldest waits for a worker."""
    if queue is not None:
        check_token("queue", queue)
    past = asked(at, sequence)
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _list(output, target, projection, past, queue, by_priority=by_priority))


async def _list(
    output: Output,
    target: Target,
    chosen: Path | None,
    past: Asked | None,
    queue: str | None,
    *,
    by_priority: bool,
) -> None:
    async with opened(target) as ledger, viewed(ledger, chosen, past, output) as (store, now):
        rows, begin = store.queues(queue), rows_begin(store)
    lines = sorted(rows, key=_place) if by_priority else together(rows)
    if output.as_json:
        for row in lines:
            output.object({**_object(row, by_priority=by_priority), **begin})
    elif not lines:
        output.say("no queues")
    else:
        head = ("queue", "queued>", "running>", "later>", "ended>", "dead>", "oldest waits>")
        columns = (head[0], "priority!", *head[1:]) if by_priority else head
        output.table(columns, [_cells(row, now, by_priority=by_priority) for row in lines])


def _place(row: QueueRow) -> tuple[str, int]:
    return row.queue, _RANKS.get(row.priority, len(_RANKS))


def together(rows: Iterable[QueueRow]) -> list[QueueRow]:
    """Add the priorities of each queue up, in the order of the queues' names; `priority` is "" then."""
    found: dict[str, QueueRow] = {}
    for row in sorted(rows, key=_place):
        known = found.get(row.queue)
        found[row.queue] = QueueRow(
            queue=row.queue,
            priority="",
            counts=row.counts if known is None else _sums(known.counts, row.counts),
            oldest_waiting=_oldest(row.oldest_waiting, known.oldest_waiting if known else None),
            oldest_running=_oldest(row.oldest_running, known.oldest_running if known else None),
        )
    return list(found.values())


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {state: count + other[state] for state, count in one.items()}


def _oldest(*times: str | None) -> str | None:
    return min((each for each in times if each is not None), default=None)


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
