"""The checker on runs: each of its seven rules finds what breaks it, and a ledger of runs that keeps them passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
import pytest
from tests.support.families import PARTS, Families, rerun, sound
from tests.support.stories import check, found
from tests.support.tables import each_row

from jobledger.audit.verify import CheckOptions, Expectation, Report
from jobledger.audit.verify.report import RUN_RULES
from jobledger.audit.verify.unproven import unproven
from jobledger.ledger.model.commands import CancelJob, TakeOver
from jobledger.ledger.model.events import (
    Cancelled,
    ErrorInfo,
    JobEvent,
    Joined,
    JoinFact,
    Paused,
    Queued,
    SignalFact,
    Signalled,
    SignalRefused,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from jobledger.ledger.model.runs import carried_parts

ERROR = ErrorInfo(kind="timeout", type="TimeoutError", message="slow")
LATER = timedelta(hours=2)


def _second_end(story: Families) -> None:
    story.end("r", "one")
    story.plant("r", StepCompleted, attempt=1, step="one", kind="step", target="one")


def _of_a_lost_claim(story: Families) -> None:
    story.do("r", TakeOver(worker="w2", lease_s=15, lost_epoch=story.epoch("r")))
    story.plant("r", StepCompleted, attempt=1, step="one", kind="step", target="one")


def _of_another_target(story: Families) -> None:
    story.start("r", "one", "once")
    story.plant("r", StepCompleted, attempt=1, step="one", kind="once", target="two")


def _of_the_same_try(story: Families) -> None:
    story.fail("r", "one", tries=2, retry_at=story.now)
    story.plant("r", StepFailed, attempt=1, step="one", kind="step", target="one", error=ERROR, tries=2)


def _started_after_its_end(story: Families) -> None:
    story.end("r", "one")
    story.plant("r", StepStarted, attempt=1, step="one", kind="step", target="one")


def _ended_with_open_children(story: Families) -> None:
    story.ask()
    story.plant("r", StepCompleted, attempt=1, step="pages", kind="map", target="send")


def _not_opened(story: Families) -> None:
    story.ask(limit=1)
    story.child(1)


def _by_another_id(story: Families) -> None:
    story.ask()
    story.child(0, id="r-2-0")


def _of_another_task(story: Families) -> None:
    story.ask()
    story.child(0, task="other")


def _before_it_was_asked_for(story: Families) -> None:
    story.enqueue("late")
    story.child(0, "late")
    story.claim("late")
    story.ask("late")


def _of_nobody(story: Families) -> None:
    story.end("r", "one")
    story.child(0)


def _counted_again(story: Families) -> None:
    story.ask()
    story.run(story.child(0))
    story.join(done=[0])
    story.plant("r", Joined, step="pages", completed=((0, 0),))


def _counted_before_its_end(story: Families) -> None:
    story.ask()
    story.claim(story.child(0))
    story.join(done=[0])


def _counted_without_a_child(story: Families) -> None:
    story.ask()
    story.join(bad=[2])


def _counted_as_another_end(story: Families) -> None:
    story.ask()
    story.break_down(story.child(1))
    story.join(done=[1])


def _one_opened_too_many(story: Families) -> None:
    story.ask(limit=1)
    story.run(story.child(0))
    story.plant("r", Joined, step="pages", completed=((0, 0),), opened=((1, 2),))


def _never_opened(story: Families) -> None:
    story.ask(limit=1)
    story.plant("r", Joined, step="pages", completed=((2, 2),))


def _of_no_group(story: Families) -> None:
    story.end("r", "one")
    story.plant("r", Joined, step="one", completed=((0, 0),))


def _resumed(story: Families, **fields: object) -> None:
    story.plant("r", Queued, cause="resumed", attempt=2, max_attempts=3, **fields)


def _woken_early(story: Families) -> None:
    story.ask()
    story.run(story.child(0))
    story.park("r", "pages")
    _resumed(story, joined=JoinFact(step="pages", completed=((0, 0),)))


def _woken_by_nothing(story: Families) -> None:
    story.ask()
    story.park("r", "pages")
    _resumed(story)


def _woken_twice(story: Families) -> None:
    story.ask(count=1)
    story.park("r", "pages")
    story.run(story.child(0))
    story.join(done=[0])
    _resumed(story)


def _not_woken(story: Families) -> None:
    story.ask(count=1)
    story.park("r", "pages")
    story.run(story.child(0))
    story.plant("r", Joined, step="pages", completed=((0, 0),))


def _parked_for_what_has_come(story: Families) -> None:
    story.start("r", "ok", "wait")
    story.signal("r", "ok")
    story.plant("r", Paused, attempt=1, steps=("ok",))


def _due_with_a_signal(story: Families) -> None:
    until = story.now + timedelta(hours=1)
    story.start("r", "ok", "wait", until=until)
    story.park("r", "ok", until=until)
    story.now = until
    story.plant("r", Queued, cause="due", attempt=2, max_attempts=3, signal=SignalFact(name="ok"))


def _taken_twice(story: Families) -> None:
    told = story.signal("r", "ok")
    story.end("r", "a", "wait", target="ok", signal=told)
    story.plant("r", StepCompleted, attempt=1, step="b", kind="wait", target="ok", signal=told)


def _taken_by_another_wait(story: Families) -> None:
    told = story.signal("r", "ok")
    story.plant("r", StepCompleted, attempt=1, step="b", kind="wait", target="no", signal=told)


def _told_twice(story: Families) -> None:
    story.signal("r", "ok", id="click")
    story.plant("r", Signalled, name="ok", id="click")


def _refused_twice(story: Families) -> None:
    told = story.signal("r", "ok")
    for _ in range(2):
        story.plant("r", SignalRefused, attempt=1, step="ok", name="ok", signal=told, reason="no int")


def _refused_as_another(story: Families) -> None:
    told = story.signal("r", "ok", id="click")
    story.plant("r", SignalRefused, attempt=1, step="ok", name="ok", signal=told, id="other")


def _taken_though_refused(story: Families) -> None:
    told = story.signal("r", "ok")
    story.plant("r", SignalRefused, attempt=1, step="ok", name="ok", signal=told)
    story.plant("r", StepCompleted, attempt=1, step="ok", kind="wait", target="ok", signal=told)


def _left_open(story: Families) -> None:
    story.ask()
    story.child(0)
    story.do("r", CancelJob())
    story.plant("r", Cancelled, open_children=3)


def _says_that_none_is_open(story: Families) -> None:
    story.ask()
    story.plant("r", Cancelled)


def _not_counted(story: Families) -> None:
    story.ask()
    for item in range(3):
        story.child(item)
    story.run("r-1-2")


def _never_made(story: Families) -> None:
    story.ask(count=1)


def _source(story: Families) -> tuple[int, int]:
    story.begin("source")
    copied = story.end("source", "charge", result=msgspec.Raw(b'"ch_1"'), input_sha256="ab" * 8)
    return copied, story.complete("source")


def _copied_with_another_result(story: Families) -> None:
    rerun(story, *_source(story), result=b'"ch_2"')


def _copied_of_another_run(story: Families) -> None:
    copied, newest = _source(story)
    story.begin("other")
    rerun(story, copied, story.complete("other"), job="other")
    assert newest < len(story.messages)


def _copied_from_nowhere(story: Families) -> None:
    _, newest = _source(story)
    rerun(story, newest - 2, newest)


def _another_hash(story: Families) -> None:
    rerun(story, *_source(story), hash="0" * 64)


def _executed_where_a_copy_belongs(story: Families) -> None:
    rerun(story, *_source(story), steps=2)
    story.end("again", "pack")


def _copied_too_many(story: Families) -> None:
    rerun(story, *_source(story), steps=0)


def _copied_and_changed(story: Families) -> None:
    copied, newest = _source(story)
    rerun(story, copied, newest)
    end = len(story.messages)
    data = story.messages[end - 1].data.replace(story.messages[copied - 1].hash.encode(), b"1" * 64)
    del story.messages[end - 1]
    story.store("ledger.job.email.again.step_completed", data)


VIOLATED: list[tuple[Callable[[Families], None], str, str]] = [
    (_second_end, "step", "it cannot record it again"),
    (_of_a_lost_claim, "step", "of attempt 1, the claim is of attempt 2"),
    (_of_another_target, "step", "it cannot end it as once two"),
    (_of_the_same_try, "step", "it cannot record try 2"),
    (_started_after_its_end, "step", "it cannot record it again"),
    (_ended_with_open_children, "step", "3 of its children are open"),
    (_not_opened, "child", "it is item 1 of step 'pages' of email/r, which was not opened"),
    (_by_another_id, "child", "has the id r-1-0"),
    (_of_another_task, "child", "asked for task send in queue email"),
    (_before_it_was_asked_for, "child", "by step 'pages', which has no open children"),
    (_of_nobody, "child", "which has no open children"),
    (_counted_again, "join", "it counts item 0 of step 'pages' again"),
    (_counted_before_its_end, "join", "as completed, and that child has not ended"),
    (_counted_without_a_child, "join", "as failed, and that child has not ended"),
    (_counted_as_another_end, "join", "as completed, and that child ended otherwise"),
    (_one_opened_too_many, "join", "it opens items 1 to 2 of step 'pages', and by what is recorded item 1"),
    (_never_opened, "join", "it counts item 2 of step 'pages', which was never opened"),
    (_of_no_group, "join", "which asked for none"),
    (_woken_early, "wake", "which is not over"),
    (_woken_by_nothing, "wake", "none of 'pages' is over"),
    (_woken_twice, "wake", "it is woken once for each `paused`"),
    (_not_woken, "wake", "and nobody wakes it"),
    (_parked_for_what_has_come, "wake", "what it waits for has come"),
    (_due_with_a_signal, "wake", "only 'resumed' may"),
    (_taken_twice, "signal", "without a signal 'ok'"),
    (_taken_by_another_wait, "signal", "without a signal 'no'"),
    (_told_twice, "signal", "it tells the message 'click' of signal 'ok' a second time"),
    (_refused_twice, "signal", "without a signal 'ok'"),
    (_refused_as_another, "signal", "it refuses the message 'other'"),
    (_taken_though_refused, "signal", "without a signal 'ok'"),
    (_left_open, "orphan", "its run r ended"),
    (_says_that_none_is_open, "orphan", "says that 0 of its children are open: 3 are"),
    (_not_counted, "orphan", "item 2 of step 'pages' ended up to 7,2"),
    (_never_made, "orphan", "and nobody made it"),
    (_copied_with_another_result, "copied", "differs from what run source recorded at"),
    (_copied_of_another_run, "copied", "differs from what run other recorded at"),
    (_copied_from_nowhere, "copied", "where no step has ended"),
    (_another_hash, "copied", "another hash of source"),
    (_executed_where_a_copy_belongs, "copied", "it executed step 'pack' before it had copied 2 steps"),
    (_copied_too_many, "copied", "it copied step 'charge', and says that it copies 0 steps"),
    (_copied_and_changed, "copied", "names another hash than the event at"),
]


@each_row("break_it, rule, sentence", VIOLATED)
def test_each_rule_of_runs_finds_what_breaks_it(
    break_it: Callable[[Families], None], rule: str, sentence: str
) -> None:
    story = Families()
    story.begin()
    break_it(story)
    report = check(story.messages, Expectation(now=story.now + LATER))
    broken = [each for each in report.violations if each.rule == rule]
    assert broken, f"only {found(report)}"
    assert any(sentence in each.sentence for each in broken), [each.sentence for each in broken]
    assert rule not in report.proven


@each_row("memory_bytes_max", [None, 1, 20_000])
def test_a_ledger_of_runs_is_sound(memory_bytes_max: int | None) -> None:
    story = sound()
    options = CheckOptions(memory_bytes_max=memory_bytes_max)
    report = check(story.messages, Expectation(now=story.now + timedelta(days=9)), options=options)
    assert found(report) == []
    assert (report.runs, report.children, report.copies) == (12, 22, 1)
    assert report.proven == RUN_RULES
    said = "proven of runs: step, child, join, wake, signal, orphan, copied (12 runs, 22 children, 1 copied step)"
    assert said in report.text()
    assert "runs" not in check(Families().messages).text()


# Where a part of the ledger is not there.


def _limits_of(report: Report, **options: bool) -> str:
    return "\n".join(unproven(report, **options))


class _Archived(Families):
    """A ledger that is archived in the middle of what its runs do."""

    def __init__(self, through: int) -> None:
        super().__init__()
        self.through = through
        self.is_archived = False

    def append(self, job_id: str, events: Sequence[JobEvent], *, data: bytes | None = None) -> int:
        sequence = super().append(job_id, events, data=data)
        if len(self.messages) >= self.through and not self.is_archived:
            self.is_archived = True
            self.archive(self.through)
        return sequence


@pytest.mark.parametrize("part_bytes", [carried_parts.PART_BYTES_MAX, 300])
def test_runs_are_proven_over_an_archive_from_every_place(
    monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    """Wherever the run of the archive falls, nothing sound is called broken."""
    monkeypatch.setattr(carried_parts, "PART_BYTES_MAX", part_bytes)
    for through in range(5, len(sound().messages), 2):
        story = _Archived(through)
        for part in PARTS:
            part(story)
        expected = Expectation(now=story.now + timedelta(days=9))
        messages = story.messages[through:]
        rest = check(messages, expected, from_sequence=through + 1, prefix_archived=True)
        assert rest.violations == (), through
        assert check(story.messages, expected).violations == (), through


def test_a_range_says_which_children_it_cannot_prove() -> None:
    story = Families()
    story.begin()
    story.ask()
    begin = len(story.messages) + 1
    story.child(0)
    report = check(story.messages[begin - 1 :], from_sequence=begin)
    assert (report.sound, report.children, report.children_unproven) == (True, 1, 1)
    assert "child" not in report.proven
    said = "that a run asked for each child: of 1 the run's events lie before the range"
    assert said in _limits_of(report, is_part=True)


def test_a_range_says_which_copies_it_cannot_prove() -> None:
    story = Families()
    copied, newest = _source(story)
    rerun(story, copied, newest)
    report = check(story.messages[newest:], from_sequence=newest + 1)
    assert (report.sound, report.copies, report.copies_unproven) == (True, 1, 1)
    assert "that 1 copied steps are those of the run they name" in _limits_of(report, is_part=True)


def test_a_selection_of_events_says_nothing_across_chains() -> None:
    story = sound()
    chosen = [each for each in story.messages if ".map-1-" not in each.subject]
    report = check(chosen, is_selection=True)
    assert set(report.broken) == {"sequence"}
    assert set(report.proven) == {"step", "wake", "signal"}
    assert "that runs and their children agree" in _limits_of(report, is_selection=True)
