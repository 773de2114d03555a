"""Events of the retention setting: golden lines, what may be set, and how it is told."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.golden import golden_lines
from tests.support.tables import each_row

from jobledger.admin.keeper import _pause_s
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import AccessDeniedError, InvalidInputError
from jobledger.ledger.model.log import Head
from jobledger.ledger.model.retention import RETENTION, Retention, RetentionState, SetRetention, decide
from jobledger.ledger.model.rights.authority import Principal

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LINES = [line.data for line in golden_lines() if line.aggregate == "retention"]
STATE = RetentionState(terms=Retention(keep_s=60.0), at=AT, by="ann", sequence=7)


def stored(data: bytes) -> Message:
    return Message(data=data, stream_sequence=1, stored_at=AT, subject="ledger.retention.main.set")


def stamp(**more: Any) -> Stamp:
    return Stamp(at=AT + timedelta(hours=1), by="bob", **more)


@each_row("line", LINES)
def test_golden_lines_are_read_and_written_alike(line: bytes) -> None:
    event = RETENTION.decode(stored(line))
    assert msgspec.json.encode(event) == line
    assert RETENTION.words(event)


def test_every_field_has_a_golden_line() -> None:
    names = {name for line in LINES for name in msgspec.json.decode(line)["terms"]}
    assert names == set(Retention.__struct_fields__)


def test_what_is_not_named_stays() -> None:
    event = decide(STATE, SetRetention(changes={"to": "/srv/a"}), stamp())
    assert event is not None
    assert event.terms == Retention(keep_s=60.0, to="/srv/a")
    assert decide(STATE, SetRetention(changes={"keep_s": 60.0}), stamp()) is None


@each_row(
    "changes, said",
    [
        ({"keep_s": -1.0}, "keep_s must be from 0 to"),
        ({"keep_s": math.nan}, "keep_s is nan"),
        ({"every_s": 0.0}, "every_s must be from 1 to 86,400 seconds, got 0"),
        ({"max_age_s": 59.0}, r"max_age_s must be from 60 \(keep_s\)"),
        ({"forget_after_s": 59.0}, r"forget_after_s must be from 60 \(keep_s\)"),
        ({"forget_after_s": math.inf}, "forget_after_s is inf"),
        ({"start": 0.3}, "0 <= aim < start <= 1: got aim 0.4 and start 0.3"),
        ({"start": 1.5}, "start <= 1"),
        ({"aim": math.inf}, "aim is inf"),
        ({"to": "archive"}, "give the whole path of a folder"),
        ({"to": "/a\nb"}, "printable"),
        ({"to": "/" * 2000}, "at most 1,000"),
        ({"to": "S3://bucket/x"}, "begins with one of s3://"),
        ({"to": "s3:/bucket/x"}, "begins with one of s3://"),
        ({"to": "mock://bucket/x"}, "not with 'mock'"),  # in memory: what is moved there is gone
        ({"to": "file:///srv/x"}, "give its path"),
        ({"to": "s3://key:wo/rd@bucket/x"}, "leave that out"),
        ({"to": "s3://key:wo?rd@bucket/x"}, "leave that out"),
        ({"to": "s3://bucket/x?region=a&secret_key=word"}, "leave that out"),
        ({"to": "abfs://box:word@name.dfs.core.windows.net/x"}, "leave that out"),
        ({"to": "abfs://name.blob.core.windows.net/box?sv=1&sig=word"}, "leave that out"),
        ({"to": "abfs://name.blob.core.windows.net/box?client_secret=word"}, "leave that out"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        decide(STATE, SetRetention(changes=changes), stamp())


@pytest.mark.parametrize("to", ["/a@b", "s3://bucket/x?region=a", "abfss://box@name.dfs.core.windows.net/x"])
def test_a_place_without_a_secret_is_taken(to: str) -> None:
    assert decide(STATE, SetRetention(changes={"to": to}), stamp()) is not None


def test_only_who_has_the_whole_ledger_says_where_it_goes() -> None:
    manager = Principal(name="bob", permissions=frozenset({"view", "manage"}))
    with pytest.raises(AccessDeniedError):
        decide(None, SetRetention(changes={"to": "/srv/a"}), stamp(authority=manager))
    admin = Principal(name="bob", permissions=frozenset({"admin"}))
    assert decide(None, SetRetention(changes={"to": "/srv/a"}), stamp(authority=admin)) is not None


@each_row(
    "stored, events, pause_s",
    [
        (0, 0, 300.0),  # nothing comes
        (100, 1, 250.0),  # slowly: half of what is left
        (500, 100, 0.5),  # 100 more bytes are left, half of which 100 events of 1 byte a second take
        (599, 500, 0.2),
        (700, 1, 60.0),  # too full, and nothing could be moved
    ],
)
def test_a_keeper_looks_sooner_where_the_ledger_fills_fast(stored: int, events: int, pause_s: float) -> None:
    head = Head(first_sequence=1, last_sequence=max(stored, 1), stored_bytes=stored, bytes_max=1_000)
    assert _pause_s(Retention(), head, events, 1.0) == pytest.approx(pause_s)
