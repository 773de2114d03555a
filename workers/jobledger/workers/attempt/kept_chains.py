"""Chains of runs that were parked here, and of jobs that failed here and are queued again, kept for their next attempt.

A delivered `queued` names the hash of the event before it. If that is the newest event of the kept chain, nothing came
between, and the chain need not be read; the claim's condition proves it again. For a job that its failure queued again
the same `queued` is delivered, and only the claim's condition proves that the chain is current.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from jobledger.ledger.model.chain import JobView
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.pull import Delivery

BYTES_MAX: Final = 64 << 20
#: The largest number of kept chains of jobs that failed here: they come back within moments, or another worker takes
#: them.
FAILED_BYTES_MAX: Final = 4 << 20
#: Bytes that the objects of a run and of each of its steps take, without their values; measured, rounded up.
_RUN_BYTES: Final = 4_096
_STEP_BYTES: Final = 768


class KeptChains:
    """The chains of parked runs and failed jobs; if there is no room, the oldest goes first."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._views: OrderedDict[JobRef, tuple[JobView, int]] = OrderedDict()
        self.hits = 0  #: attempts that began without reading their chain

    def __len__(self) -> int:
        """Return how many chains are kept."""
        return len(self._views)

    def keep(self, ref: JobRef, view: JobView) -> None:
        """Keep the chain of a run that was parked, or of a job that its failure queued again."""
        self._drop(ref)
        job = view.job
        if job is None:
            return
        size = _size(job)
        self._views[ref] = view, size
        self._bytes += size
        while self._bytes > self._bytes_max:
            self._drop(next(iter(self._views)))

    def following(self, ref: JobRef, delivery: Delivery, queued: Queued) -> JobView | None:
        """Return the chain that ends with a delivered event, if that follows a kept chain."""
        found = self._drop(ref)
        if found is None or found.last_hash != queued.prev:
            return None
        self.hits += 1
        sequence = delivery.stream_sequence
        return JobView(evolve(found.job, queued, sequence), sequence, delivery.data)

    def offered(self, ref: JobRef, delivery: Delivery) -> JobView | None:
        """Return the chain of a job whose failure had the delivered work item delivered again, if it is kept."""
        found = self._drop(ref)
        if found is None or found.job is None or found.job.dispatch_sequence != delivery.stream_sequence:
            return None
        self.hits += 1
        return found

    def _drop(self, ref: JobRef) -> JobView | None:
        view, size = self._views.pop(ref, (None, 0))
        self._bytes -= size
        return view


def _size(job: Job) -> int:
    """Return the approximate bytes of a run in memory."""
    values = sum(len(bytes(each.result)) + len(bytes(each.items)) for each in job.steps.values())
    said = sum(len(bytes(each.value)) for each in job.signals)
    said += len(bytes(job.order.input)) + len(bytes(job.checkpoint))
    return _RUN_BYTES + _STEP_BYTES * (len(job.steps) + len(job.signals)) + values + said
