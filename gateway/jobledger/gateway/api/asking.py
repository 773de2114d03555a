"""What several endpoints take in the same form: a moment of the past, and a reason."""

from __future__ import annotations

from datetime import datetime

import msgspec

from jobledger.admin.past import AsOf
from jobledger.gateway.problems import ProblemError


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of the past; the present where neither is given."""

    at: datetime | None = None  #: by the clock of the server, RFC 3339
    sequence: int | None = None  #: after this event of the ledger

    def as_of(self) -> AsOf | None:
        """Return the moment, None for the present. Raises: ProblemError."""
        if self.at is not None and self.sequence is not None:
            raise ProblemError("BAD_REQUEST", "at and sequence both name a moment: give one of them")
        if self.at is None and self.sequence is None:
            return None
        if self.at is not None and self.at.tzinfo is None:
            raise ProblemError("BAD_REQUEST", "at has no time zone: end it with Z or +02:00")
        return AsOf(at=self.at, stream_sequence=self.sequence)


class Reasoned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a person acts."""

    reason: str = ""  #: kept in the ledger with who acted
