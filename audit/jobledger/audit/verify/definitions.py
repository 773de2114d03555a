"""The definitions of limits in force at a stream sequence: an archive run records them, and a check compares them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.limits.definition import LIMIT, LimitEvent, LimitSet
from jobledger.ledger.model.reactor import LimitInForce

#: The most bytes of all definitions together: the event that records them must fit a message.
_BYTES_MAX: Final = 256 << 10
_UNKNOWN_TIME: Final = datetime.min.replace(tzinfo=UTC)


class Definitions:
    """The definitions of limits in a range, each in its stored bytes: one for each limit, and its changes."""

    def __init__(self) -> None:
        self._told: dict[str, list[tuple[int, LimitInForce | None]]] = {}  # None: removed

    def feed(self, event: LimitEvent, message: Message) -> None:
        """Take in the next event about a limit."""
        sequence, said = message.stream_sequence, None
        if isinstance(event, LimitSet):
            said = LimitInForce(limit=event.limit, sequence=sequence, event=msgspec.Raw(message.data))
        self._told.setdefault(event.limit, []).append((sequence, said))

    def precede(self, limits: Sequence[LimitInForce]) -> None:
        """Take in what was in force before the range."""
        for each in limits:
            self._told.setdefault(each.limit, []).insert(0, (each.sequence, each))

    def at(self, sequence: int) -> tuple[LimitInForce, ...]:
        """Return what was in force after a stream sequence, in the order of the limits' names."""
        found = (_newest(told, sequence) for _, told in sorted(self._told.items()))
        return tuple(each for each in found if each is not None)

    def forget(self, sequence: int) -> None:
        """Forget definitions that were replaced up to a stream sequence."""
        for told in self._told.values():
            del told[: max(0, _place(told, sequence) - 1)]


def _place(told: list[tuple[int, LimitInForce | None]], sequence: int) -> int:
    return bisect_right(told, sequence, key=lambda each: each[0])


def _newest(told: list[tuple[int, LimitInForce | None]], sequence: int) -> LimitInForce | None:
    place = _place(told, sequence)
    return told[place - 1][1] if place else None


def fitting(limits: tuple[LimitInForce, ...]) -> tuple[LimitInForce, ...] | None:
    """Return the limits if they fit one event, None otherwise: then a check does not prove `above` from there on."""
    return limits if sum(len(bytes(each.event)) for each in limits) <= _BYTES_MAX else None


def decoded(limit: LimitInForce) -> LimitEvent:
    """Return the event that was in force. Raises: CorruptLedgerError for one of a newer version."""
    data, sequence = bytes(limit.event), limit.sequence
    return LIMIT.decode(Message(data=data, stream_sequence=sequence, stored_at=_UNKNOWN_TIME))
