"""Event <-> bytes: the only place that knows the wire form of a job's event.

One JSON object per event, fields in the order of their definition. The hash chain is over these bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from jobledger.ledger.model.errors import InvalidInputError, MalformedEventError, UnknownEventError
from jobledger.ledger.model.events import EVENT_TYPES, Completed, JobEvent, Queued, Started

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[JobEvent] = msgspec.json.Decoder(JobEvent)


class _Tag(msgspec.Struct):
    type: str = ""


_tag_decoder: msgspec.json.Decoder[_Tag] = msgspec.json.Decoder(_Tag)


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the log holds at one stream sequence, whatever aggregate it is about.

    An event of a job comes as `StoredEvent`; another one is read by who knows its aggregate, from `data`.
    """

    data: bytes  #: exactly as stored
    stream_sequence: int
    stored_at: datetime  #: the server's clock, UTC; this one orders
    subject: str = ""  #: under which it is stored; every Log fills it in

    @property
    def hash(self) -> str:
        """The hex sha256 of the stored bytes: the next event's `prev`."""
        return digest(self.data)


class StoredEvent(Message, frozen=True, kw_only=True, gc=False):
    """A job's event as the log holds it."""

    event: JobEvent


def encode(event: JobEvent) -> bytes:
    """Return the bytes of `event`; at most one call per append, since `prev` must be in it.

    Raises: InvalidInputError for what no reader could read again; nothing else has a place to be refused later.
    """
    try:
        data = _encoder.encode(event)
        kind = type(event)
        if kind is not Started and kind is not Completed and not _is_first_dispatch(event):
            _decoder.decode(data)
    except UnicodeEncodeError as error:
        message = f"a text of the event for job {event.job!a} holds half a surrogate pair: replace it before recording"
        raise InvalidInputError(message) from error
    except (TypeError, OverflowError, msgspec.MsgspecError) as error:
        message = f"a value of the event for job {event.job!a} cannot be recorded: {error}"
        raise InvalidInputError(message) from error
    return data


def _is_first_dispatch(event: JobEvent) -> bool:
    """Whether every value was made or checked by us, as those of `started` and `completed` are.

    These, the most frequent, are spared a microsecond. The others hold words and numbers as users gave them, of
    types that nobody checked. One that cannot be read would stop every reader of the ledger, for good.
    """
    return isinstance(event, Queued) and event.cause == "new"


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


_T = TypeVar("_T")


def decode_message(
    decoder: msgspec.json.Decoder[_T], message: Message, noun: str, types: Collection[str]
) -> _T:
    """Return the event of another aggregate in a message; `noun` is what its events are called in a sentence.

    Raises: UnknownEventError for a type that is not among `types`, MalformedEventError for anything else.
    """
    try:
        return decoder.decode(message.data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        sequence, tag = message.stream_sequence, _read_tag(message.data)
        where = {"stream_sequence": sequence, "next_sequence": sequence + 1}
        if tag and tag not in types:
            sentence = (
                f"{noun} {tag!r} at stream sequence {sequence} is not known: read it with a newer jobledger"
            )
            raise UnknownEventError(sentence, **where) from error
        sentence = f"what is stored at stream sequence {sequence} is no {noun}: {error}"
        raise MalformedEventError(sentence, **where) from error


def _read_tag(data: bytes) -> str:
    try:
        return _tag_decoder.decode(data).type
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return ""


def digest(data: bytes) -> str:
    """Return the hex sha256 of stored bytes."""
    return hashlib.sha256(data).hexdigest()


_DIGEST: Final = re.compile(r"[0-9a-f]{64}", flags=re.ASCII)


def is_digest(name: str) -> bool:
    """Return whether `name` is a sha256 as we write them: nothing else may become the name of a file."""
    return _DIGEST.fullmatch(name) is not None
