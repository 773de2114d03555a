"""The rule `unique`: while a job holds a key, no other job takes it and none is made or requeued beside it.

`is_held` decides whether a job still holds its key, as it does when jobs are added. The rule reads the checker's
chains of keys and records of jobs, and keeps nothing of its own.
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
        """Set `from_start` if the check reads every event: then a key or job without events never existed."""
        self._keys = keys
        self._jobs = jobs
        self._from_start = from_start

    def key(self, subject: str) -> UniqueKey | None:
        """Return the present state of the key that a subject names; None if nobody took it, or for another subject."""
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
            return  # replaced: the same append cancelled the owner, even if it still held the key
        if owner is not None and until == "due" and owner.attempts:
            return  # the owner has had an attempt, so its key was free once it was first due
        if is_held(before, owner, event.at, until):
            state = "not made yet" if owner is None else f"{owner.state.value} then"
            yield (
                "unique",
                f"it was taken for job {event.queue}/{event.job}, and {_named(before)} held it, {state}",
            )

    def job(self, event: JobEvent) -> Iterator[Broken]:
        """Yield what is wrong with a job that `event`, which is in the records already, may have made alive.

        Only a key that is held until its job has ended forbids a second live job.
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
        """Return a job as its events so far make it, ended or not; None without a record of it."""
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
