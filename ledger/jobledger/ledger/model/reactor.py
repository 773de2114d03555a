"""Every fact a reactor records about itself: `ReactorEvent`, and how it is read, linked and addressed. Pure.

A reactor that appends facts of its own has a chain, `ledger.reactor.<name>.>`, linked by hashes as a job's is. Each
event says all that the next one builds on, so the newest one is the reactor's state. Released fields never change
type, meaning or name.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.model.codec import Message, decode_message, digest
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.subjects import Names

SEALS: Final = "seals"  #: the reactor that signs ranges of the ledger
ARCHIVE: Final = "archive"  #: the reactor that moves old events into files


def _version() -> int:
    # A factory, because omit_defaults leaves out plain defaults, and the version is always written.
    return 1


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """What every fact about a reactor carries."""

    v: int = msgspec.field(default_factory=_version)  #: version of the event's form
    reactor: str  #: whose chain it is in
    at: datetime  #: UTC, microseconds, the appender's clock; the server's timestamp is the one that orders
    by: str  #: who appended it: `<host>-<pid>-<random>`, or an operator's name
    prev: str = msgspec.field(
        default_factory=str
    )  #: sha256 of the reactor's previous event as stored, "" for the first


class SealRecorded(_Envelope, frozen=True, kw_only=True, tag="sealed", gc=False):
    """A range of the ledger as one signed number: whoever kept it can tell a ledger that is not what it was."""

    from_sequence: int  #: of the range; the one after the previous seal's last
    to_sequence: int  #: of the range, inclusive
    merkle_root: str  #: hex; over the sha256 of each event of the range as stored, in stream order
    head_hash: str  #: hex sha256 of the event at `to_sequence`
    previous_root: str = (
        ""  #: hex; the previous seal's `merkle_root`, so that one seal vouches for all before it
    )
    key: str  #: hex sha256 of the public key's 32 bytes
    signature: str  #: hex Ed25519 signature


class Archived(_Envelope, frozen=True, kw_only=True, tag="archived", gc=False):
    """Everything up to a sequence lies in an export, and may be gone from the stream."""

    through_sequence: int  #: the last one that was moved
    manifest_sha256: str  #: hex; of the export's manifest as written
    head_hash: str  #: hex sha256 of the event at `through_sequence`
    digest: str  #: of all events of the export, as its manifest has it
    count: int  #: events in the export
    folder: str = ""  #: of the archive, as `<host>:<path>` where the run saw it; for people alone


class CountedTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What happened to the jobs of a task in a queue."""

    queue: str
    task: str
    counts: tuple[int, ...]  #: one number per name in `columns`, in their order


class CountedFailure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How often a type of error ended an attempt or a job."""

    queue: str
    task: str
    error_type: str
    counts: tuple[int, ...]  #: one number per name in `failure_columns`, in their order


class CountedJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When a carried job began, by the server's clock, which its `carried` event cannot tell."""

    queue: str
    job: str
    first_us: int  #: its first event; microseconds since 1970
    since_us: int  #: the event that began its present state or attempt; microseconds since 1970


class Counted(_Envelope, frozen=True, kw_only=True, tag="counted", gc=False):
    """A part of all that was counted up to a sequence, so that counters go on where their beginning was archived.

    All parts of one count come one after the other, right before the `archived` event of the same run.
    """

    archive_through: int  #: `through_sequence` of that `archived` event
    through_sequence: int  #: the newest event that is counted
    begins_at: int  #: the oldest event that is counted; above 1 where an earlier count is missing
    part: int  #: from 1
    parts: int  #: how many there are of this count
    columns: tuple[str, ...] = ()  #: what is counted by task; durations in microseconds
    totals: tuple[CountedTask, ...] = ()  #: the one that came first in the ledger first
    failure_columns: tuple[str, ...] = ()  #: what is counted by type of error
    failures: tuple[CountedFailure, ...] = ()  #: as `totals`
    jobs: tuple[CountedJob, ...] = ()  #: carried jobs that are not over


ReactorEvent = SealRecorded | Archived | Counted

REACTOR_EVENT_CLASSES: tuple[type[ReactorEvent], ...] = (SealRecorded, Archived, Counted)
REACTOR_EVENT_TYPES: tuple[str, ...] = tuple(str(cls.__struct_config__.tag) for cls in REACTOR_EVENT_CLASSES)

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[ReactorEvent] = msgspec.json.Decoder(ReactorEvent)


def reactor_event_type(event: ReactorEvent) -> str:
    """Return the event's tag as written on the wire: `sealed`, `archived`."""
    return str(event.__struct_config__.tag)


def decode_reactor_event(message: Message) -> ReactorEvent:
    """Return the event in a message of a reactor's chain.

    Raises: UnknownEventError for a type of a newer version, MalformedEventError for anything else.
    """
    return decode_message(_decoder, message, "reactor event", REACTOR_EVENT_TYPES)


def seal_reactor_event(event: ReactorEvent, last: Message | None, names: Names) -> Entry:
    """Link a reactor's next event to its newest one, and make it ready to append on that condition."""
    linked = msgspec.structs.replace(event, prev=digest(last.data) if last is not None else "")
    return Entry(
        names.reactor_event(event.reactor, reactor_event_type(event)),
        _encode(linked),
        names.reactor_chain(event.reactor),
        last.stream_sequence if last is not None else 0,
    )
