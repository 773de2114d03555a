"""Locks as facts: their wire form, what may follow what, and a state that the newest event alone tells."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.codec import Message, digest
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import (
    InvalidTokenError,
    LedgerError,
    LockHeldError,
    LockLostError,
    LockTimeoutError,
    MalformedEventError,
    UnknownEventError,
)
from jobledger.ledger.model.lock import (
    LOCK,
    Acquire,
    Lock,
    LockCommand,
    LockEvent,
    Release,
    Released,
    decide,
    evolve,
)
from jobledger.ledger.model.subjects import LockRef, Names, aggregate_of, check_token

GOLDEN = Path(__file__).parent / "golden" / "locks"
LINES = [line for release in sorted(GOLDEN.glob("*.jsonl")) for line in release.read_bytes().splitlines()]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STAMP = Stamp(at=NOW, by="a", trace="t")
REF = LockRef(scope="account", lock_id="42")
FREE = Lock("", 7)
HELD = Lock("a", 7, 15.0)


def stored(data: bytes, sequence: int = 9) -> Message:
    return Message(
        data=data, stream_sequence=sequence, stored_at=NOW, subject="ledger.lock.account.42.acquired"
    )


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[9:20].decode())
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    assert msgspec.json.encode(LOCK.decode(stored(line))) == line


@pytest.mark.parametrize("cls", LOCK.types.values(), ids=lambda cls: cls.__name__)
def test_every_field_of_every_event_has_a_golden_line(cls: type[LockEvent]) -> None:
    lines = [line for line in LINES if type(LOCK.decode(stored(line))) is cls]
    written = {name for line in lines for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
    assert written == {"type", *cls.__struct_fields__}


# One line per case: the lock as it is, the command, and the fields of the event, or the refusal.
TAKE = Acquire(holder="b", lease_s=15.0)
DECISIONS: list[tuple[Lock | None, LockCommand, dict[str, object] | type[LedgerError]]] = [
    (None, TAKE, {"type": "acquired", "holder": "b", "lease_s": 15.0, "took_over": 0}),
    (FREE, TAKE, {"type": "acquired", "holder": "b", "took_over": 0}),
    (FREE, Acquire(holder="b", lease_s=15.0, lost=7), {"type": "acquired", "took_over": 0}),
    (HELD, Acquire(holder="b", lease_s=15.0, lost=7), {"type": "acquired", "holder": "b", "took_over": 7}),
    (HELD, TAKE, LockHeldError),
    (HELD, Acquire(holder="a", lease_s=15.0), LockHeldError),
    (HELD, Acquire(holder="b", lease_s=15.0, lost=6), LockHeldError),
    (HELD, Release(fencing_number=7), {"type": "released", "fencing_number": 7}),
    (HELD, Release(fencing_number=6), LockLostError),
    (FREE, Release(fencing_number=7), LockLostError),
    (None, Release(fencing_number=7), LockLostError),
]  # fmt: skip


@each_row(("lock", "command", "expected"), DECISIONS)
def test_decide(
    lock: Lock | None, command: LockCommand, expected: dict[str, object] | type[LedgerError]
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide(REF, lock, command, STAMP)
        return
    event = decide(REF, lock, command, STAMP)
    said = {"type": LOCK.type_of(event), **msgspec.structs.asdict(event)}
    assert {name: said[name] for name in expected} == expected
    assert (event.scope, event.lock, event.at, event.by, event.trace) == ("account", "42", NOW, "a", "t")


def test_the_newest_event_alone_is_the_state() -> None:
    acquired = decide(REF, None, TAKE, STAMP)
    assert evolve(None, acquired, 5) == Lock("b", 5, 15.0)
    assert evolve(None, decide(REF, evolve(None, acquired, 5), Release(fencing_number=5), STAMP), 8) == Lock(
        "", 5
    )


def test_an_append_is_linked_to_the_chain_and_conditional_on_it() -> None:
    first = decide(REF, None, TAKE, STAMP)
    entry = LOCK.link(Names("staging"), [first], LOCK.view(None))[0]
    assert (entry.subject, entry.chain) == (
        "staging_ledger.lock.account.42.acquired",
        "staging_ledger.lock.account.42.>",
    )
    assert entry.expected == 0
    view = LOCK.advance(entry, first, 5)
    assert view == LOCK.view(stored(entry.data, 5))
    release = decide(REF, view.state, Release(fencing_number=5), STAMP)
    second = LOCK.link(Names(), [release], view)[0]
    assert second.expected == 5
    event = LOCK.decode(stored(second.data))
    assert event == Released(
        scope="account", lock="42", at=NOW, by="a", trace="t", prev=digest(entry.data), fencing_number=5
    )
    assert LOCK.view(None) == View()


@each_row(
    ("data", "error"),
    [
        (b'{"type":"borrowed","v":1,"at":"2026-01-02T00:00:00Z","by":"w"}', UnknownEventError),
        (b'{"type":"acquired","v":2,"at":"2026-01-02T00:00:00Z","by":"w"}', UnknownEventError),
        (b'{"type":"borrowed","v":1}', MalformedEventError),
        (b'{"type":"acquired","v":1}', MalformedEventError),
        (b"[]", MalformedEventError),
        (b"", MalformedEventError),
        (b"[" * 100_000, MalformedEventError),
        (b'{"type":"released","scope":"\xff"}', MalformedEventError),
    ],
)
def test_what_is_no_lock_event_stops_its_reader(data: bytes, error: type[LedgerError]) -> None:
    with pytest.raises(error, match="stream sequence 9") as caught:
        LOCK.decode(msgspec.structs.replace(stored(data), subject="ledger.lock.account.42.borrowed.acquired"))
    assert (vars(caught.value)["stream_sequence"], vars(caught.value)["next_sequence"]) == (9, 10)


@each_row(
    ("subject", "aggregate"),
    [
        ("ledger.lock.account.42.acquired", "lock"),
        ("staging_ledger.job.q.j.queued.high", "job"),
        ("ledger.schedule.nightly.ticked", "schedule"),
        ("ledger.job", ""),
        ("ledger", ""),
        ("", ""),
        ("..", ""),
    ],
)
def test_a_subject_says_what_it_is_about(subject: str, aggregate: str) -> None:
    assert aggregate_of(subject) == aggregate


def test_errors_name_the_lock_and_its_holder() -> None:
    assert str(LockTimeoutError("account", "42", "web1-1-ab", 7, 0.5)) == (
        "lock account/42 is held by web1-1-ab since stream sequence 7: gave up after 0.5 s"
    )
    assert str(LockTimeoutError("account", "42", "", 7, 2)) == (
        "lock account/42 was always taken: gave up after 2 s"
    )
    assert (
        str(LockLostError("account", "42", 7, "gone")) == "lock account/42 of fencing number 7 is lost: gone"
    )
    with pytest.raises(InvalidTokenError, match="lock id"):
        check_token("lock id", "42/43")
