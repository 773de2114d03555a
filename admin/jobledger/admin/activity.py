"""The activity in a ledger: what its queues hold, how fast jobs move, and who works; from one look to the next."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from jobledger.admin.diagnoses import Diagnosis, diagnose
from jobledger.admin.queues import fleet_queues, paused_now, together
from jobledger.admin.rows import Rows, View, lag_of
from jobledger.admin.workers import list_workers
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.projections import QueueRow, Store

#: Pause between two diagnoses: each asks the server, and reads a day of rates.
_DIAGNOSED_EACH_S: Final = 5.0


class QueueRates(msgspec.Struct, frozen=True, kw_only=True):
    """How often something happened to a queue's jobs, per second."""

    enqueued: float
    completed: float
    failed: float  #: attempts


class QueueActivity(msgspec.Struct, frozen=True, kw_only=True):
    """One queue at one moment."""

    row: QueueRow
    rates: QueueRates | None  #: those since the previous look; None at the first


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """One look."""

    at: datetime
    stream_sequence: int  #: that of the newest event that was seen
    events_per_s: float | None  #: rate since the previous look; None at the first
    queues: list[QueueActivity]
    paused: dict[str, QueueState]  #: the queues that are paused
    diagnoses: list[Diagnosis]  #: what hurts, the worst first; looked for at most every 5 s
    workers: list[WorkerInfo]


class Watch:
    """Looks at a ledger again and again."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._seen_at = 0.0
        self._sequence = 0
        self._diagnosed_at = -_DIAGNOSED_EACH_S
        self._hurts: list[Diagnosis] = []
        self._counts: dict[str, tuple[int, int, int]] | None = None

    async def look(self) -> Activity:
        """Bring the projection up to the ledger's head, and return the activity.

        Raises: ProjectionError, UnreachableError.
        """
        rows, clock = self._rows, self._rows.ledger.clock
        position = await rows.catch_up()
        now = clock.monotonic()
        with Store.open(await rows.path()) as store:
            with store.one_moment():
                found, paused = together(fleet_queues(store)), paused_now(store, clock.now())
                counts = _counts(store)
            if now - self._diagnosed_at >= _DIAGNOSED_EACH_S:
                lag = await lag_of(rows.ledger, position.stream_sequence)
                self._hurts = await diagnose(rows.ledger, View(store, clock.now(), position.begins_at, lag))
                self._diagnosed_at = now
        passed_s, before = now - self._seen_at, self._counts
        rate = (position.stream_sequence - self._sequence) / passed_s if before is not None else None
        activity = Activity(
            at=clock.now(),
            stream_sequence=position.stream_sequence,
            events_per_s=rate,
            queues=[
                QueueActivity(
                    row=row, rates=None if before is None else _rates(row.queue, before, counts, passed_s)
                )
                for row in found
            ],
            paused=paused,
            diagnoses=self._hurts,
            workers=await list_workers(rows.ledger),
        )
        self._seen_at, self._sequence, self._counts = now, position.stream_sequence, counts
        return activity


def _counts(store: Store) -> dict[str, tuple[int, int, int]]:
    found: dict[str, tuple[int, int, int]] = {}
    for row in store.totals():
        enqueued, completed, failed = found.get(row.queue, (0, 0, 0))
        found[row.queue] = (enqueued + row.enqueued, completed + row.completed, failed + row.failed)
    return found


def _rates(
    queue: str, before: dict[str, tuple[int, int, int]], now: dict[str, tuple[int, int, int]], passed_s: float
) -> QueueRates:
    nothing = (0, 0, 0)
    changes = [
        new - old for new, old in zip(now.get(queue, nothing), before.get(queue, nothing), strict=True)
    ]
    enqueued, completed, failed = (max(0, change) / passed_s for change in changes)
    return QueueRates(enqueued=enqueued, completed=completed, failed=failed)
