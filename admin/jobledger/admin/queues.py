"""What the queues hold: rows by queue and priority, or added up for each queue; which are paused; and draining one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

import anyio

from jobledger.admin.rows import Rows
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.model.subjects import INNER_QUEUES
from jobledger.projections import QueueRow, Store
from jobledger.projections.tables.queues import read_pauses

_RANKS: Final = {"high": 0, "normal": 1, "low": 2}
_LOOK_AGAIN_FIRST_S: Final = 0.05
_LOOK_AGAIN_MAX_S: Final = 1.0
_RUNNING: Final = "SELECT worker, count(*) FROM jobs WHERE status = 'running' AND queue = ? GROUP BY worker"


class RunningJobs(NamedTuple):
    """The jobs of a queue that still run."""

    jobs: int  #: on workers whose leases live
    workers: int  #: how many workers these are
    lost: int  #: jobs whose workers are gone: they are taken over when the queue is resumed

    def words(self) -> str:
        """Return it for a person: `3 jobs run on 2 workers`."""
        jobs = "1 job runs" if self.jobs == 1 else f"{self.jobs:,} jobs run"
        return f"{jobs} on {'1 worker' if self.workers == 1 else f'{self.workers:,} workers'}"


def paused_now(store: Store, now: datetime) -> dict[str, QueueState]:
    """Return the queues that are paused at a moment, and their states."""
    return {queue: state for queue, state in read_pauses(store.select).items() if state.is_paused(now)}


def fleet_queues(store: Store, *, shown: tuple[str, ...] = ()) -> list[QueueRow]:
    """Return the rows of all queues, but of the ledger's own queues only those in `shown`."""
    return [row for row in store.queues() if row.queue in shown or row.queue not in INNER_QUEUES]


def listed(store: Store, queue: str | None, now: datetime) -> tuple[list[QueueRow], Mapping[str, QueueState]]:
    """Return the rows of one queue, or of all that ever had a job or are paused; and the paused queues.

    Queues of the ledger's own are left out unless one is named, or paused.
    """
    with store.one_moment():
        paused = paused_now(store, now)
        rows = store.queues(queue) if queue is not None else fleet_queues(store, shown=tuple(paused))
    known = {row.queue for row in rows}
    none = dict.fromkeys((state.value for state in JobState), 0)
    empty = [
        QueueRow(queue=each, priority="normal", counts=none, oldest_waiting=None, oldest_running=None)
        for each in paused
        if each not in known and queue in (None, each)
    ]
    return [*rows, *empty], paused


async def drained(
    rows: Rows, queue: str, *, limit_s: float, on_change: Callable[[RunningJobs], None]
) -> RunningJobs:
    """Wait until no job of a paused queue runs, or the limit is reached; return the jobs that still run.

    `on_change` gets the jobs that run, at first and with each change. Jobs whose workers are gone are not waited for.

    Raises: ProjectionError, UnreachableError.
    """
    clock = rows.ledger.clock
    pause_s, told, deadline = _LOOK_AGAIN_FIRST_S, None, clock.monotonic() + limit_s
    while (running := await _running(rows, queue)).jobs:
        if running != told:
            on_change(running)
        told, left_s = running, deadline - clock.monotonic()
        if left_s <= 0:
            break
        await anyio.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LOOK_AGAIN_MAX_S)
    return running


async def _running(rows: Rows, queue: str) -> RunningJobs:
    await rows.catch_up()
    alive = {info.worker for info in await rows.ledger.leases.all() if not info.stopped}
    with Store.open(await rows.path()) as store:
        found = store.select(_RUNNING, (queue,))
    living = [count for worker, count in found if worker in alive]
    return RunningJobs(sum(living), len(living), sum(count for worker, count in found if worker not in alive))


def by_priority(rows: Iterable[QueueRow]) -> list[QueueRow]:
    """Return the rows in the order of the queues' names, the higher priority first."""
    return sorted(rows, key=_place)


def together(rows: Iterable[QueueRow]) -> list[QueueRow]:
    """Add the priorities of each queue up, in the order of the queues' names; `priority` is "" then."""
    found: dict[str, QueueRow] = {}
    for row in by_priority(rows):
        known = found.get(row.queue)
        found[row.queue] = QueueRow(
            queue=row.queue,
            priority="",
            counts=row.counts if known is None else _sums(known.counts, row.counts),
            oldest_waiting=_oldest(row.oldest_waiting, known.oldest_waiting if known else None),
            oldest_running=_oldest(row.oldest_running, known.oldest_running if known else None),
        )
    return list(found.values())


def _place(row: QueueRow) -> tuple[str, int]:
    return row.queue, _RANKS.get(row.priority, len(_RANKS))


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {state: count + other[state] for state, count in one.items()}


def _oldest(*times: str | None) -> str | None:
    return min((each for each in times if each is not None), default=None)
