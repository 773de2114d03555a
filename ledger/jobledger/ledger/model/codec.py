"""Event <-> bytes: the only place that knows the wire form of a job's event.

One JSON object per event, fields in the order of their definition. The hash chain is over these bytes.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar, cast, get_args

import msgspec

from jobledger.ledger.model.envelope import (
    TIME_MAX,
    TIME_MIN,
    VERSION,
    VERSION_RETRIED,
    VERSION_SEALED,
    WHOLE_MAX,
    Envelope,
    Event,
    Moment,
)
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    InvalidInputError,
    MalformedEventError,
    UnknownEventError,
)
from jobledger.ledger.model.events import (
    EVENT_CLASSES,
    EVENT_TYPES,
    Carried,
    Completed,
    Failed,
    JobEvent,
    Paused,
    Queued,
    Scheduled,
    Snoozed,
    Started,
    StepFailed,
    StepStarted,
)
from jobledger.ledger.model.seals import require_sealed
from jobledger.ledger.model.subjects import is_token

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[JobEvent] = msgspec.json.Decoder(JobEvent)
#: Events whose only time is `at`.
TIMELESS: Final = frozenset(EVENT_CLASSES) - {
    Scheduled,
    Failed,
    Paused,
    Snoozed,
    Carried,
    StepStarted,
    StepFailed,
}


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The content of the log at one stream sequence, of any aggregate.

    An event of a job comes as `StoredEvent`; code that knows another aggregate decodes its events from `data`.
    """

    data: bytes  #: exactly as stored
    stream_sequence: int
    stored_at: datetime  #: the server's clock, UTC; this one orders
    subject: str = ""  #: under which it is stored; every Log fills it in
    redacted: str = (
        ""  #: of an archived event whose values were taken out: hex sha256 of the bytes before that
    )

    @property
    def hash(self) -> str:
        """The hex sha256 of the stored bytes: the next event's `prev`. Of a redacted event: of the bytes it had."""
        return self.redacted or digest(self.data)

    @property
    def sha256(self) -> bytes:
        """The same as 32 bytes."""
        return bytes.fromhex(self.redacted) if self.redacted else hashlib.sha256(self.data).digest()


class Unreadable(Message, frozen=True, kw_only=True, gc=False):
    """A stored message that is no event: readers set it aside and go on.

    It is not counted as an event of any chain. Only the condition of the next append has to name its stream sequence.
    """

    why: str  #: one sentence


class StoredEvent(Message, frozen=True, kw_only=True, gc=False):
    """A job's event as the log holds it."""

    event: JobEvent


def encode(event: JobEvent) -> bytes:
    """Return the bytes of `event`, whose `prev` must be set: so at most one call per append.

    Raises: InvalidInputError for an event that no reader could read again; no later code could refuse it.
    """
    kind = type(event)
    if event.key and kind is not Started:  # that has no values
        require_sealed(event)
    try:
        data = _encoder.encode(event)
        if kind is not Started and kind is not Completed and not _is_plain_dispatch(event):
            _within_bounds(_decoder.decode(data))
        elif not TIME_MIN <= event.at <= TIME_MAX:
            raise msgspec.ValidationError(
                f"the time {event.at.isoformat()} is outside the years 1970 to 9999"
            )
    except UnicodeEncodeError as error:
        message = f"a text of the event for job {event.job!a} holds half a surrogate pair: replace it before recording"
        raise InvalidInputError(message) from error
    except (TypeError, OverflowError, msgspec.MsgspecError) as error:
        message = f"a value of the event for job {event.job!a} cannot be recorded: {error}"
        raise InvalidInputError(message) from error
    return data


def _is_plain_dispatch(event: JobEvent) -> bool:
    """Whether this code made, checked or read every value from the ledger, as for `started` and `completed`.

    These events are the most frequent, and a skipped check saves a microsecond. Other events hold words and numbers of
    users, whose types nobody checked. An event that cannot be read would stop every reader of the ledger, for good.
    """
    return isinstance(event, Queued) and (
        event.cause == "new" or (event.cause == "admitted" and not event.reason)
    )


def decode(data: bytes, *, stream_sequence: int = 0, subject: str = "") -> JobEvent:
    """Return the event in `data`; `subject` tells an event of a newer version from rubbish; the rest is for the error.

    Raises: UnknownEventError for an event of a newer version, MalformedEventError for anything else.
    """
    try:
        event = _decoder.decode(data)
        if not data.isascii():
            data.decode()  # a raw value may hold bytes that are no text
        return _within_bounds(event)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _refusal(
            error, "job event", EVENT_TYPES, data=data, sequence=stream_sequence, subject=subject
        ) from error


_T = TypeVar("_T", bound=Envelope)


def decode_message(
    decoder: msgspec.json.Decoder[_T], message: Message, noun: str, types: Collection[str]
) -> _T:
    """Return the event of another aggregate in a message; `noun` is what its events are called in a sentence.

    Raises: as `decode`.
    """
    try:
        return check_message(decoder, message.data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        sequence, subject = message.stream_sequence, message.subject
        raise _refusal(error, noun, types, data=message.data, sequence=sequence, subject=subject) from error


def check_message(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    """Return the event in stored bytes.

    Raises: msgspec.MsgspecError, RecursionError, UnicodeError for bytes that are no event of this version.
    """
    data.decode()
    return _within_bounds(decoder.decode(data))


def _within_bounds(event: _T) -> _T:
    """Return an event of this version whose times every reader can hold.

    Raises: msgspec.ValidationError.
    """
    if event.v == VERSION and TIME_MIN <= event.at <= TIME_MAX and type(event) in TIMELESS:
        return event  # nearly always
    if (
        event.v == VERSION_SEALED
        and TIME_MIN <= event.at <= TIME_MAX
        and type(event) in TIMELESS
        and _is_sealed(event)
    ):
        return event
    is_retried = isinstance(event, Failed) and event.offers_again
    known = VERSION_RETRIED if is_retried else VERSION_SEALED if _is_sealed(event) else VERSION
    if event.v != known:
        raise msgspec.ValidationError(f"its form has version {event.v}, and this program knows {known}")
    if is_retried and TIME_MIN <= event.at <= TIME_MAX:
        return event  # it names no other time
    for moment in _moments(event):
        if not TIME_MIN <= moment <= TIME_MAX:
            raise msgspec.ValidationError(f"the time {moment.isoformat()} is outside the years 1970 to 9999")
    return event


def _is_sealed(event: Envelope) -> bool:
    """Return whether this is an event of a job that has an owner: the one place where that form is known."""
    return isinstance(event, Event) and event.key != ""


def _moments(value: object) -> Iterator[datetime]:
    """Yield every time in an event, however deep."""
    if isinstance(value, datetime):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in _timed_fields(type(value)):
            yield from _moments(getattr(value, name))
    elif isinstance(value, tuple):
        for each in cast("tuple[object, ...]", value):
            yield from _moments(each)
    elif isinstance(value, dict):
        for each in cast("dict[str, object]", value).values():
            yield from _moments(each)


@functools.cache
def _timed_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a class that may hold a time: of a grant of 500 jobs only one."""
    return tuple(each.name for each in msgspec.structs.fields(kind) if _may_be_time(each.type))


def _may_be_time(kind: object) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return bool(_timed_fields(kind))
    return kind is datetime or kind is Any or kind is object or any(map(_may_be_time, get_args(kind)))


def _refusal(
    error: Exception, noun: str, types: Collection[str], *, data: bytes, sequence: int, subject: str
) -> CorruptLedgerError:
    """Return the error to raise instead of an event."""
    where = {"stream_sequence": sequence, "next_sequence": sequence + 1}
    if newer(data, subject, types):
        return UnknownEventError(
            f"the {noun} at stream sequence {sequence} was written by a newer jobledger: upgrade this one to read "
            f"the ledger ({_outline(data)})",
            **where,
        )
    return MalformedEventError(f"the message at stream sequence {sequence} is no {noun}: {error}", **where)


class _Outline(msgspec.Struct):
    """The fields that every event has in every version."""

    type: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]{0,63}$")]
    v: Annotated[int, msgspec.Meta(ge=1, le=WHOLE_MAX)]
    at: Moment
    by: Annotated[str, msgspec.Meta(min_length=1)]
    prev: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""
    queue: str = ""
    job: str = ""
    key: str = ""


_RETRIED: Final = "failed"  #: the type of event that has a form of version 2
_outline_decoder: Final = msgspec.json.Decoder(_Outline)


def _outline(data: bytes) -> str:
    found = _outline_decoder.decode(data)
    return f"type {found.type!r}, form {found.v}"


def newer(data: bytes, subject: str, types: Collection[str]) -> bool:
    """Return whether this is an event that a later version of this program may have appended.

    It has the fields of every version, a type that is not among `types` or a higher form, and a subject, if known,
    that fits this. Anything else is no event for any reader.
    """
    try:
        found = _outline_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    known = VERSION_RETRIED if found.type == _RETRIED and _RETRIED in types else VERSION
    if found.key and found.job and _RETRIED in types:
        known = VERSION_SEALED
    if not TIME_MIN <= found.at <= TIME_MAX or (found.type in types and found.v <= known):
        return False
    if not subject:
        return True
    words = subject.split(".")
    named = (found.queue, found.job) if words[1] == "job" else ()
    return found.type in words[2:] and all(map(is_token, words)) and all(word in words for word in named)


def digest(data: bytes) -> str:
    """Return the hex sha256 of stored bytes."""
    return hashlib.sha256(data).hexdigest()


_DIGEST: Final = re.compile(r"[0-9a-f]{64}", flags=re.ASCII)


def is_digest(name: str) -> bool:
    """Return whether `name` is a sha256 in our form: nothing else may become the name of a file."""
    return _DIGEST.fullmatch(name) is not None
