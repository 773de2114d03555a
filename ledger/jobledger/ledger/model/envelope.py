"""What every fact in the ledger carries, whatever it is about."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

#: The absence of a JSON value; told from a stored `null` by identity, and never written.
NO_VALUE: Final = msgspec.Raw(b"")


def _version() -> int:
    # A factory, because omit_defaults leaves out plain defaults, and the version is always written.
    return 1


class Envelope(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """The fields that every event has.

    `gc=False` here and in the records built from events: they hold only plain values, so no cycle can run
    through them, and the collector need not visit millions of them.
    """

    v: int = msgspec.field(default_factory=_version)  #: version of the event's form
    at: datetime  #: UTC, microseconds, the appender's clock; the server's timestamp is the one that orders
    by: str  #: who appended it: `<host>-<pid>-<random>`, or an operator's name
    trace: str = ""  #: W3C traceparent of the caller
    prev: str = msgspec.field(
        default_factory=str
    )  #: sha256 of the chain's previous event as stored, "" for the first
