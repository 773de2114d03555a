"""The part of a check that is about the times at which the server stored the events.

The server keeps these times beside the events: no hash or seal covers them. So the check compares each with the
event's own time, which is hashed, and with its neighbours. A difference is a notice, not a violation: clocks jump.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.ledger.model.codec import Message, StoredEvent

#: A greater difference between the server's time of storing and the event's own time gives a notice.
APART_MAX: Final = timedelta(hours=1)
_NONE: Final = timedelta()


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How the server's times of storing fit the events."""

    apart_s: float = 0.0  #: the greatest difference from an event's own time, either way
    apart_sequence: int = 0  #: stream sequence of that event; 0 without any
    back_s: float = 0.0  #: the greatest step back from one event to the next
    back_sequence: int = 0  #: stream sequence of the event whose time goes back; 0 without any

    def text(self) -> str:
        """Return the greatest difference for a person; "" if nothing was measured."""
        if not self.apart_sequence:
            return ""
        return f"the server's and the events' own are {said(self.apart_s)} apart at most, at {self.apart_sequence:,}"

    def notices(self) -> Iterator[str]:
        """Yield a notice for each difference that a person should see."""
        if self.apart_s > APART_MAX.total_seconds():
            yield (
                f"the server's time of stream sequence {self.apart_sequence:,} and the event's own are "
                f"{said(self.apart_s)} apart: a clock was wrong, the ledger was restored from an export, or "
                "somebody altered it"
            )
        if self.back_sequence:
            yield (
                f"the server's time goes back by {said(self.back_s)} at stream sequence {self.back_sequence:,}: its "
                "clock was set, another server took over, or somebody altered it"
            )


class StoredTimes:
    """The measurement of these times while events are read in stream order: two comparisons an event."""

    def __init__(self) -> None:
        self._apart, self._apart_sequence = _NONE, 0
        self._back, self._back_sequence = _NONE, 0
        self._newest: datetime | None = None

    def feed(self, message: Message) -> None:
        """Take the next event."""
        stored_at = message.stored_at
        at = message.event.at if isinstance(message, StoredEvent) else own_time(message.data)
        if at is not None and at.tzinfo is not None:
            apart = abs(stored_at - at)
            if apart > self._apart or not self._apart_sequence:
                self._apart, self._apart_sequence = apart, message.stream_sequence
        newest = self._newest
        if newest is not None and stored_at < newest and newest - stored_at > self._back:
            self._back, self._back_sequence = newest - stored_at, message.stream_sequence
        self._newest = stored_at

    @property
    def found(self) -> Times:
        """The greatest differences so far."""
        return Times(
            apart_s=self._apart.total_seconds(),
            apart_sequence=self._apart_sequence,
            back_s=self._back.total_seconds(),
            back_sequence=self._back_sequence,
        )


class _TimedEvent(msgspec.Struct):
    at: datetime


_decode: Final = msgspec.json.Decoder(_TimedEvent).decode


def own_time(data: bytes) -> datetime | None:
    """Return the time in an event's own bytes; None if there is none."""
    try:
        return _decode(data).at
    except (msgspec.MsgspecError, UnicodeError):
        return None  # the checker reports it


def said(seconds: float) -> str:
    """Return a time span that may be microseconds or years, in the unit that fits."""
    for size, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds * 1_000_000:.0f} µs"
