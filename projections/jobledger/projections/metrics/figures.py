"""The rows of a projection for a scrape: a limited number by name, the others in sums.

A scrape reads only as many rows as it shows. A limited number of queues, pairs of queue and task, and
types of error have rows of their own: the first ones in the ledger, so that a series never changes hands and a counter never
goes back. The rest is summed up as `(other)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.ledger.metrics.exposition import OTHER
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.projections.metrics.recent import RecentTimes, read_recent
from jobledger.projections.metrics.row_sums import Labels, minus, shown
from jobledger.projections.metrics.runs import RunFigures, read_running
from jobledger.projections.metrics.schedules import TickingRow, read_ticking
from jobledger.projections.position import Position
from jobledger.projections.queries.demand import Demand, read_demand
from jobledger.projections.queries.store import Store
from jobledger.projections.statistics.answers import (
    QUEUES_OTHER_SQL,
    QUEUES_SHOWN_SQL,
    FailureRow,
    QueueRow,
    TotalsRow,
    queue_row,
    totals_row,
)
from jobledger.projections.statistics.held_jobs import HeldRow, folded, read_held
from jobledger.projections.statistics.tables import LIMIT_STATISTICS
from jobledger.projections.statistics.tally import STATISTICS
from jobledger.projections.tables.hooks import HookStates, read_hooks
from jobledger.projections.tables.queues import read_pauses
from jobledger.projections.tables.slots import slots_taken
from jobledger.projections.tables.unreadable import SetAside, count_set_aside

_COLUMNS: Final = ", ".join(STATISTICS)
#: The first row is the sum of all queues.
_SUMS: Final = f"SELECT queue, {_COLUMNS} FROM sums ORDER BY rowid LIMIT ?"  # noqa: S608 - constants, here and below
_TOTALS: Final = f"SELECT queue, task, {_COLUMNS} FROM totals ORDER BY rowid LIMIT ?"  # noqa: S608
_FAILURES: Final = (
    f"SELECT {', '.join(FailureRow.__struct_fields__)} FROM failures "  # noqa: S608
    f"WHERE error_type != '{OTHER}' ORDER BY rowid LIMIT ?"
)
_MORE_QUEUES: Final = "SELECT DISTINCT queue FROM queues WHERE queue NOT IN (SELECT value FROM json_each(?)) ORDER BY queue LIMIT ?"
_HOW_MANY: Final = (
    "SELECT max((SELECT count(*) - 1 FROM sums), (SELECT count(DISTINCT queue) FROM queues)), "
    "(SELECT count(*) FROM totals), (SELECT count(*) FROM failures)"
)
_LIMIT_WAITS: Final = f"SELECT name, {', '.join(LIMIT_STATISTICS)} FROM limit_waits ORDER BY rowid"  # noqa: S608
_WHOLE: Final = ""  # the key of the sum of all queues
_FAILED: Final = STATISTICS.index("failed")
_DEAD: Final = STATISTICS.index("dead_lettered")

_Values = Sequence[Any]  #: values of columns that add up: numbers, and spreads as text


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a projection at one position for the collector, under the names that it shows."""

    position: Position
    timers_pending: int
    set_aside: SetAside  #: counts of messages that are no events
    shown: tuple[str, ...]  #: queues that are shown under their own names
    folded: dict[str, int]  #: by label: number of values that are not shown by name
    queues: list[QueueRow]
    pauses: dict[str, QueueState]  #: pauses of all queues that were ever paused
    held: list[HeldRow]  #: held jobs by limit
    limit_waits: dict[Labels, Sequence[Any]]  #: by limit: the columns of a histogram
    ticking: list[TickingRow]  #: figures by schedule
    running: RunFigures  #: figures of runs
    hooks: HookStates  #: states of webhooks (disabled) and of watches (firing)
    totals: list[TotalsRow]
    recent: RecentTimes
    demand: dict[str, Demand]  #: demand of the queues shown
    failures: list[FailureRow]


def read_figures(store: Store, values_max: int, now: datetime) -> Figures:
    """Read everything in one transaction; recent figures end at `now`.

    Raises: the errors of the projection's file.
    """
    with store.one_moment():
        sums = {row[0]: row[1:] for row in store.select(_SUMS, (values_max + 1,))}
        tasks = {(row[0], row[1]): row[2:] for row in store.select(_TOTALS, (values_max,))}
        totals = tasks | dict(_other_tasks(sums, tasks))
        failures = [_failure(row) for row in store.select(_FAILURES, (values_max,))]
        failures = [row for row in failures if (row.queue, row.task) in tasks]
        queues = _shown_queues(store, [queue for queue in sums if queue != _WHOLE], values_max)
        held = read_held(store.select, slots_taken(store.select))
        limit_waits, waits_folded = shown(store.select(_LIMIT_WAITS), 1, values_max)
        ticking, schedules_folded = read_ticking(store, values_max)
        running = read_running(store, values_max)
        (counts,) = store.select(_HOW_MANY)
        listed = msgspec.json.encode(queues).decode()
        rows = store.select(QUEUES_SHOWN_SQL, (listed,)) + store.select(QUEUES_OTHER_SQL, (OTHER, listed))
        return Figures(
            position=store.position(),
            timers_pending=store.timers_pending(),
            set_aside=count_set_aside(store.select),
            shown=queues,
            folded={
                label: max(0, found - own)
                for label, found, own in zip(
                    ("queue", "task", "error_type", "limit"),
                    (*counts, max(len(held), values_max + waits_folded)),
                    (len(queues), len(tasks), len(failures), values_max),
                    strict=True,
                )
            }
            | {"schedule": schedules_folded, "target": running.steps_folded},
            queues=[queue_row(row) for row in rows],
            pauses=read_pauses(store.select),
            held=folded(held, values_max, OTHER),
            limit_waits=limit_waits,
            demand=read_demand(store, queues, now),
            ticking=ticking,
            running=running,
            hooks=read_hooks(store.select, values_max, OTHER),
            totals=[totals_row((*key, *values)) for key, values in totals.items()],
            recent=read_recent(store, values_max, now),
            failures=[*failures, *_other_failures(totals, failures)],
        )


def _failure(row: Sequence[Any]) -> FailureRow:
    return FailureRow(**dict(zip(FailureRow.__struct_fields__, row, strict=True)))


def _shown_queues(store: Store, counted: Sequence[str], values_max: int) -> tuple[str, ...]:
    """Add queues without counts yet, such as those of carried jobs: only for gauges, whose labels may change."""
    room = values_max - len(counted)
    if room <= 0:
        return tuple(counted)
    listed = msgspec.json.encode(counted).decode()
    return (*counted, *(row[0] for row in store.select(_MORE_QUEUES, (listed, room))))


def _other_tasks(
    sums: Mapping[str, _Values], tasks: Mapping[tuple[str, str], _Values]
) -> Iterator[tuple[tuple[str, str], _Values]]:
    """Yield what remains of each shown queue without its shown tasks, and of the whole without the shown queues."""
    if _WHOLE not in sums:
        return
    rest = dict(sums)
    for (queue, _), values in tasks.items():
        rest[queue] = tuple(map(minus, rest[queue], values))
    for queue, values in sums.items():
        if queue != _WHOLE:
            rest[_WHOLE] = tuple(map(minus, rest[_WHOLE], values))
            if any(rest[queue]):
                yield (queue, OTHER), rest[queue]
    if any(rest[_WHOLE]):
        yield (OTHER, OTHER), rest[_WHOLE]


def _other_failures(
    totals: Mapping[tuple[str, str], _Values], shown: Iterable[FailureRow]
) -> Iterator[FailureRow]:
    """Yield for each row of totals its failures of the types that are not shown."""
    rest = {key: [values[_FAILED], values[_DEAD]] for key, values in totals.items()}
    for row in shown:
        left = rest[row.queue, row.task]
        left[0] -= row.failed
        left[1] -= row.dead_lettered
    for (queue, task), (failed, dead) in rest.items():
        if failed or dead:
            yield FailureRow(queue=queue, task=task, error_type=OTHER, failed=failed, dead_lettered=dead)
