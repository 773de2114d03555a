"""`Holders`: the only fold of the slots that jobs hold. Pure.

A slot is taken by `granted` alone, and given back by the job's own next event that ends what it was granted for. The
flow reactor, the check of a ledger, the tables and `jobs show --why` all count with `Holders`; what they know of jobs that
wait comes from elsewhere: the lines of `grants`, or the job's own state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from jobledger.ledger.model.events import (
    Cancelled,
    CarriedJob,
    Completed,
    DeadLettered,
    Discarded,
    Failed,
    Held,
    JobEvent,
    Paused,
    Snoozed,
)

#: Queue and id of a job.
JobKey = tuple[str, str]

#: Events after which a job gives back all its slots.
FINAL: Final[frozenset[type[JobEvent]]] = frozenset((Completed, Cancelled, DeadLettered, Discarded))
#: Events after which it gives back the slots of an attempt, and keeps the slots that it holds until its end.
OF_AN_ATTEMPT: Final[frozenset[type[JobEvent]]] = frozenset((Failed, Snoozed, Paused, Held))
_ENDS: Final = FINAL | OF_AN_ATTEMPT


class JobSlots(msgspec.Struct, gc=False):
    """The slots of one job."""

    limits: tuple[str, ...]  #: keys of which it holds a slot
    kept: tuple[str, ...] = ()  #: those keys whose slots it holds until it has ended for good
    grant: int = 0  #: stream sequence of the newest `granted` that gave it a slot; 0: not known yet
    held: int = 0  #: stream sequence of the `held` that the grant answered


class Holders:
    """The jobs that hold slots of each key, folded from events in stream order.

    It keeps about 600 bytes for each job that holds a slot, and nothing for other jobs.
    """

    def __init__(self) -> None:
        """Begin without holders."""
        self.jobs: dict[JobKey, JobSlots] = {}
        #: By key: the jobs that hold a slot, the earliest holder first.
        self.by_key: dict[str, dict[JobKey, None]] = {}

    def used(self, key: str) -> int:
        """Return how many jobs hold a slot of a key."""
        return len(self.by_key.get(key, ()))

    def of(self, key: str) -> Iterable[JobKey]:
        """Return the jobs that hold a slot of a key, the earliest holder first."""
        return self.by_key.get(key, ())

    def keys(self) -> Iterable[str]:
        """Return every key of which a job holds a slot."""
        return self.by_key.keys()

    def needs(self, job: JobKey, limits: tuple[str, ...]) -> tuple[str, ...]:
        """Return the keys of `limits` of which the job does not hold a kept slot already."""
        holding = self.jobs.get(job)
        return limits if holding is None else tuple(limit for limit in limits if limit not in holding.limits)

    def take(
        self, job: JobKey, limits: tuple[str, ...], *, held: int, grant: int, keeps: Callable[[str], bool]
    ) -> tuple[str, ...]:
        """Give a waiting job a slot of each of its limits; return the keys of which it had none.

        `limits`: all that the job names. `held`, `grant`: stream sequences of its wait and of the `granted`. `keeps`:
        whether a key is held until the job has ended for good, by the definitions that the grant obeyed. A grant for a
        job that no longer waits, or with another `held`, is void: do not call this for it.
        """
        taken = self.needs(job, limits)
        kept = tuple([limit for limit in limits if limit not in taken or keeps(limit)])
        self.put(job, JobSlots(limits, kept, grant, held))
        return taken

    def feed(self, event: JobEvent) -> tuple[str, ...]:
        """Fold the next event of a job; return the keys of which it gave a slot back."""
        job = (event.queue, event.job)
        holding = self.jobs.get(job)
        if holding is None or type(event) not in _ENDS:
            return ()
        if holding.kept and type(event) in OF_AN_ATTEMPT:
            freed = tuple(limit for limit in holding.limits if limit not in holding.kept)
            self.jobs[job] = JobSlots(holding.kept, holding.kept, holding.grant, holding.held)
        else:
            freed = holding.limits
            del self.jobs[job]
        self._free(job, freed)
        return freed

    def put(self, job: JobKey, holding: JobSlots | None) -> None:
        """Set the slots of a job, whatever it held before; None: no slots. For restored or undone state."""
        before = self.jobs.pop(job, None)
        if before is not None:
            self._free(job, before.limits)
        if holding is not None:
            self.jobs[job] = holding
            for key in holding.limits:
                self.by_key.setdefault(key, {})[job] = None

    def _free(self, job: JobKey, keys: Iterable[str]) -> None:
        for key in keys:
            jobs = self.by_key.get(key)
            if jobs is not None and jobs.pop(job, job) is None and not jobs:
                del self.by_key[key]


def carried_holding(state: CarriedJob, keeps: Callable[[str], bool]) -> JobSlots | None:
    """Return the slots of a job whose earlier events are in an archive, None without any; `keeps` as for `take`."""
    limits = state.order.limits
    if not limits or not state.grant:
        return None
    kept = tuple(filter(keeps, limits))
    if state.state in {"queued", "running"}:
        return JobSlots(limits, kept, state.grant)
    return JobSlots(kept, kept, state.grant) if kept and state.state in _BETWEEN else None


#: States in which a job may keep slots although no attempt of it runs.
_BETWEEN: Final = frozenset({"held", "retry_wait", "paused"})
