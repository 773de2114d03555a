"""The state as of a past moment: which moment that is in this ledger, and what a job was then."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

import msgspec

from jobledger.admin.errors import JobNotYetError
from jobledger.admin.rows import Rows, View
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.times import time_text
from jobledger.projections import Moment, moment_of, refuse_archived


class AsOf(msgspec.Struct, frozen=True, kw_only=True):
    """A moment as somebody names it; one of the two is given."""

    at: datetime | None = None  #: by the clock of the server
    stream_sequence: int | None = None  #: after this event; 0 is before the first

    async def moment(self, log: Log, clock: Clock) -> Moment:
        """Return the moment in this ledger. Raises: MomentAheadError, MomentArchivedError, UnreachableError."""
        found = await moment_of(log, at=self.at, stream_sequence=self.stream_sequence, clock=clock)
        await refuse_archived(log, found.stream_sequence)
        return found


def moment_words(then: Moment) -> str:
    """Return a moment in words: `as of stream sequence 7`."""
    place = f"stream sequence {then.stream_sequence:,}" if then.stream_sequence else "before the first event"
    return f"as of {place}" if then.at is None else f"as of {time_text(then.at)} ({place})"


@contextlib.asynccontextmanager
async def viewed(rows: Rows, past: AsOf | None) -> AsyncGenerator[tuple[View, Moment | None], None]:
    """Open the rows as of a past moment, else the projection brought up to date; give that moment, too.

    Raises: MomentAheadError, MomentArchivedError, ProjectionError, UnreachableError.
    """
    ledger = rows.ledger
    then = await past.moment(ledger.log, ledger.clock) if past is not None else None
    async with rows.opened(then) as view:
        yield view, then


def events_until(history: Sequence[StoredEvent], then: Moment) -> list[StoredEvent]:
    """Return a job's events up to a moment.

    Raises: JobNotYetError when it had none.
    """
    found = [stored for stored in history if stored.stream_sequence <= then.stream_sequence]
    if not found:
        first = history[0]
        raise JobNotYetError(
            f"job {first.event.job} was not there yet {moment_words(then)}: it came at stream sequence "
            f"{first.stream_sequence}, {time_text(first.stored_at)}"
        )
    return found
