"""The wire form: every released line decodes and comes out byte for byte; nothing else gets in or out."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import each_row

from jobledger.ledger.model.codec import decode, digest, encode
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import InvalidInputError, MalformedEventError, UnknownEventError
from jobledger.ledger.model.events import (
    EVENT_CLASSES,
    Cancelled,
    Completed,
    ErrorInfo,
    Failed,
    JobEvent,
    PayloadRef,
    Progressed,
    Queued,
)

GOLDEN = Path(__file__).parent / "golden"
RELEASES = sorted(GOLDEN.glob("*.jsonl"))
ENVELOPE: dict[str, Any] = {
    "job": "j1",
    "queue": "email",
    "task": "send",
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "by": "w1",
}
PLAIN = (
    b'"v":1,"at":"2026-01-02T03:04:05.678901Z","by":"w1","prev":"","job":"j1","queue":"email","task":"send"'
)


def golden_lines() -> list[bytes]:
    return [line for release in RELEASES for line in release.read_bytes().splitlines()]


@each_row("line", golden_lines(), ids=lambda line: line[9:30].decode())
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    assert encode(decode(line)) == line


@each_row("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_every_field_of_every_event_has_a_golden_line(cls: type[JobEvent]) -> None:
    lines = [line for line in golden_lines() if type(decode(line)) is cls]
    assert lines
    written = {name for line in lines for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
    assert written == {"type", *cls.__struct_fields__}


def test_defaults_are_left_out_but_version_and_link_are_written() -> None:
    assert encode(Queued(**ENVELOPE)) == b'{"type":"queued",' + PLAIN + b"}"
    assert encode(Cancelled(**ENVELOPE)) == b'{"type":"cancelled",' + PLAIN + b"}"


def test_null_is_a_value_and_absence_is_told_by_identity() -> None:
    null = Completed(**ENVELOPE, attempt=1, result=msgspec.Raw(b"null"))
    assert decode(encode(null)) == null
    absent = decode(encode(Completed(**ENVELOPE, attempt=1)))
    assert isinstance(absent, Completed)
    assert absent.result is NO_VALUE
    assert msgspec.structs.replace(absent, prev="x").result is NO_VALUE


def test_raw_values_keep_their_bytes() -> None:
    data = encode(Queued(**ENVELOPE, input=msgspec.Raw(b'{ "b": 1.0,\n "a": "\\u00e9" }')))
    assert encode(decode(data)) == data


texts = st.text(max_size=50)


@given(texts, texts, texts, st.none() | st.builds(PayloadRef, sha256=texts, size_bytes=st.integers(0, 2**53)))
def test_texts_survive(reason: str, by: str, message: str, ref: PayloadRef | None) -> None:
    error = ErrorInfo(kind="exception", type="E", message=message)
    for event in (
        msgspec.structs.replace(Cancelled(**ENVELOPE), by=by, reason=reason),
        Failed(**ENVELOPE, attempt=1, error=error),
        Completed(**ENVELOPE, attempt=1, result_ref=ref),
    ):
        assert decode(encode(event)) == event


@given(st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - the zone is beside it
def test_moments_survive_to_the_microsecond(at: datetime) -> None:
    event = msgspec.structs.replace(Cancelled(**ENVELOPE), at=at)
    assert decode(encode(event)) == event


def test_half_a_surrogate_pair_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidInputError, match="event for job 'j1' holds half a surrogate pair"):
        encode(Cancelled(**ENVELOPE, reason="caf\udce9"))


OF_WRONG_TYPES: list[JobEvent] = [
    Cancelled(**ENVELOPE, reason=404),  # type: ignore[arg-type]
    Cancelled(**ENVELOPE, reason=None),  # type: ignore[arg-type]
    Queued(**ENVELOPE, cause="requeued", reason=["no", "text"]),  # type: ignore[arg-type]
    Progressed(**ENVELOPE, attempt=1, done=True, note=""),
    Progressed(**ENVELOPE, attempt=1, done=Decimal("0.5")),  # type: ignore[arg-type]
    Progressed(**ENVELOPE, attempt=1, done=Fraction(1, 2)),  # type: ignore[arg-type]
    Progressed(**ENVELOPE, attempt=1, done=1.0, note=["no text"]),  # type: ignore[arg-type]
]


@each_row("event", OF_WRONG_TYPES, ids=lambda event: repr(event)[-40:])
def test_what_could_not_be_read_again_is_refused_with_a_sentence(event: JobEvent) -> None:
    with pytest.raises(InvalidInputError, match="a value of the event for job 'j1' cannot be recorded"):
        encode(event)


def test_an_error_with_half_a_surrogate_pair_can_be_recorded() -> None:
    error = ErrorInfo(
        kind="exception", type="OSError", message="no file caf\udce9", traceback='File "\ud800"'
    )
    event = Failed(**ENVELOPE, attempt=1, error=error)
    assert (error.message, error.traceback) == ("no file caf?", 'File "?"')
    assert decode(encode(event)) == event


FAILURE = b',"attempt":1,"error":{"kind":"exception","type":"E","message":""}'
UNREADABLE: list[tuple[bytes, type[Exception], str]] = [
    (b'{"type":"escalated",' + PLAIN + b"}", UnknownEventError, "stream sequence 7 .* upgrade .*'escalated', form 1"),
    (b'{"type":"failed",' + PLAIN + FAILURE + b',"dispatch":1}', MalformedEventError, "has version 1, .* knows 2"),
    (b'{"type":"failed",' + PLAIN.replace(b'"v":1', b'"v":2') + FAILURE + b"}", MalformedEventError, "has version 2, .* knows 1"),
    (b'{"type":"failed",' + PLAIN.replace(b'"v":1', b'"v":3') + FAILURE + b"}", UnknownEventError, "upgrade .*'failed', form 3"),
    (b'{"type":"queued",' + PLAIN.replace(b'"v":1', b'"v":2') + b"}", UnknownEventError, "upgrade .*'queued', form 2"),
    (b'{"type":"escalated",' + PLAIN.replace(b'"v":1', b'"v":0') + b"}", MalformedEventError, "stream sequence 7"),
    (b'{"type":"Escalated!",' + PLAIN + b"}", MalformedEventError, "stream sequence 7"),
    (b'{"type":"escalated",' + PLAIN.replace(b'"prev":""', b'"prev":"0"') + b"}", MalformedEventError, "stream sequence 7"),
    (b'{"type":"escalated",' + PLAIN.replace(b"2026-", b"0001-") + b"}", MalformedEventError, "stream sequence 7"),
    (b'{"type":"escalated","v":1,"job":"j1"}', MalformedEventError, "stream sequence 7"),
    (b"", MalformedEventError, "stream sequence 7"),
    (b"\xff\xfe", MalformedEventError, "stream sequence 7"),
    (b"[]", MalformedEventError, "stream sequence 7"),
    (b"null", MalformedEventError, "stream sequence 7"),
    (b"{}", MalformedEventError, "stream sequence 7"),
    (b'{"type":7}', MalformedEventError, "stream sequence 7"),
    (b'{"type":"queued"}', MalformedEventError, "`at`"),
    (b'{"type":"queued",' + PLAIN + b"} x", MalformedEventError, "stream sequence 7"),
    (b'{"type":"queued",' + PLAIN + b',"input":NaN}', MalformedEventError, "stream sequence 7"),
    (b'{"type":"queued",' + PLAIN + b',"priority":"urgent"}', MalformedEventError, "priority"),
    (b'{"type":"completed",' + PLAIN + b',"attempt":"1"}', MalformedEventError, "attempt"),
    (b'{"type":"progressed",' + PLAIN + b',"attempt":1,"done":null}', MalformedEventError, "done"),
    (b'{"type":"cancelled",' + PLAIN + b',"reason":"\xe9"}', MalformedEventError, "stream sequence 7"),
    (b'{"type":"cancelled",' + PLAIN + b',"reason":"\\ud800"}', MalformedEventError, "stream sequence 7"),
    (b'{"type":"queued",' + PLAIN + b',"input":' + b"[" * 100_000, MalformedEventError, "stream sequence 7"),
    (b"[" * 100_000, MalformedEventError, "stream sequence 7"),
]  # fmt: skip


@each_row(("data", "kind", "sentence"), UNREADABLE, ids=lambda value: repr(value)[:40])
def test_what_is_no_event_is_named(data: bytes, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        decode(data, stream_sequence=7)
    assert type(caught.value) is kind
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused_by_name(data: bytes) -> None:
    with pytest.raises((MalformedEventError, UnknownEventError)):
        decode(data)


def test_fields_of_a_newer_version_are_passed_over() -> None:
    assert decode(b'{"type":"queued",' + PLAIN + b',"colour":"red"}') == Queued(**ENVELOPE)


def test_the_digest_is_the_sha256_of_the_bytes() -> None:
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
