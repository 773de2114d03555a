"""Unique keys as facts: their wire form, who holds one until when, and what the checker makes of their chain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger.model.attempts import Attempt
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import UniqueKeyTakenError
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.unique import (
    UNIQUE,
    KeyRef,
    Take,
    Taken,
    UniqueKey,
    Until,
    decide,
    evolve,
    is_held,
    said_again,
)

GOLDEN = Path(__file__).parent / "golden" / "unique"
LINES = [line for release in sorted(GOLDEN.glob("*.jsonl")) for line in release.read_bytes().splitlines()]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STAMP = Stamp(at=NOW, by="a", trace="t")
REF = KeyRef(task="report", key="2c26b46b68ffc68ff99b453c1d30413413422d70")
SUBJECT = f"ledger.unique.{REF.task}.{REF.key}.taken"
TAKE = Take(owner=JobRef(queue="email", job_id="j2"))


def stored(data: bytes) -> Message:
    return Message(data=data, stream_sequence=9, stored_at=NOW, subject=SUBJECT)


def key(until: Until = "ended", *, expires_s: float | None = None, made: bool = False) -> UniqueKey:
    expires_at = None if expires_s is None else NOW + timedelta(seconds=expires_s)
    return UniqueKey(1, "email", "j1", until, expires_at, made, NOW)


def job(state: JobState, *, attempts: int = 0) -> Job:
    started = tuple(Attempt(number=n + 1, worker="w", epoch=n + 5, started_at=NOW) for n in range(attempts))
    return Job(
        id="j1", queue="email", task="report", state=state, created_at=NOW, updated_at=NOW, last_sequence=8,
        attempts=started,
    )  # fmt: skip


@each_row("line", LINES, ids=lambda line: line[-40:].decode())
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    assert msgspec.json.encode(UNIQUE.decode(stored(line))) == line


def test_every_field_has_a_golden_line() -> None:
    written = {name for line in LINES for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
    assert written == {"type", *Taken.__struct_fields__}


# One line per case: the key, its job as it is now, what the caller asks for, and whether the job holds it.
HELD: list[tuple[UniqueKey, Job | None, Until | None, bool]] = [
    (key(), None, None, True),  # its first event is still to come
    (key(made=True), None, None, False),  # it ended, and went into an archive
    (key(), job(JobState.QUEUED), None, True),
    (key(), job(JobState.RUNNING, attempts=1), None, True),
    (key(), job(JobState.RETRY_WAIT, attempts=1), None, True),
    (key(), job(JobState.COMPLETED, attempts=1), None, False),
    (key(), job(JobState.CANCELLED), None, False),
    (key(), job(JobState.DEAD_LETTERED, attempts=1), None, False),
    (key("started"), job(JobState.SCHEDULED), None, True),
    (key("started"), job(JobState.HELD), None, True),
    (key("started"), job(JobState.RUNNING, attempts=1), None, False),
    (key("started"), job(JobState.RETRY_WAIT, attempts=1), None, False),
    (key("started"), job(JobState.RUNNING, attempts=1), "ended", True),  # who asks for more gets it
    (key("due"), job(JobState.SCHEDULED), None, True),
    (key("due"), job(JobState.QUEUED), None, False),
    (key("due"), job(JobState.SCHEDULED, attempts=1), None, True),  # a retry that was moved
    (key(expires_s=1), job(JobState.COMPLETED, attempts=1), None, True),
    (key(expires_s=1, made=True), None, None, True),
    (key(expires_s=0), job(JobState.RUNNING, attempts=1), None, False),
    (key(expires_s=1), job(JobState.COMPLETED, attempts=1), "ended", False),
]


@each_row(("held", "owner", "until", "expected"), HELD)
def test_a_job_holds_its_key(held: UniqueKey, owner: Job | None, until: Until | None, expected: bool) -> None:
    assert is_held(held, owner, NOW, until) is expected


def test_a_free_key_is_taken_with_the_next_number() -> None:
    first = decide(REF, None, None, TAKE, STAMP)
    assert (first.number, first.queue, first.job, first.at, first.by) == (1, "email", "j2", NOW, "a")
    again = decide(REF, key(), job(JobState.COMPLETED), TAKE, STAMP)
    assert (again.number, again.job) == (2, "j2")
    assert UNIQUE.is_at(SUBJECT, again)


def test_a_held_key_is_refused_with_the_name_of_its_job() -> None:
    with pytest.raises(UniqueKeyTakenError, match="job j1 in queue email") as refused:
        decide(REF, key(), job(JobState.QUEUED), TAKE, STAMP)
    assert (refused.value.queue, refused.value.job_id, refused.value.key) == ("email", "j1", REF.key)


@each_row(
    ("before", "changes", "is_broken"),
    [
        (None, {}, False),
        (None, {"number": 2}, True),
        (1, {"number": 2}, False),
        (1, {"number": 3}, True),
        (1, {"number": 1}, True),  # taken by another job under the same number
        (1, {"number": 1, "job": "j1"}, False),  # said again
        (1, {"number": 1, "job": "j1", "made": True}, False),
        (1, {"number": 2, "made": True}, True),
    ],
)
def test_the_checker_counts(before: int | None, changes: dict[str, object], is_broken: bool) -> None:
    event = msgspec.structs.replace(decide(REF, None, None, TAKE, STAMP), **changes)
    assert UNIQUE.check is not None
    found = list(UNIQUE.check(None if before is None else key(), event, 9))
    assert [rule for rule, _ in found] == (["transition"] if is_broken else [])


@each_row(
    ("until", "expires_s", "owner", "made", "expected"),
    [
        ("ended", None, job(JobState.QUEUED), False, True),
        ("started", None, job(JobState.RUNNING, attempts=1), False, True),  # another caller may ask for more
        ("ended", None, job(JobState.COMPLETED, attempts=1), False, None),
        ("ended", None, job(JobState.DEAD_LETTERED, attempts=1), False, None),
        ("ended", None, None, False, False),  # its job is still to be made
        ("ended", None, None, True, None),  # its job is in an archive
        ("ended", 1, job(JobState.COMPLETED, attempts=1), False, True),
        ("ended", 0, job(JobState.COMPLETED, attempts=1), False, None),
        ("ended", 1, None, True, True),
    ],
)
def test_an_archive_run_says_again_what_is_held(
    until: Until, expires_s: float | None, owner: Job | None, made: bool, expected: bool | None
) -> None:
    expires_at = None if expires_s is None else NOW + timedelta(seconds=expires_s)
    taken = decide(REF, None, None, TAKE, STAMP)
    taken = msgspec.structs.replace(taken, until=until, expires_at=expires_at, made=made, prev="x")
    again = said_again(taken, owner, NOW)
    assert (None if again is None else again.made) is expected
    assert again is None or again == msgspec.structs.replace(taken, made=again.made, prev="")


def test_an_event_says_who_holds_the_key_and_how_long() -> None:
    event = decide(REF, None, None, TAKE, STAMP)
    assert UNIQUE.words(event) == "by job email/j2 until it has ended"
    sliding = msgspec.structs.replace(event, expires_at=NOW)
    assert UNIQUE.words(sliding) == "by job email/j2 until 2026-01-02 03:04:05.678Z"
    assert evolve(None, sliding, 9).owner == JobRef(queue="email", job_id="j2")
