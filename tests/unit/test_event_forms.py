"""Forms of events: which types an earlier release cannot read, and that none of them is decided in its ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest
from tests.unit.test_commands import BOOM

from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.commands import Claim, Command, DeadLetter, Enqueue, Fail, Rescue, Stamp, TakeOver
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.forms import FORM
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.subjects import JobRef

#: What the release of 14053832, which reads form 1, cannot read.
NEWER: Final = {
    "lost",
    "signal_refused",
    "restored",
    "raised",
    "redacted",
    "forgotten",
    "set",
}  # `set` of the retention
NEWER_OF_OWNERS: Final = {"held", "unheld", "erasing", "erased"}
NOW: Final = datetime(2026, 11, 28, 12, tzinfo=UTC)
BEFORE: Final = Stamp(at=NOW, by="w", form=1)
NEWEST: Final = Stamp(at=NOW, by="w")


def _running(max_attempts: int) -> Job:
    ref = JobRef(queue="mail", job_id="a")
    job: Job | None = None
    commands: tuple[Command, ...] = (
        Enqueue(ref=ref, task="send", order=Order(max_attempts=max_attempts)),
        Claim(worker="w", lease_s=15.0),
    )
    for number, command in enumerate(commands):
        for event in decide(job, command, NEWEST):
            job = evolve(job, event, number + 1)
    assert job is not None
    return job


FAIL: Final = Fail(epoch=2, error=BOOM, offers_again=True)


def test_the_types_that_an_earlier_release_cannot_read_say_their_form() -> None:
    said = {tag for each in AGGREGATES.values() for tag, kind in each.types.items() if kind.since_form > 1}
    assert said == NEWER | NEWER_OF_OWNERS
    assert all(kind.since_form <= FORM for each in AGGREGATES.values() for kind in each.types.values()), (
        "no event may need more than this program reads"
    )


@pytest.mark.parametrize(
    ("command", "newest", "before"),
    [
        (FAIL, ["failed"], ["failed", "queued"]),
        (TakeOver(worker="x", lease_s=15.0, lost_epoch=2), ["lost", "started"], ["started"]),
        (Rescue(lost_epoch=2), ["lost", "queued"], ["queued"]),
        (DeadLetter(reason="max_deliver", epoch=2, error=BOOM), ["lost", "dead_lettered"], ["dead_lettered"]),
    ],
)
def test_a_ledger_of_an_earlier_form_gets_the_events_of_that_form(
    command: Command, newest: list[str], before: list[str]
) -> None:
    job = _running(3)
    for stamp, expected in ((NEWEST, newest), (BEFORE, before)):
        events = decide(job, command, stamp)
        assert [each.__struct_config__.tag for each in events] == expected
    assert {each.v for each in decide(job, command, BEFORE)} == {1}


def test_both_forms_leave_the_job_in_the_same_state() -> None:
    ends: list[Job] = []
    for stamp in (NEWEST, BEFORE):
        job = _running(3)
        for number, event in enumerate(decide(job, FAIL, stamp)):
            job = evolve(job, event, 3 + number)
        ends.append(job)
    assert [(each.state, each.attempts_count, each.attempts_left) for each in ends] == [
        (ends[0].state, 1, ends[0].attempts_left)
    ] * 2


def test_what_needs_a_higher_form_is_refused_with_the_way_on() -> None:
    NEWEST.require_form(FORM, "an owner")
    with pytest.raises(
        RefusedError, match=r"an owner needs form 2 .* has form 1: run `jobledger upgrade finish`"
    ):
        BEFORE.require_form(2, "an owner")
