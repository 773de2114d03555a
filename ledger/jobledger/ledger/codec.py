"""Event <-> bytes: the only place that knows the wire form of an event.

One JSON object per event, fields in the order of their definition. The hash chain is over these bytes.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from jobledger.ledger.errors import InvalidInputError, MalformedEventError, UnknownEventError
from jobledger.ledger.events import EVENT_TYPES, JobEvent

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[JobEvent] = msgspec.json.Decoder(JobEvent)


class _Tag(msgspec.Struct):
    type: str = ""


_tag_decoder: msgspec.json.Decoder[_Tag] = msgspec.json.Decoder(_Tag)


class Stored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event as the log holds it."""

    event: JobEvent
    data: bytes  #: exactly as stored
    stream_sequence: int
    stored_at: datetime  #: the server's clock, UTC; this one orders
    subject: str = ""  #: under which it is stored; every Log fills it in

    @property
    def hash(self) -> str:
        """The hex sha256 of the stored bytes: the next event's `prev`."""
        return digest(self.data)


def encode(event: JobEvent) -> bytes:
    """Return the bytes of `event`; at most one call per append, since `prev` must be in it.

    Raises: InvalidInputError for a text that UTF-8 cannot hold; nothing else has a place to be refused later.
    """
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError as error:
        message = f"a text of the event for job {event.job!a} holds half a surrogate pair: replace it before recording"
        raise InvalidInputError(message) from error


def decode(data: bytes, *, stream_sequence: int = 0) -> JobEvent:
    """Return the event in `data`; `stream_sequence` only serves the error's sentence.

    Raises: UnknownEventError for a type of a newer version, MalformedEventError for anything else.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        tag = _read_tag(data)
        if tag and tag not in EVENT_TYPES:
            message = (
                f"event {tag!r} at stream sequence {stream_sequence} is not known to this version: "
                "read this ledger with a newer jobledger"
            )
            raise UnknownEventError(
                message, stream_sequence=stream_sequence, next_sequence=stream_sequence + 1
            ) from error
        message = f"the message at stream sequence {stream_sequence} is not an event of this ledger: {error}"
        raise MalformedEventError(
            message, stream_sequence=stream_sequence, next_sequence=stream_sequence + 1
        ) from error


def _read_tag(data: bytes) -> str:
    try:
        return _tag_decoder.decode(data).type
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return ""


def digest(data: bytes) -> str:
    """Return the hex sha256 of stored bytes."""
    return hashlib.sha256(data).hexdigest()
