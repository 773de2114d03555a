"""The events of a unique key, and what may follow: which job holds a key of its task, and for how long. Pure.

A key is an aggregate of its own: a task, and a hash of the values that make its jobs the same. Its only type of event,
`taken`, holds the whole state, so the newest one *is* the state. Nobody gives a key back: it is free once its job no
longer needs it, which the next caller finds out. The job follows in an append of its own; if that is missing, the next
caller makes the job under the id in the key. Source: ADR 023.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, ArchiveBound, Broken
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import NO_VALUE, Envelope, Moment, Whole
from jobledger.ledger.model.errors import UniqueKeyTakenError
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.times import shown_time

#: How long a job holds its key: until it is due, until it is started for the first time, or until it has ended.
Until = Literal["due", "started", "ended"]


class KeyRef(msgspec.Struct, frozen=True, kw_only=True):
    """The name of one key's chain."""

    task: str
    key: str  #: 40 hexadecimal digits


def key_of(job: Job) -> KeyRef:
    """Return the key of a unique job, from its order."""
    return KeyRef(task=job.task, key=job.order.unique)


class Taken(Envelope, frozen=True, kw_only=True, tag="taken", gc=False):
    """A job got the key. Its first event follows, appended by whoever took the key or by whoever comes next."""

    task: str  #: the task whose jobs the key distinguishes
    key: str  #: hash of the task, the tenant and the arguments, 40 hexadecimal digits
    number: Whole  #: number of times that the key was taken, from 1; an archive run repeats the number
    queue: str  #: of the job that holds the key
    job: str  #: its id
    until: Until = "ended"  #: how long the job holds the key, unless `expires_at` is given
    expires_at: Moment | None = None  #: the job holds the key until then, in whatever state
    tenant: str = ""  #: whom the job belongs to
    arguments: msgspec.Raw = (
        NO_VALUE  #: JSON object of the arguments that make the key; absent above 1,024 bytes
    )
    made: bool = False  #: True: an archive run repeated this event, and the job was in the ledger then


class UniqueKey(msgspec.Struct, frozen=True, gc=False):
    """A key after its newest event."""

    number: int
    queue: str
    job: str
    until: Until
    expires_at: datetime | None
    made: bool
    taken_at: datetime

    @property
    def owner(self) -> JobRef:
        """The job that took the key last, whether or not it still holds it."""
        return JobRef(queue=self.queue, job_id=self.job)


def evolve(_before: UniqueKey | None, event: Taken, _stream_sequence: int) -> UniqueKey:
    """Return the key after `event`, whatever came before it."""
    return UniqueKey(
        event.number, event.queue, event.job, event.until, event.expires_at, event.made, event.at
    )


class Take(msgspec.Struct, frozen=True, kw_only=True):
    """Take the key for a job."""

    owner: JobRef
    replaces: bool = False  #: whether the present holder is cancelled in the same append
    until: Until = "ended"
    expires_at: datetime | None = None
    tenant: str = ""
    arguments: msgspec.Raw = NO_VALUE


def is_held(key: UniqueKey, owner: Job | None, now: datetime, until: Until | None = None) -> bool:
    """Return whether a key's job still holds it.

    `owner`: that job, folded from its events; None if the ledger has none of them. `until`: the caller's own choice;
    None: the choice in the key.
    """
    if key.expires_at is not None and until is None:
        return now < key.expires_at
    if owner is None:
        return not key.made  # a job that was not made follows, by the taker of the key or by the next caller
    if owner.is_final:
        return False
    match until or key.until:
        case "ended":
            return True
        case "started":
            return not owner.attempts
        case "due":
            return owner.state is JobState.SCHEDULED


def decide(ref: KeyRef, key: UniqueKey | None, owner: Job | None, command: Take, stamp: Stamp) -> Taken:
    """Return the event that gives the key to a job; `owner` is the job that took it last, None without one.

    Raises: UniqueKeyTakenError while that job holds the key, by the caller's rule.
    """
    until = None if command.expires_at is not None else command.until
    if key is not None and not command.replaces and is_held(key, owner, stamp.at, until):
        raise UniqueKeyTakenError(ref.task, ref.key, key.queue, key.job)
    return Taken(
        at=stamp.at,
        by=stamp.by,
        trace=stamp.trace,
        task=ref.task,
        key=ref.key,
        number=1 if key is None else key.number + 1,
        queue=command.owner.queue,
        job=command.owner.job_id,
        until=command.until,
        expires_at=command.expires_at,
        tenant=command.tenant,
        arguments=command.arguments,
    )


def said_again(taken: Taken, owner: Job | None, now: datetime) -> Taken | None:
    """Return the event by which an archive run replaces a key's newest one; None: the key is free, and may go away.

    `owner`: the job that took it, None if the ledger has none of its events.
    """
    lives = not taken.made if owner is None else not owner.is_final
    lasts = taken.expires_at is not None and now < taken.expires_at
    if not lives and not lasts:
        return None
    return msgspec.structs.replace(taken, made=taken.made or owner is not None, prev="")


_UNTIL: Final = {"due": "until it is due", "started": "until it is started", "ended": "until it has ended"}


def until_words(until: Until, expires_at: datetime | None) -> str:
    """Return how long a job holds its key, as the end of a sentence."""
    return _UNTIL[until] if expires_at is None else f"until {shown_time(expires_at)}"


def _words(event: Taken) -> str:
    return f"by job {event.queue}/{event.job} {until_words(event.until, event.expires_at)}"


def _check(before: UniqueKey | None, event: Taken, stream_sequence: int) -> Iterator[Broken]:
    """Check that each job raises the number by one, and that a repeated event differs in `made` at most."""
    number = 0 if before is None else before.number
    if event.number == number + 1 and not event.made:
        return
    after = evolve(None, event, stream_sequence)
    if before is None or after != msgspec.structs.replace(before, made=event.made):
        yield "transition", f"`taken` has the number {event.number} and does not follow on {number}"


def _keeps(_event: Taken, _stream_sequence: int) -> ArchiveBound | None:
    """Keep nothing: an archive run repeats the events of held keys."""
    return None


UNIQUE: Aggregate[Taken, UniqueKey] = Aggregate(
    "unique", ("task", "key"), Taken, state=UniqueKey, evolve=evolve, words=_words, check=_check, keeps=_keeps
)
