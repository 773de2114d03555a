"""Every fact a lock can have, what they add up to, and what may follow: `LockEvent`, `evolve`, `decide`. Pure.

A lock is an aggregate of its own, with a chain of its own. Each of its events says the whole state, so the newest
one *is* the state: however often a lock was used, looking at it reads one event. Released fields never change type,
meaning or name, as those of jobs. Source: ADR 007.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from jobledger.ledger.model.codec import Message, decode_message, digest
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import LockHeldError, LockLostError
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.subjects import LockRef, Names


def _version() -> int:
    # A factory, because omit_defaults leaves out plain defaults, and the version is always written.
    return 1


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """What every fact about a lock carries."""

    v: int = msgspec.field(default_factory=_version)  #: version of the event's form
    scope: str  #: what kind of thing is locked: "account", "document", "global"
    lock: str  #: lock id within the scope
    at: datetime  #: UTC, microseconds, the appender's clock; the server's timestamp is the one that orders
    by: str  #: who appended it: `<host>-<pid>-<random>`
    trace: str = ""  #: W3C traceparent of the caller
    prev: str = msgspec.field(
        default_factory=str
    )  #: sha256 of the lock's previous event as stored, "" for the first


class Acquired(_Envelope, frozen=True, kw_only=True, tag="acquired", gc=False):
    """A process got the lock. The stream sequence of this event is the fencing number."""

    holder: str  #: whose lease keeps the lock: `<host>-<pid>-<random>`
    lease_s: float  #: how long after its last renewal the holder may still be at work
    took_over: int = 0  #: fencing number of the holder whose lease was over; 0: the lock was free


class Released(_Envelope, frozen=True, kw_only=True, tag="released", gc=False):
    """The holder gave the lock back."""

    fencing_number: int  #: which acquisition this ends


LockEvent = Acquired | Released

LOCK_EVENT_CLASSES: tuple[type[LockEvent], ...] = (Acquired, Released)
LOCK_EVENT_TYPES: tuple[str, ...] = tuple(str(cls.__struct_config__.tag) for cls in LOCK_EVENT_CLASSES)

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[LockEvent] = msgspec.json.Decoder(LockEvent)


def lock_event_type(event: LockEvent) -> str:
    """Return the event's tag as written on the wire: `acquired`, `released`."""
    return str(event.__struct_config__.tag)


def decode_lock_event(message: Message) -> LockEvent:
    """Return the event in a message of a lock's chain.

    Raises: UnknownEventError for a type of a newer version, MalformedEventError for anything else.
    """
    return decode_message(_decoder, message, "lock event", LOCK_EVENT_TYPES)


class Lock(msgspec.Struct, frozen=True, gc=False):
    """A lock after its newest event."""

    holder: str  #: "" when it is free
    fencing_number: int  #: of the newest acquisition, whether or not it lasts
    lease_s: float = 0.0  #: of the holder; 0 when it is free

    @property
    def is_held(self) -> bool:
        """Whether nobody gave it back since it was acquired last; its holder may be gone all the same."""
        return bool(self.holder)


def evolve(event: LockEvent, stream_sequence: int) -> Lock:
    """Return the lock after `event`, whatever came before it."""
    match event:
        case Acquired(holder=holder, lease_s=lease_s):
            return Lock(holder, stream_sequence, lease_s)
        case Released(fencing_number=fencing_number):
            return Lock("", fencing_number)


class Acquire(msgspec.Struct, frozen=True, kw_only=True):
    """Take the lock, or take it over from a holder whose lease is over."""

    holder: str
    lease_s: float
    lost: int = 0  #: fencing number of the holder that was found gone; 0: nobody was


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Give the lock back."""

    fencing_number: int


LockCommand = Acquire | Release


def decide(ref: LockRef, lock: Lock | None, command: LockCommand, stamp: Stamp) -> LockEvent:
    """Return the event that follows from a command.

    Raises: LockHeldError for a lock whose holder was not found gone; LockLostError for giving back what another
        holds by now, or nobody.
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


class LockView(msgspec.Struct, frozen=True, gc=False):
    """A lock and the place in the log where its next event must follow."""

    lock: Lock | None = None  #: None: nobody ever took it
    last_sequence: int = 0
    last_data: bytes = b""


def view_of(message: Message | None) -> LockView:
    """Return what the newest message of a lock's chain says; None where there is none."""
    if message is None:
        return LockView()
    lock = evolve(decode_lock_event(message), message.stream_sequence)
    return LockView(lock, message.stream_sequence, message.data)


def seal(view: LockView, event: LockEvent, names: Names) -> Entry:
    """Link `event` to its chain, and make it ready to append on condition that nothing came between."""
    ref = LockRef(scope=event.scope, lock_id=event.lock)
    linked = msgspec.structs.replace(event, prev=digest(view.last_data) if view.last_data else "")
    subject = names.lock_event(ref, lock_event_type(event))
    return Entry(subject, _encode(linked), names.lock_chain(ref), view.last_sequence)


def advance(entry: Entry, event: LockEvent, stream_sequence: int) -> LockView:
    """Return the view after a sealed event was accepted."""
    return LockView(evolve(event, stream_sequence), stream_sequence, entry.data)
