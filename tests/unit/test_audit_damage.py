"""The checker on damage to what is stored: each finding is named with its place."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.stories import (
    BEGIN,
    NAMES,
    Story,
    changed,
    check,
    found,
    rich,
    story_event,
)
from tests.support.tables import each_row

from jobledger.audit.verify import Checker
from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.codec import encode
from jobledger.ledger.model.errors import CorruptLedgerError, InvalidInputError
from jobledger.ledger.model.events import Queued


def test_a_missing_event_is_named_with_its_sequence_and_its_job() -> None:
    messages = rich().messages
    report = check([each for each in messages if each.stream_sequence != 2])
    assert found(report)[:2] == [(2, "", "sequence"), (3, "email/a", "chain")]
    assert report.violations[0].sentence == "stream sequence 2 is missing: the ledger goes on with 3"


def test_a_missing_stretch_is_one_violation_of_the_sequence() -> None:
    messages = rich().messages
    report = check(messages[:4] + messages[9:])
    assert report.broken["sequence"] == 1
    assert "5 to 9 are missing" in report.violations[0].sentence


def test_events_fed_out_of_order_are_named() -> None:
    messages = rich().messages
    messages[1], messages[2] = messages[2], messages[1]
    report = check(messages)
    assert [each for each in found(report) if each[2] == "sequence"] == [
        (2, "", "sequence"),
        (2, "", "sequence"),
    ]
    assert (3, "email/a", "chain") in found(report)


def test_events_that_changed_places_break_the_chain() -> None:
    messages = rich().messages
    first, second = messages[1], messages[2]
    messages[1] = read_message(second.subject, second.data, 2, second.stored_at)
    messages[2] = read_message(first.subject, first.data, 3, first.stored_at)
    report = check(messages)
    assert found(report)[0] == (2, "email/a", "chain")
    assert "sequence" not in report.broken


def test_a_flipped_bit_breaks_the_chain_at_the_next_event() -> None:
    story = rich()
    story.messages[0] = changed(story.messages[0], b'"user_id":7', b'"user_id":6')
    assert found(check(story.messages)) == [(2, "email/a", "chain")]


_RICH = rich().messages
_BEFORE = check(_RICH)
_FOLLOWED = [
    index
    for index, message in enumerate(_RICH)
    if any(message.hash.encode() in later.data for later in _RICH[index + 1 :])
]


@given(st.sampled_from(_FOLLOWED), st.integers(0, 10_000), st.integers(0, 7))
def test_no_bit_of_an_event_that_has_a_successor_can_flip_unseen(index: int, byte: int, bit: int) -> None:
    assert not _is_sound_after_flip(index, byte, bit)


@given(st.sampled_from(range(len(_RICH))), st.integers(0, 10_000), st.integers(0, 7))
def test_no_bit_at_all_can_flip_unseen_where_an_earlier_report_was_kept(
    index: int, byte: int, bit: int
) -> None:
    assert not _is_sound_after_flip(index, byte, bit, before=_BEFORE)


def _is_sound_after_flip(index: int, byte: int, bit: int, **options: Any) -> bool:
    message = _RICH[index]
    data = bytearray(message.data)
    data[byte % len(data)] ^= 1 << bit
    try:
        flipped = read_message(message.subject, bytes(data), message.stream_sequence, message.stored_at)
    except CorruptLedgerError:
        return False
    return check([*_RICH[:index], flipped, *_RICH[index + 1 :]], **options).sound


def test_the_newest_event_of_a_job_is_only_held_by_an_earlier_report() -> None:
    """What the docs say: nothing in the ledger names the hash of what nobody followed."""
    messages = rich().messages
    before = check(messages)
    messages[2] = changed(messages[2], b'"sent"', b'"lost"')
    assert check(messages).sound
    report = check(messages, before=before)
    assert found(report) == [(before.head_sequence, "", "history")]


def test_a_ledger_continues_an_earlier_report_or_was_rewound() -> None:
    story = rich()
    before = check(story.messages)
    story.enqueue("later")
    assert check(story.messages, before=before).sound
    report = check(story.messages[:5], before=before)
    assert found(report) == [(6, "", "history")]
    end = before.head_sequence
    assert report.violations[0].sentence == (
        f"the ledger ends before {end}, where the earlier report did: 6 to {end} are missing"
    )


def test_an_earlier_report_of_another_range_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="begins at 3"):
        Checker(NAMES, before=check(rich().messages[2:], from_sequence=3))
    with pytest.raises(InvalidInputError, match="begin at 1"):
        Checker(NAMES, from_sequence=0)


@each_row(
    "subject",
    [
        "ledger.job.email.a.queued.high",
        "ledger.job.email.b.queued.normal",
        "ledger.job.other.a.queued.normal",
        "ledger.job.email.a.started",
        "staging_ledger.job.email.a.queued.normal",
    ],
)
def test_a_subject_that_says_something_else_is_found(subject: str) -> None:
    story = rich()
    first = story.messages[0]
    story.messages[0] = read_message(subject, first.data, 1, first.stored_at)
    rule = (
        "subject" if subject.startswith("staging") else "readable"
    )  # the environment is the reader's to know
    assert found(check(story.messages))[0][::2] == (1, rule)


def test_a_name_that_is_no_token_is_found() -> None:
    story = Story()
    event = Queued(job="a.b", queue="email", task="send", at=BEGIN, by="w1")
    story.store(NAMES.event(event), encode(event))
    assert found(check(story.messages)) == [(1, "email/a", "readable")]


def test_a_time_without_a_zone_is_found_and_stops_nothing() -> None:
    story = Story()
    story.enqueue("a", run_at=BEGIN + timedelta(hours=1))
    story.plant("a", Queued, cause="due", max_attempts=3)
    story.messages[1] = changed(story.messages[1], b'Z","by"', b'","by"')
    assert found(check(story.messages)) == [(2, "email/a", "readable")]


def test_an_event_that_names_a_hash_of_nowhere_is_found() -> None:
    story = Story()
    story.enqueue("a")
    data = encode(msgspec.structs.replace(story_event(story, 0), prev="f" * 64))
    first = story.messages[0]
    story.messages[0] = read_message(first.subject, data, 1, first.stored_at)
    report = check(story.messages)
    assert found(report) == [(1, "email/a", "chain")]
    assert "no event of its job is before it" in report.violations[0].sentence
