"""The part of a check that is about every aggregate but jobs: their chains, and the rules that each declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from jobledger.audit.verify.links import broken_link
from jobledger.audit.verify.store import Form, RecordStore
from jobledger.ledger.model.aggregate import Aggregate, Broken
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.subjects import Names, is_token

_BYTES: Final = 320  # size of a record in memory, about


class _ChainEnd(msgspec.Struct, frozen=True, gc=False):
    """A chain after its newest event, that event's hash and its place."""

    state: Any
    digest: bytes
    age: int  #: stream sequence of that event


class Chains:
    """Every chain of one aggregate seen so far, in memory with a bound. Call `close`."""

    def __init__(
        self, aggregate: Aggregate[Any, Any], names: Names, *, from_start: bool, memory_bytes_max: int | None
    ) -> None:
        """Begin; `from_start`: the check begins at sequence 1, so a chain that is not known has no past."""
        self._of = aggregate
        self._names = names
        self._from_start = from_start
        self._known: RecordStore[_ChainEnd] = RecordStore(_records_of(aggregate), memory_bytes_max)

    def close(self) -> None:
        """Close the store of records, with its part on the disk."""
        self._known.close()

    def __len__(self) -> int:
        """Return the number of chains seen."""
        return len(self._known)

    def state_of(self, key: Sequence[str]) -> Any:
        """Return the state of a chain by the fields that name it, None for one that was not seen."""
        known = self._known.get("/".join(key))
        return None if known is None else known.state

    def feed(
        self, message: Message, digest: bytes, *, archived_through: int = 0
    ) -> tuple[Envelope | None, list[Broken]]:
        """Take in the next event of the aggregate; return it, None if it cannot be read, and what is wrong with it.

        A chain all of whose events were archived, up to `archived_through`, may begin again.
        """
        try:
            event: Envelope = self._of.decode(message)
        except CorruptLedgerError as error:
            return None, [("readable", str(error))]
        return event, list(self._check(event, message, digest, archived_through))

    def _check(
        self, event: Envelope, message: Message, digest: bytes, archived_through: int
    ) -> Iterator[Broken]:
        of, sequence = self._of, message.stream_sequence
        key = of.key_of(event)
        if event.at.tzinfo is None:
            yield "readable", "its time `at` has no zone"
        if not all(map(is_token, key)):
            yield "subject", f"{' and '.join(of.key)} cannot be words of a subject"
        if message.subject != of.subject(self._names, event):
            yield "subject", f"it is stored as {message.subject!r}, its own fields say otherwise"
        chain = "/".join(key)
        known = self._known.get(chain)
        begins_again = known is not None and not event.prev and known.age <= archived_through
        before = None if known is None or begins_again else known
        if not begins_again:
            yield from self._check_link(known, event)
        if of.check is not None and (known is not None or self._from_start or not event.prev):
            yield from of.check(None if before is None else before.state, event, sequence)
        state = of.evolve(None if before is None else before.state, event, sequence)
        after = _ChainEnd(state, digest, sequence)
        self._known.put(chain, after)

    def _check_link(self, known: _ChainEnd | None, event: Envelope) -> Iterator[Broken]:
        if known is None and not self._from_start:
            return
        before = None if known is None else known.digest
        problem = broken_link(event.prev, before, of=self._of.name, age=0 if known is None else known.age)
        if problem is not None:
            yield "chain", problem


def _records_of(aggregate: Aggregate[Any, Any]) -> Form[_ChainEnd]:
    decode_state = msgspec.json.Decoder(aggregate.state).decode
    decode: msgspec.json.Decoder[tuple[msgspec.Raw, bytes, int]]
    decode = msgspec.json.Decoder(tuple[msgspec.Raw, bytes, int])

    def decoded(_: bool, data: bytes) -> _ChainEnd:  # noqa: FBT001 - the form of every record
        state, digest, age = decode.decode(data)
        return _ChainEnd(decode_state(state), digest, age)

    return Form(
        weigh=lambda _: _BYTES,
        is_live=lambda _: True,
        encode=lambda known: msgspec.json.encode((known.state, known.digest, known.age)),
        decode=decoded,
    )
