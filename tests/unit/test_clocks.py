"""Whose times a person is told: after a restore the events' own, which are hashed; never a mixture within one chain."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
from tests.support.stories import BOOM, Story, rich
from tests.support.tables import each_row

from jobledger.audit.clocks import APART_MAX, clocks_of
from jobledger.audit.trail import trail_of
from jobledger.ledger.model.commands import Carry, Complete, Fail

MESSAGES: Sequence[Any] = [each for each in rich().messages if each.subject.split(".")[3] == "a"]
DAY = timedelta(days=1)


def stored_later(by: Sequence[timedelta]) -> list[Any]:
    """Return a chain whose events the server stored that much later than they were made."""
    pairs = zip(MESSAGES, by, strict=True)
    return [msgspec.structs.replace(each, stored_at=each.event.at + late) for each, late in pairs]


COUNT = len(MESSAGES)
SECOND = timedelta(seconds=1)


@each_row(
    ("by", "of"),
    [
        ([timedelta()] * COUNT, "server"),
        ([APART_MAX] * COUNT, "server"),
        ([APART_MAX + SECOND] * COUNT, "events"),
        ([100 * DAY] * COUNT, "events"),
        ([-100 * DAY] * COUNT, "events"),
        ([100 * DAY] + [timedelta()] * (COUNT - 1), "events"),
        ([timedelta()] * (COUNT - 1) + [100 * DAY], "events"),
    ],
)
def test_the_events_own_times_are_told_where_the_servers_differ_by_more_than_seconds(
    by: list[timedelta], of: str
) -> None:
    assert COUNT > 2
    chain = stored_later(by)
    clocks = clocks_of(chain)
    assert clocks.of == of
    own, stored = [each.event.at for each in chain], [each.stored_at for each in chain]
    assert list(clocks.times) == (own if of == "events" else stored)
    assert clocks.apart_s == max(abs(each.total_seconds()) for each in by)
    assert ("the events' own" in clocks.text()) == (of == "events")


def test_own_times_that_go_back_are_not_told() -> None:
    chain = list(MESSAGES)
    wrong = msgspec.structs.replace(chain[1].event, at=chain[1].event.at + DAY)
    chain[1] = msgspec.structs.replace(chain[1], event=wrong)
    clocks = clocks_of(chain)
    assert (clocks.of, clocks.times) == ("server", tuple(each.stored_at for each in chain))
    assert "differ by up to 1.0 d, and go back, so some clock was wrong" in clocks.text()


def test_a_trail_after_a_restore_is_the_one_before_it() -> None:
    before = trail_of(MESSAGES)
    restored = [
        msgspec.structs.replace(each, stored_at=MESSAGES[-1].stored_at + 40 * DAY) for each in MESSAGES
    ]
    after = trail_of(restored)
    assert after.summary == before.summary
    assert [line.at for line in after.lines] == [each.event.at for each in MESSAGES]
    assert after.summary.total_s > 0
    assert clocks_of([]).times == ()


def told_parts(story: Story, through: int) -> tuple[Any, Any]:
    """Return the summary of a job's whole chain, and of what an archive run leaves of it."""
    chain: list[Any] = [each for each in story.messages if each.subject.split(".")[3] == "j"]
    rest = [each for each in chain if each.stream_sequence > through]
    assert len(rest) < len(chain)
    return trail_of(chain).summary, trail_of(rest).summary


def test_a_carried_job_is_summed_up_from_its_snapshot() -> None:
    story = Story()
    story.enqueue("j")
    story.now += timedelta(hours=2)
    story.claim("j")
    story.now += timedelta(hours=1)
    story.do(
        "j",
        Fail(
            epoch=story.epoch("j"),
            error=BOOM,
            retry_at=story.now + timedelta(minutes=1),
        ),
    )
    through = len(story.messages)
    story.now += timedelta(hours=3)
    story.do("j", Carry(through=through))
    story.now += timedelta(hours=4)
    whole, rest = told_parts(story, through)
    assert (rest.total_s, rest.waiting_s, rest.running_s) == (whole.total_s, whole.waiting_s, whole.running_s)
    assert (rest.attempts, rest.carried_through, whole.carried_through) == (1, through, 0)
    assert rest.running_s >= 3_600
    assert f"what happened up to stream sequence {through} is as `carried` sums it up" in rest.text()


def test_a_running_job_that_was_carried_goes_on_running() -> None:
    story = Story()
    story.enqueue("j")
    story.now += timedelta(hours=2)
    story.claim("j")
    through = len(story.messages)
    story.now += timedelta(hours=3)
    story.do("j", Carry(through=through))
    story.now += timedelta(hours=4)
    story.do("j", Complete(epoch=story.epoch("j"), result=msgspec.Raw(b"1")))
    whole, rest = told_parts(story, through)
    assert (rest.total_s, rest.waiting_s, rest.running_s) == (whole.total_s, whole.waiting_s, whole.running_s)
    assert rest.running_s >= 7 * 3_600
