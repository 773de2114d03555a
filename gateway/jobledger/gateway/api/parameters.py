"""Parameters that several endpoints share: a moment of the past, a page of a list, a reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

from jobledger.admin.past import AsOf
from jobledger.gateway.problems import ProblemError

PAGE_MAX: Final = 500
_SEQUENCE = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
#: The reason of an act.
Text = Annotated[str, msgspec.Meta(max_length=2_000)]


class Past(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A moment of the past; the present if neither field is given."""

    at: datetime | None = None  #: moment by the clock of the server, RFC 3339
    sequence: _SEQUENCE | None = None  #: stream sequence of the last event before the moment

    def as_of(self) -> AsOf | None:
        """Return the moment, None for the present. Raises: ProblemError."""
        if self.at is not None and self.sequence is not None:
            raise ProblemError("BAD_REQUEST", "at and sequence both name a moment: give one of them")
        if self.at is None and self.sequence is None:
            return None
        return AsOf(at=aware("at", self.at), stream_sequence=self.sequence)


class Look(Past, frozen=True, kw_only=True):
    """The moment that a list shows."""

    min_sequence: _SEQUENCE = 0  #: wait until the list has this event, so that a client finds its own write


class WithReason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason of an act."""

    reason: Text = ""  #: stored in the ledger with the actor


def aware(name: str, at: datetime | None) -> datetime | None:
    """Return a given time in UTC. Raises: ProblemError for a time without a zone, or out of UTC's range."""
    if at is None:
        return None
    if at.tzinfo is None:
        raise ProblemError("BAD_REQUEST", f"{name} has no time zone: end it with Z or +02:00")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ProblemError(
            "BAD_REQUEST", f"{name} lies outside the years 1 to 9999 in UTC: choose another"
        ) from error
