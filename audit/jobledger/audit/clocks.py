"""Which of an event's two times a person is shown: the server's time of storing it, or its own.

The server's times are in order, and of one clock: they are shown as long as both agree. Where they differ by more
than seconds, as after a restore, the events' own are shown: hashes cover these, and not the server's. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, Literal

import msgspec

from jobledger.audit.verify.times import own_time, said
from jobledger.ledger.model.codec import Message, StoredEvent

#: Synchronized clocks of machines differ by less.
APART_MAX: Final = timedelta(seconds=5)


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """The times of some events, all by one clock."""

    of: Literal["server", "events"]
    times: tuple[datetime, ...]  #: the time of each event, in their order
    apart_s: float  #: the greatest difference between an event's two times

    def text(self) -> str:
        """Return whose times these are, for a person."""
        if self.of == "events":
            return f"times are the events' own, UTC; the server's differ by up to {said(self.apart_s)}"
        if self.apart_s <= APART_MAX.total_seconds():
            return "times are the server's, UTC"
        apart = f"the events' own differ by up to {said(self.apart_s)}, and go back"
        return f"times are the server's, UTC; {apart}, so some clock was wrong"


def clocks_of(messages: Sequence[Message]) -> Clocks:
    """Return the times to be shown for one chain's events, given in stream order."""
    stored = tuple(each.stored_at for each in messages)
    own = tuple(_own(each) for each in messages)
    apart = max((abs(one - other) for one, other in zip(own, stored, strict=True)), default=timedelta())
    goes_back = any(before - after > APART_MAX for before, after in pairwise(own))
    by_events = apart > APART_MAX and not goes_back
    return Clocks(
        of="events" if by_events else "server",
        times=own if by_events else stored,
        apart_s=apart.total_seconds(),
    )


def _own(message: Message) -> datetime:
    at = message.event.at if isinstance(message, StoredEvent) else own_time(message.data)
    return message.stored_at if at is None or at.tzinfo is None else at
