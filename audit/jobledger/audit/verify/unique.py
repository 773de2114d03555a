"""The rule `unique`: while a job holds a key, no other job takes it and none is made or requeued beside it.

Whether a job still holds its key is `is_held`'s to say, as where jobs are added. The chains of keys and the records of
jobs are the checker's own, so nothing more is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobledger.audit.verify.chains import Chains
from jobledger.audit.verify.records import Record, unpack
from jobledger.audit.verify.store import RecordStore
from jobledger.ledger.model.aggregate import Broken
from jobledger.ledger.model.events import Held, JobEvent, Queued, Scheduled
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef, aggregate_of
from jobledger.ledger.model.unique import UNIQUE, Taken, UniqueKey, is_held, key_of


class UniqueRule:
    """The rule `unique` over the chains of keys and the records of jobs that a checker keeps."""

    def __init__(self, keys: Chains, jobs: RecordStore[Record], *, from_start: bool) -> None:
        """`from_start`: every event of the ledger is seen, so what is not known was never there."""
        self._keys = keys
        self._jobs = jobs
        self._from_start = from_start

    def key(self, subject: str) -> UniqueKey | None:
        """Return the key that a subject names as it is now, None where nobody took it or it is no subject of a key."""
        if aggregate_of(subject) != UNIQUE.name:
            return None
        state: UniqueKey | None = self._keys.state_of(UNIQUE.key_in(subject))
        return state

    def taken(self, before: UniqueKey | None, event: Taken, sequence: int) -> Iterator[Broken]:
        """Yield what is wrong with a key that is taken at a stream sequence; `before`: the key as it was."""
        if before is None or before.owner == JobRef(queue=event.queue, job_id=event.job):
            return
        owner = self._job(before.owner)
        until = None if event.expires_at is not None else event.until
        if owner is None and not self._from_start:
            return
        if owner is not None and owner.state is JobState.CANCELLED and owner.last_sequence == sequence - 1:
            return  # replaced: its end is in the same append, whatever time it held the key for
        if owner is not None and until == "due" and owner.attempts:
            return  # it waits for another attempt, and the key was free when it was due for the first time
        if is_held(before, owner, event.at, until):
            state = "not made yet" if owner is None else f"{owner.state.value} then"
            yield (
                "unique",
                f"it was taken for job {event.queue}/{event.job}, and {_named(before)} held it, {state}",
            )

    def job(self, event: JobEvent) -> Iterator[Broken]:
        """Yield what is wrong with a job that `event`, which the records have, may have brought to life.

        Only keys that are held until their job has ended promise that no other one is alive.
        """
        job = self._job(JobRef(queue=event.queue, job_id=event.job)) if _comes_alive(event) else None
        if job is None or not job.order.unique:
            return
        ref = key_of(job)
        key: UniqueKey | None = self._keys.state_of((ref.task, ref.key))
        if key is None:
            if self._from_start and not event.prev:
                yield "unique", "it is unique, and nobody took its key before it was made"
            return
        if key.until != "ended" or key.expires_at is not None:
            return
        owner = self._job(key.owner)
        if owner is not None and owner.id != job.id and is_held(key, owner, event.at):
            yield "unique", f"it comes alive while {_named(key)} holds its key until that one has ended"

    def _job(self, ref: JobRef) -> Job | None:
        """Return a job as its events add up so far, over or not; None if that is not known."""
        record = self._jobs.get(f"{ref.queue}/{ref.job_id}")
        if isinstance(record, bytes):
            return unpack(record, ref.queue, ref.job_id)[0]
        return None if record is None else record.job


def _comes_alive(event: JobEvent) -> bool:
    """Return whether a job that may be unique comes alive: its first event, or a requeue, which names no key."""
    match event:
        case Queued() | Held() if event.cause == "requeued":
            return True
        case Queued() | Held() | Scheduled():
            return not event.prev and bool(event.unique)
        case _:
            return False


def _named(key: UniqueKey) -> str:
    return f"job {key.queue}/{key.job}"
