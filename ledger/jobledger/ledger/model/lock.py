"""The events of a lock, the state they add up to, and what may follow: `LockEvent`, `evolve`, `decide`. Pure.

A lock is an aggregate of its own, with a chain of its own. Each of its events holds the whole state, so the newest one
*is* the state: a look at a lock reads one event, however often the lock was used. As with jobs, released fields never
change type, meaning or name. Source: ADR 007.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, ArchiveBound, Broken
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope, Whole
from jobledger.ledger.model.errors import LockHeldError, LockLostError, RefusedError
from jobledger.ledger.model.subjects import LockRef


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a lock."""

    scope: str  #: what kind of thing is locked: "account", "document", "global"
    lock: str  #: lock id within the scope


class Acquired(_Fact, frozen=True, kw_only=True, tag="acquired", gc=False):
    """A process got the lock. The stream sequence of this event is the fencing number."""

    holder: str  #: the process whose lease keeps the lock: `<host>-<pid>-<random>`
    lease_s: float  #: how long after its last renewal the holder may still be at work
    took_over: Whole = 0  #: fencing number of the holder whose lease had expired; 0: the lock was free


class Released(_Fact, frozen=True, kw_only=True, tag="released", gc=False):
    """The holder gave the lock back."""

    fencing_number: Whole  #: which acquisition this ends


LockEvent = Acquired | Released


class Lock(msgspec.Struct, frozen=True, gc=False):
    """A lock after its newest event."""

    holder: str  #: "" when it is free
    fencing_number: int  #: of the newest acquisition, whether or not it lasts
    lease_s: float = 0.0  #: of the holder; 0 when it is free

    @property
    def is_held(self) -> bool:
        """Whether the newest acquisition was not given back; its holder may be gone all the same."""
        return bool(self.holder)


def evolve(_before: Lock | None, event: LockEvent, stream_sequence: int) -> Lock:
    """Return the lock after `event`, whatever came before it."""
    match event:
        case Acquired(holder=holder, lease_s=lease_s):
            return Lock(holder, stream_sequence, lease_s)
        case Released(fencing_number=fencing_number):
            return Lock("", fencing_number)


class Acquire(msgspec.Struct, frozen=True, kw_only=True):
    """Take the lock, or take it over from a holder whose lease expired."""

    holder: str
    lease_s: float
    lost: int = 0  #: fencing number of the holder that was found gone; 0: none


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Give the lock back."""

    fencing_number: int


LockCommand = Acquire | Release


def decide(ref: LockRef, lock: Lock | None, command: LockCommand, stamp: Stamp) -> LockEvent:
    """Return the event that follows from a command.

    Raises: LockHeldError for a lock whose holder was not found gone; LockLostError for giving back a lock that another
    one or nobody holds by now.
    """
    match command:
        case Acquire(holder=holder, lease_s=lease_s, lost=lost):
            is_held = lock is not None and lock.is_held
            if lock is not None and is_held and lock.fencing_number != lost:
                raise LockHeldError(ref.scope, ref.lock_id, lock.holder, lock.fencing_number)
            return Acquired(
                scope=ref.scope,
                lock=ref.lock_id,
                at=stamp.at,
                by=stamp.by,
                trace=stamp.trace,
                holder=holder,
                lease_s=lease_s,
                took_over=lost if is_held else 0,
            )
        case Release(fencing_number=fencing_number):
            if lock is None or not lock.is_held or lock.fencing_number != fencing_number:
                raise LockLostError(ref.scope, ref.lock_id, fencing_number, "it was taken over")
            return Released(
                scope=ref.scope,
                lock=ref.lock_id,
                at=stamp.at,
                by=stamp.by,
                trace=stamp.trace,
                fencing_number=fencing_number,
            )


def _words(event: LockEvent) -> str:
    match event:
        case Acquired(holder=holder, took_over=0):
            return f"by {holder}"
        case Acquired(holder=holder, took_over=number):
            return f"by {holder}, taken over from {number}"
        case Released(fencing_number=number):
            return f"of {number}"


def _check(before: Lock | None, event: LockEvent, stream_sequence: int) -> Iterator[Broken]:
    """Decide the command of the event again; the result must be the same event."""
    ref = LockRef(scope=event.scope, lock_id=event.lock)
    command: LockCommand
    if isinstance(event, Acquired):
        command = Acquire(holder=event.holder, lease_s=event.lease_s, lost=event.took_over)
    else:
        command = Release(fencing_number=event.fencing_number)
    kind = LOCK.type_of(event)
    try:
        decided = decide(ref, before, command, Stamp(at=event.at, by=event.by, trace=event.trace))
    except RefusedError as error:
        yield "transition", f"`{kind}` was accepted, although {error}"
    else:
        if msgspec.structs.replace(decided, prev=event.prev) != event:
            yield "transition", f"`{kind}` is not what follows on the lock as it was"
    if isinstance(event, Acquired) and before is not None and stream_sequence <= before.fencing_number:
        yield "epoch", f"fencing number {stream_sequence} follows {before.fencing_number}: they must grow"


def _keeps(event: LockEvent, stream_sequence: int) -> ArchiveBound | None:
    """Keep a lock that is held; the whole chain of a free lock may go."""
    if isinstance(event, Released):
        return None
    what = (
        f"lock {event.scope}/{event.lock}, which {event.holder} holds since stream sequence {stream_sequence}"
    )
    return ArchiveBound(stream_sequence, what, while_lives=event.holder)


LOCK: Aggregate[LockEvent, Lock] = Aggregate(
    "lock", ("scope", "lock"), LockEvent, state=Lock, evolve=evolve, words=_words, check=_check, keeps=_keeps
)
