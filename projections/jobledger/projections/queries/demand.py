"""How many workers queues need, for autoscaling: from the arrivals, the waiting jobs, and the length of attempts.

    slots = (jobs in per s + jobs that wait / target) * seconds of an attempt

A running attempt keeps its slot, and a paused queue needs none. Held and scheduled jobs need no slot: they are not
counted as waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.projections.queries.store import Store
from jobledger.projections.statistics.answers import bucket_values
from jobledger.projections.tables.queues import read_pauses

#: Default seconds within which workers have to take the waiting jobs.
TARGET_S: Final = 30.0
#: Attempts that a worker runs at once by default.
CONCURRENCY: Final = 100
#: The rate of arrivals is counted over this minute and the one before.
_LATELY: Final = timedelta(minutes=1)
#: The mean length of attempts is taken over these minutes; for a queue without any, over its whole past.
_USUALLY: Final = timedelta(minutes=10)
_MICROSECOND: Final = 1e-6
_OF_THESE: Final = "queue IN (SELECT value FROM json_each(?))"
_NOW: Final = f"SELECT queue, sum(queued), sum(running) FROM queues WHERE {_OF_THESE} GROUP BY queue"  # noqa: S608 - constants
_CAME: Final = f"SELECT queue, sum(enqueued) FROM buckets WHERE minute >= ? AND {_OF_THESE} GROUP BY queue"  # noqa: S608
_RAN: Final = (
    f"SELECT queue, sum(run_count), sum(run_us) FROM buckets WHERE minute >= ? AND {_OF_THESE} GROUP BY queue"  # noqa: S608
)
_EVER_RAN: Final = f"SELECT queue, run_count, run_us FROM sums WHERE {_OF_THESE}"  # noqa: S608


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The demand of one queue for workers at one moment."""

    waiting: int = 0  #: jobs that a worker could take
    running: int = 0
    enqueued_per_s: float = 0.0
    attempt_s: float | None = None  #: None: no attempt of it has ended yet
    is_paused: bool = False

    def slots(self, target_s: float = TARGET_S) -> float:
        """Return how many attempts have to run at once for the waiting jobs to be taken within `target_s` seconds."""
        if self.is_paused:
            return 0.0
        wanted = (self.enqueued_per_s + self.waiting / target_s) * (self.attempt_s or 0.0)
        return max(wanted, float(self.running))

    def workers(self, *, concurrency: int, target_s: float = TARGET_S) -> int:
        """Return how many workers have these slots: none without waiting, running or new jobs, else at least one."""
        if self.is_paused or not (self.waiting or self.running or self.enqueued_per_s):
            return 0
        return max(1, math.ceil(self.slots(target_s) / concurrency))


def read_demand(store: Store, queues: Sequence[str], now: datetime) -> dict[str, Demand]:
    """Return the demand of each of these queues that ever had a job; `now`: by the server's clock.

    Raises: ProjectionError.
    """
    listed = msgspec.json.encode(queues).decode()
    with store.one_moment():
        counts = store.select(_NOW, (listed,))
        came = dict(store.select(_CAME, (_since(now, _LATELY), listed)))
        usual = store.select(_RAN, (_since(now, _USUALLY), listed))
        lengths = _means(store.select(_EVER_RAN, (listed,))) | _means(usual)
        pauses = read_pauses(store.select)
    passed_s = _LATELY.total_seconds() + now.second + now.microsecond * _MICROSECOND
    return {
        queue: Demand(
            waiting=waiting,
            running=running,
            enqueued_per_s=came.get(queue, 0) / passed_s,
            attempt_s=lengths.get(queue),
            is_paused=queue in pauses and pauses[queue].is_paused(now),
        )
        for queue, waiting, running in counts
    }


def _since(now: datetime, before: timedelta) -> object:
    return bucket_values(now - before, None, 60)["since"]


def _means(rows: list[tuple[str, int, int]]) -> dict[str, float]:
    """Return the mean seconds of an attempt, by queue in which any ended."""
    return {queue: total_us * _MICROSECOND / count for queue, count, total_us in rows if count}
