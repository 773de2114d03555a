"""The checker on limits: each of its five rules finds what breaks it, and a ledger that keeps them passes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from tests.support.stories import BOOM, Story, check, found
from tests.support.tables import each_row

from jobledger.audit.verify import Report, Violation
from jobledger.audit.verify.definitions import Definitions
from jobledger.ledger.model.commands import CancelJob, Dispatch, Fail, PutBack, Snooze
from jobledger.ledger.model.events import Started
from jobledger.ledger.model.limits.definition import LIMIT, LimitSet
from jobledger.ledger.model.limits.flow import Granted, GrantedJob, Snapshotted
from jobledger.ledger.model.reactor import REACTOR, Archived, LimitInForce
from jobledger.ledger.model.subjects import aggregate_of


class Limited(Story):
    """A ledger with limits, in which a test grants whom it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.obeyed = 0
        self.slots: dict[str, int] = {}
        self.record(Snapshotted(shard="main", at=self.now, by="r1", through=0, low=1))

    def define(self, name: str, **terms: Any) -> int:
        self.obeyed = self.record(LimitSet(limit=name, at=self.now, by="op", source="operator", **terms))
        return self.obeyed

    def hold(self, job: str, *limits: str, **options: Any) -> None:
        self.enqueue(job, limits=tuple(sorted(limits)), **options)

    def wait_of(self, job: str) -> int:
        found = self.chains[self.ref(job)].job
        assert found is not None
        return found.wait_sequence

    def grant(self, *jobs: str, by: str = "r1", **more: Any) -> int:
        named = tuple(GrantedJob(queue="email", job=job, held=self.wait_of(job)) for job in jobs)
        fields: dict[str, Any] = {"limits_sequence": self.obeyed, "slots": self.slots, **more}
        return self.record(
            Granted(shard="main", at=self.now, by=by, through=len(self.messages), jobs=named, **fields)
        )

    def admit(self, job: str, grant: int) -> int:
        return self.do(job, Dispatch(cause="admitted", asked_by=self.wait_of(job), grant=grant))

    def go(self, *jobs: str) -> None:
        """Grant jobs and let them run to their end."""
        grant = self.grant(*jobs)
        for job in jobs:
            self.admit(job, grant)
        for job in jobs:
            self.run(job)


def _limited(**terms: Any) -> Limited:
    story = Limited()
    story.define("g", **(terms or {"slots": 1}))
    for job in "abc":
        story.hold(job, "g")
    return story


def _one_too_many() -> Limited:
    story = _limited()
    story.admit("a", story.grant("a"))
    story.grant("b")
    return story


def _two_at_once() -> Limited:
    story = _limited()
    story.grant("a", "b")
    return story


def _by_a_definition_that_came_too_late() -> Limited:
    story = _limited()
    old = story.obeyed
    story.define("g", slots=5)
    story.grant("a", "b", limits_sequence=old)
    return story


def _of_nothing_defined() -> Limited:
    story = _limited()
    story.hold("d", "g", "other")
    story.grant("d")
    return story


def _more_than_was_offered() -> Limited:
    story = Limited()
    story.slots = {"queue:email": 1}
    for job in "ab":
        story.hold(job, "queue:email")
    story.grant("a", "b")
    return story


def _without_a_grant() -> Limited:
    story = _limited()
    story.admit("a", 4)
    return story


def _by_the_grant_of_another() -> Limited:
    story = _limited(slots=2)
    other = story.grant("b")
    story.grant("a")
    story.admit("a", other)
    return story


def _after_it_gave_its_slot_back() -> Limited:
    story = _limited()
    story.admit("a", story.grant("a"))
    story.claim("a")
    story.do("a", Snooze(epoch=story.epoch("a"), until=story.now + timedelta(seconds=9)))
    story.plant("a", Started, attempt=2, worker="w1", lease_s=15)
    return story


def _one_that_came_later_first() -> Limited:
    story = _limited(slots=2)
    story.grant("b")
    story.grant("a")
    return story


def _too_soon() -> Limited:
    story = _limited(rate=1.0, burst=2, per_s=60.0)
    story.grant("a", "b", "c")
    return story


def _for_ever() -> Limited:
    story = _limited(slots=3)
    story.grant("a")
    story.admit("b", story.grant("b", by="r2"))
    story.now += timedelta(seconds=61)
    story.run("b")
    return story


VIOLATED: list[tuple[Callable[[], Limited], str, str]] = [
    (_one_too_many, "above", "2 jobs hold g after this grant: 1 may"),
    (_two_at_once, "above", "2 jobs hold g after this grant: 1 may"),
    (_by_a_definition_that_came_too_late, "above", "2 jobs hold g after this grant: 1 may"),
    (_of_nothing_defined, "above", "other was granted, which nobody had defined"),
    (_more_than_was_offered, "above", "2 jobs hold queue:email after this grant: 1 may"),
    (_without_a_grant, "slot", "it holds no slot"),
    (_by_the_grant_of_another, "slot", "names the grant at"),
    (_after_it_gave_its_slot_back, "slot", "`started`, and it holds no slot"),
    (_one_that_came_later_first, "order", "was granted before it"),
    (_too_soon, "rate", "before the rate of g allows it"),
    (_for_ever, "void", "is still held"),
]


@each_row("make, rule, sentence", VIOLATED)
def test_each_rule_of_limits_finds_what_breaks_it(
    make: Callable[[], Limited], rule: str, sentence: str
) -> None:
    report = check(make().messages)
    broken: list[Violation] = [each for each in report.violations if each.rule == rule]
    assert broken, f"only {found(report)}"
    assert sentence in broken[0].sentence
    assert rule not in report.proven


def test_a_ledger_that_keeps_its_limits_is_sound() -> None:
    story = Limited()
    story.define("g", slots=2)
    story.define("tenant", slots=1, keep="job", overrides={})
    story.define("api", rate=2.0, burst=2)
    for job in "abcd":
        story.hold(job, "g", "tenant:" + job)
    story.hold("e", "g", "api")
    story.go("a", "b")
    story.do("d", CancelJob(reason="void"))
    granted = story.grant("c", "d")
    story.admit("c", granted)
    story.claim("c")
    story.do("c", Fail(epoch=story.epoch("c"), error=BOOM, retry_at=story.now + timedelta(seconds=1)))
    story.now += timedelta(seconds=2)
    story.do("c", Dispatch(cause="retried", asked_by=story.wait_of("c")))
    story.define("g", slots=1)
    story.go("c")
    first = story.admit("e", story.grant("e"))
    story.do("e", PutBack(asked_by=first))
    story.go("e")
    report = check(story.messages)
    assert found(report) == []
    assert report.grants == 6
    assert set(report.proven) == {"above", "slot", "order", "rate", "void"}
    assert "proven of limits: above, slot, order, rate, void (6 grants, 1 more were void)" in report.text()
    assert "limits" not in check(Story().messages).text()


# Where the definitions of limits are in an archive.


def _archived(story: Limited, through: int, *, says: bool = True) -> Limited:
    """Archive a ledger up to a sequence that has only definitions and jobs of it, and restate what is defined."""
    told = Definitions()
    for message in story.messages:
        if aggregate_of(message.subject) == LIMIT.name:
            told.feed(LIMIT.decode(message), message)
    story.define("g", slots=1)
    story.archive(through, told.at(through) if says else None)
    return story


def _granted_before_the_archive(*jobs: str, says: bool = True) -> tuple[Limited, int]:
    story = _limited()
    through = len(story.messages)
    story.grant(*jobs)
    return _archived(story, through, says=says), through


def _rest(story: Limited, through: int) -> Report:
    """Check what is left, as `verify` does: it reads what the archive run says of limits first."""
    archived = REACTOR.decode(story.messages[-1])
    assert isinstance(archived, Archived)
    messages = story.messages[through:]
    return check(messages, from_sequence=through + 1, prefix_archived=True, limits=archived.limits)


def test_grants_before_an_archive_run_are_held_to_the_definitions_that_it_says() -> None:
    story, through = _granted_before_the_archive("a")
    assert found(check(story.messages)) == []
    report = _rest(story, through)
    assert (found(report), report.grants) == ([], 0), "the job is known by its `carried` alone"


def test_a_grant_by_a_definition_in_the_archive_is_judged_by_it() -> None:
    for jobs, expected in (("d",), []), (("d", "e"), ["2 jobs hold g after this grant: 1 may"]):
        story = _limited()
        through = len(story.messages)
        for job in "de":
            story.hold(job, "g")
        story.grant(*jobs)
        report = _rest(_archived(story, through), through)
        assert [each.sentence for each in report.violations] == expected
        assert report.grants == len(jobs)
        assert ("above" in report.proven) == (not expected)


def test_a_ledger_whose_archive_says_nothing_of_limits_is_sound_and_not_proven() -> None:
    story = _limited()
    through = len(story.messages)
    story.hold("d", "g")
    story.grant("d")
    report = _rest(_archived(story, through, says=False), through)
    assert found(report) == []
    assert set(report.proven) == {"slot", "order", "void"}


def test_an_archive_run_that_says_another_definition_is_found() -> None:
    story = _limited()
    other = story.messages[-1]
    lie = (LimitInForce(limit="g", sequence=2, event=msgspec.Raw(other.data)),)
    story.archive(len(story.messages), lie)
    report = check(story.messages)
    assert [each.rule for each in report.violations] == ["archive"]
    assert "another definition of limit g" in report.violations[0].sentence
