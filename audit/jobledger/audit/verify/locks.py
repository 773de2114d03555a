"""The part of a check that is about locks: their chains, and that nobody got one that another held.

A lock's event says the lock's whole state, and what may follow is decided again with `lock_events.decide`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from jobledger.audit.verify.book import Book, Form
from jobledger.audit.verify.rules import Broken
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import CorruptLedgerError, RefusedError
from jobledger.ledger.model.lock import (
    Acquire,
    Acquired,
    Lock,
    LockCommand,
    LockEvent,
    Release,
    decide,
    decode_lock_event,
    evolve,
    lock_event_type,
)
from jobledger.ledger.model.subjects import LockRef, Names, is_token


class _Known(msgspec.Struct, frozen=True, gc=False):
    """A lock after its newest event, that event's hash and its place."""

    lock: Lock
    digest: bytes
    age: int  #: stream sequence of that event


_BYTES: Final = 320
_encode: Final = msgspec.json.Encoder().encode
_decoder: Final[msgspec.json.Decoder[_Known]] = msgspec.json.Decoder(_Known)
_RECORDS: Final[Form[_Known]] = Form(
    weigh=lambda _: _BYTES,
    age=lambda known: known.age,
    is_live=lambda _: True,
    write=_encode,
    read=lambda _, data: _decoder.decode(data),
)


class LockChains:
    """Every lock seen so far, in a book with a bound."""

    def __init__(self, names: Names, *, from_start: bool, memory_bytes_max: int | None) -> None:
        self._names = names
        self._from_start = from_start  # the check began at sequence 1: a chain it does not know has no past
        self._locks = Book(_RECORDS, memory_bytes_max)

    def close(self) -> None:
        """Let go of what was put aside."""
        self._locks.close()

    def __len__(self) -> int:
        """Return the number of locks seen."""
        return len(self._locks)

    def feed(self, message: Message, digest: bytes, *, archived_through: int = 0) -> Iterator[Broken]:
        """Take in the next event of a lock, and tell what is wrong with it.

        A lock all of whose events were archived, up to `archived_through`, begins anew.
        """
        try:
            event = decode_lock_event(message)
        except CorruptLedgerError as error:
            yield "readable", str(error)
            return
        ref = LockRef(scope=event.scope, lock_id=event.lock)
        if not (is_token(event.scope) and is_token(event.lock)):
            yield "subject", "scope and lock cannot both be tokens of a subject"
        if message.subject != self._names.lock_event(ref, lock_event_type(event)):
            yield "subject", f"it is stored as {message.subject!r}, its own fields say otherwise"
        chain = f"{event.scope}/{event.lock}"
        known = self._locks.get(chain)
        is_anew = known is not None and not event.prev and known.age <= archived_through
        if not is_anew:
            yield from self._check_link(known, event)
        if known is not None or self._from_start or not event.prev:
            before = None if known is None or is_anew else known.lock
            yield from _check_transition(ref, before, event)
        if known is not None and isinstance(event, Acquired):
            number = known.lock.fencing_number
            if message.stream_sequence <= number:
                yield "epoch", f"fencing number {message.stream_sequence} follows {number}: they must grow"
        after = _Known(evolve(event, message.stream_sequence), digest, message.stream_sequence)
        if known is None:
            self._locks.add(chain, after)
        else:
            self._locks.replace(chain, after)

    def _check_link(self, known: _Known | None, event: LockEvent) -> Iterator[Broken]:
        if known is not None and event.prev != known.digest.hex():
            yield "chain", f"it follows {event.prev!a}, the event before it has the hash {known.digest.hex()}"
        if known is None and event.prev and self._from_start:
            yield "chain", f"it follows {event.prev!a}, and no event of its lock is before it"


def lock_name(subject: str) -> str:
    """Return what a report calls the lock of a stored event: `lock <scope>/<id>`."""
    tokens = subject.split(".")
    return f"lock {'/'.join(tokens[2:4])}"


def _check_transition(ref: LockRef, lock: Lock | None, event: LockEvent) -> Iterator[Broken]:
    """Decide again what the event says was decided; it must come out the same."""
    command: LockCommand
    if isinstance(event, Acquired):
        command = Acquire(holder=event.holder, lease_s=event.lease_s, lost=event.took_over)
    else:
        command = Release(fencing_number=event.fencing_number)
    try:
        decided = decide(ref, lock, command, Stamp(at=event.at, by=event.by, trace=event.trace))
    except RefusedError as error:
        yield "transition", f"`{lock_event_type(event)}` was accepted, although {error}"
        return
    if msgspec.structs.replace(decided, prev=event.prev) != event:
        yield "transition", f"`{lock_event_type(event)}` is not what follows on the lock as it was"
