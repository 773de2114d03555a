"""What every fact in the ledger carries, whatever it is about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

#: The absence of a JSON value; told from a stored `null` by identity, and never written.
NO_VALUE: Final = msgspec.Raw(b"")

#: The version of the form of events that this program writes. It reads no higher one, whose meaning it cannot know.
VERSION: Final = 1
#: What an event may say: whatever reads the ledger, in any language or table, can hold these and no more.
WHOLE_MAX: Final = 2**63 - 1
TIME_MIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MAX: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
#: A whole number of an event, from 0; and one that may be below 0, as a sum of durations by a clock that was set back.
Whole = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_MAX)]
Signed = Annotated[int, msgspec.Meta(ge=-WHOLE_MAX, le=WHOLE_MAX)]
#: A time of an event: with a zone, from `TIME_MIN` to `TIME_MAX`; the decoder proves the zone, the codec the years.
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def _version() -> int:
    # A factory, because omit_defaults leaves out plain defaults, and the version is always written.
    return VERSION


class Envelope(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """The fields that every event has.

    `gc=False` here and in the records built from events: they hold only plain values, so no cycle can run
    through them, and the collector need not visit millions of them.
    """

    v: Whole = msgspec.field(default_factory=_version)  #: version of the event's form
    at: Moment  #: UTC, microseconds, the appender's clock; the server's timestamp is the one that orders
    by: str  #: who appended it: `<host>-<pid>-<random>`, or an operator's name
    trace: str = ""  #: W3C traceparent of the caller
    prev: str = msgspec.field(
        default_factory=str
    )  #: sha256 of the chain's previous event as stored, "" for the first
