"""The checker of a ledger: a sound one passes, and whatever is planted in it is found and named with its place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobledger.ledger import lock_events
from jobledger.ledger.audit import Checker, Expected, Leftover, Options, Report, Violation, verify
from jobledger.ledger.chain import EMPTY_CHAIN, Chain, advance, seal
from jobledger.ledger.codec import Message, Stored, encode, read_message
from jobledger.ledger.commands import (
    CancelJob,
    Checkpoint,
    Claim,
    Complete,
    ConfirmCancel,
    DeadLetter,
    Discard,
    Dispatch,
    Enqueue,
    Fail,
    Fence,
    Interrupt,
    Pause,
    ReportProgress,
    Requeue,
    Snooze,
    Stamp,
    TakeOver,
)
from jobledger.ledger.decisions import decide
from jobledger.ledger.errors import CorruptLedgerError, InvalidInputError, LedgerError, SequenceGapError
from jobledger.ledger.events import (
    Cancelled,
    Cause,
    Completed,
    ErrorInfo,
    Failed,
    Fenced,
    JobEvent,
    Queued,
    Snoozed,
    Started,
    event_type,
)
from jobledger.ledger.log import Entry
from jobledger.ledger.memory import MemoryLog
from jobledger.ledger.subjects import JobRef, LockRef, Names

NAMES = Names()
BEGIN = datetime(2026, 1, 2, tzinfo=UTC)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom", traceback="x" * 5_000)
LOCK = LockRef(scope="account", lock_id="7")


class Story:
    """A ledger in the making; its clock moves a second an append, or where a test sets it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.chains: dict[JobRef, Chain] = {}
        self.lock = lock_events.LockView()
        self.now = BEGIN

    def ref(self, job_id: str) -> JobRef:
        return JobRef(queue="email", job_id=job_id)

    def enqueue(self, job_id: str, **options: Any) -> None:
        order: dict[str, Any] = {"max_attempts": 3, "input": msgspec.Raw(b'{"user_id":7}'), **options}
        self.do(job_id, Enqueue(ref=self.ref(job_id), task="send", **order))

    def do(self, job_id: str, command: Any) -> int:
        """Append what is decided; return the last stream sequence."""
        chain = self.chains.get(self.ref(job_id), EMPTY_CHAIN)
        return self.append(job_id, decide(chain.job, command, Stamp(at=self.now, by="w1")))

    def plant(self, job_id: str, cls: type[JobEvent], **fields: Any) -> int:
        """Append an event that nobody decided, in its place in the chain."""
        envelope: dict[str, Any] = {
            "job": job_id,
            "queue": "email",
            "task": "send",
            "at": self.now,
            "by": "forger",
        }
        return self.append(job_id, [cls(**envelope | fields)])

    def append(self, job_id: str, events: Sequence[JobEvent], *, data: bytes | None = None) -> int:
        chain = self.chains.get(self.ref(job_id), EMPTY_CHAIN)
        sealed = seal(chain, events, NAMES)
        first = len(self.messages) + 1
        for entry in sealed.entries:
            self.store(entry.subject, data or entry.data)
        self.chains[self.ref(job_id)] = advance(chain, sealed, first)
        self.now += timedelta(seconds=1)
        return len(self.messages)

    def store(self, subject: str, data: bytes) -> None:
        self.messages.append(read_message(subject, data, len(self.messages) + 1, self.now))

    def epoch(self, job_id: str) -> int:
        job = self.chains[self.ref(job_id)].job
        assert job is not None
        return job.claim_epoch

    def claim(self, job_id: str) -> int:
        return self.do(job_id, Claim(worker="w1", lease_s=15))

    def run(self, job_id: str) -> int:
        self.claim(job_id)
        return self.complete(job_id)

    def complete(self, job_id: str) -> int:
        return self.do(job_id, Complete(epoch=self.epoch(job_id), result=msgspec.Raw(b'"sent"')))

    def acquire(self, holder: str, lost: int = 0) -> int:
        command = lock_events.Acquire(holder=holder, lease_s=15, lost=lost)
        return self.append_lock(
            lock_events.decide(LOCK, self.lock.lock, command, Stamp(at=self.now, by=holder))
        )

    def release(self) -> int:
        assert self.lock.lock is not None
        command = lock_events.Release(fencing_number=self.lock.lock.fencing_number)
        return self.append_lock(lock_events.decide(LOCK, self.lock.lock, command, Stamp(at=self.now, by="h")))

    def append_lock(self, event: lock_events.LockEvent) -> int:
        entry = lock_events.seal(self.lock, event, NAMES)
        self.store(entry.subject, entry.data)
        self.lock = lock_events.advance(entry, event, len(self.messages))
        return len(self.messages)


def rich() -> Story:
    """A sound ledger with every type of event; its jobs `a` to `g` are final, its lock is held."""
    story = Story()
    story.enqueue("a")
    story.run("a")
    for part in (_retried, _delayed_and_cancelled, _taken_over, _dead, _given_back, _admitted, _locked):
        part(story)
    return story


def _retried(story: Story) -> None:
    story.enqueue("b")
    story.claim("b")
    story.do("b", Fail(epoch=story.epoch("b"), error=BOOM, retry_at=story.now + timedelta(seconds=30)))
    story.now += timedelta(seconds=30)
    story.do("b", Dispatch(cause="retried"))
    story.run("b")


def _delayed_and_cancelled(story: Story) -> None:
    story.enqueue("c", run_at=story.now + timedelta(seconds=5))
    story.now += timedelta(seconds=5)
    story.do("c", Dispatch(cause="due"))
    story.claim("c")
    story.do("c", Checkpoint(epoch=story.epoch("c"), value=msgspec.Raw(b"1")))
    story.do("c", ReportProgress(epoch=story.epoch("c"), done=1))
    story.do("c", CancelJob())
    story.do("c", ConfirmCancel(epoch=story.epoch("c")))


def _taken_over(story: Story) -> None:
    """The zombie is fenced twice, once after the end."""
    story.enqueue("d")
    held = story.claim("d")
    story.do("d", TakeOver(worker="w2", lease_s=15, lost_epoch=held))
    story.do("d", Fence(epoch=held, attempt=1, worker="w1", outcome="completed"))
    story.complete("d")
    story.do("d", Fence(epoch=held, attempt=1, worker="w1", outcome="completed"))


def _dead(story: Story) -> None:
    story.enqueue("e", max_attempts=1)
    for _ in range(2):
        story.claim("e")
        story.do("e", Fail(epoch=story.epoch("e"), error=BOOM))
        story.do("e", Requeue(attempts=1))
    story.do("e", DeadLetter(reason="max_deliver"))
    story.do("e", Discard())


def _given_back(story: Story) -> None:
    """Snoozed, paused and interrupted: none of them counts."""
    story.enqueue("f", max_attempts=1)
    story.claim("f")
    story.do("f", Snooze(epoch=story.epoch("f"), until=story.now + timedelta(seconds=9)))
    story.now += timedelta(seconds=9)
    story.do("f", Dispatch(cause="due"))
    story.claim("f")
    story.do("f", Pause(epoch=story.epoch("f"), event="paid", until=story.now + timedelta(hours=1)))
    story.do("f", Dispatch(cause="resumed"))
    story.claim("f")
    story.do("f", Interrupt(epoch=story.epoch("f"), reason="deploy"))
    story.run("f")


def _admitted(story: Story) -> None:
    story.enqueue("g", limits=("api",))
    story.do("g", Dispatch(cause="admitted"))
    story.do("g", CancelJob())


def _locked(story: Story) -> None:
    held = story.acquire("w1")
    story.acquire("w2", lost=held)
    story.release()
    story.acquire("w3")


def check(
    messages: Sequence[Message], expected: Expected | None = None, /, *, names: Names = NAMES, **options: Any
) -> Report:
    checker = Checker(names, **options)
    for message in messages:
        checker.feed(message)
    return checker.finish(expected)


def found(report: Report) -> list[tuple[int, str, str]]:
    return [(each.stream_sequence, each.job, each.rule) for each in report.violations]


def changed(message: Message, old: bytes, new: bytes) -> Message:
    assert message.data.count(old) == 1
    data = message.data.replace(old, new)
    return read_message(message.subject, data, message.stream_sequence, message.stored_at)


# A sound ledger.


def test_a_sound_ledger_is_proven_with_its_figures() -> None:
    story = rich()
    report = check(story.messages, Expected(enqueued=[("email", each) for each in "abcdefg"], all_final=True))
    assert (report.sound, report.violations, report.broken) == (True, (), {})
    assert (report.events, report.head_sequence) == (len(story.messages), len(story.messages))
    assert report.head_hash == story.messages[-1].hash
    assert report.states == {"completed": 4, "cancelled": 2, "discarded": 1}
    started = [
        each for each in story.messages if isinstance(each, Stored) and isinstance(each.event, Started)
    ]
    assert (report.jobs, report.partial_jobs, report.attempts, report.locks) == (7, 0, len(started), 1)
    types = {event_type(each.event) for each in story.messages if isinstance(each, Stored)}
    assert len(types) == 16, "the story has every type"


def test_a_report_is_kept_as_json_and_told_to_a_person() -> None:
    report = check(rich().messages)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert report.text().splitlines()[0] == "the ledger is sound"
    assert "7 jobs (cancelled 2, completed 4, discarded 1)" in report.text()


def test_an_empty_ledger_is_sound() -> None:
    report = check([], Expected(enqueued=[], all_final=True, leftovers=[]))
    assert (report.sound, report.events, report.head_sequence, report.head_hash) == (True, 0, 0, "")


def test_the_violations_kept_are_bounded_and_all_are_counted() -> None:
    story = Story()
    for number in range(50):
        story.plant(f"j{number}", Cancelled)
    report = check(story.messages, options=Options(violations_max=3))
    assert (len(report.violations), report.violations_count, report.broken) == (3, 50, {"transition": 50})
    text = report.text()
    assert text.startswith("the ledger is NOT sound: 50 violations (transition 50)")
    assert "  at 1 [transition] email/j0: `cancelled` is its first event" in text
    assert text.endswith("  and 47 more")


_CAUSES: tuple[Cause, ...] = ("due", "retried", "admitted", "resumed", "redispatched")


def _dispatch_in_time(story: Story, job_id: str) -> None:
    job = story.chains[story.ref(job_id)].job
    story.now = max(story.now, job.due_at) if job is not None and job.due_at is not None else story.now
    for cause in _CAUSES:
        with contextlib.suppress(LedgerError):
            story.do(job_id, Dispatch(cause=cause))
            return


_STEPS: list[Callable[[Story, str], Any]] = [
    lambda story, job: story.claim(job),
    lambda story, job: story.do(job, TakeOver(worker="w2", lease_s=15, lost_epoch=story.epoch(job))),
    lambda story, job: story.complete(job),
    lambda story, job: story.do(job, Fail(epoch=story.epoch(job), error=BOOM)),
    lambda story, job: story.do(
        job, Fail(epoch=story.epoch(job), error=BOOM, retry_at=story.now + timedelta(hours=1))
    ),
    lambda story, job: story.do(job, Fail(epoch=story.epoch(job), error=BOOM, give_up="rejected")),
    lambda story, job: story.do(job, Interrupt(epoch=story.epoch(job), reason="deploy")),
    lambda story, job: story.do(job, Snooze(epoch=story.epoch(job), until=story.now + timedelta(hours=1))),
    lambda story, job: story.do(job, Pause(epoch=story.epoch(job), event="paid")),
    lambda story, job: story.do(job, CancelJob()),
    lambda story, job: story.do(job, ConfirmCancel(epoch=story.epoch(job))),
    lambda story, job: story.do(job, DeadLetter(reason="max_deliver", epoch=story.epoch(job))),
    lambda story, job: story.do(job, Requeue(attempts=2)),
    lambda story, job: story.do(job, Discard()),
    lambda story, job: story.do(job, Fence(epoch=2, attempt=1, worker="w1", outcome="failed")),
    _dispatch_in_time,
]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(_STEPS)), max_size=40))
def test_whatever_is_decided_is_sound(steps: list[tuple[str, Callable[[Story, str], Any]]]) -> None:
    story = Story()
    story.enqueue("a", run_at=story.now + timedelta(minutes=1))
    story.enqueue("b", max_attempts=2)
    for job_id, step in steps:
        with contextlib.suppress(LedgerError):
            step(story, job_id)
    report = check(story.messages, Expected(enqueued=[("email", "a"), ("email", "b")]))
    assert report.violations == ()


# Damage to what is stored.


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
    assert found(report) == [(before.head_sequence, "", "history")]
    assert "ends before" in report.violations[0].sentence


def test_an_earlier_report_of_another_range_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="begins at 3"):
        Checker(NAMES, before=check(rich().messages[2:], from_sequence=3))
    with pytest.raises(InvalidInputError, match="begin at 1"):
        Checker(NAMES, from_sequence=0)


@pytest.mark.parametrize(
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
    assert found(check(story.messages)) == [(1, "email/a", "subject")]


def test_a_name_that_is_no_token_is_found() -> None:
    story = Story()
    event = Queued(job="a.b", queue="email", task="send", at=BEGIN, by="w1")
    story.store(NAMES.event(event), encode(event))
    assert found(check(story.messages)) == [(1, "email/a.b", "subject")]


def test_a_time_without_a_zone_is_found_and_stops_nothing() -> None:
    story = Story()
    story.enqueue("a", run_at=BEGIN + timedelta(hours=1))
    story.plant("a", Queued, cause="due", max_attempts=3, at=datetime(2026, 1, 2))  # noqa: DTZ001
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


def story_event(story: Story, index: int) -> JobEvent:
    stored = story.messages[index]
    assert isinstance(stored, Stored)
    return stored.event


# Events that nobody may append: each has its place in the chain, and breaks one rule.


def _second_outcome(story: Story) -> int:
    story.run("j")
    return story.plant("j", Completed, attempt=1)


def _another_outcome(story: Story) -> int:
    story.claim("j")
    story.do("j", Fail(epoch=story.epoch("j"), error=BOOM))  # and queued again at once
    return story.plant("j", Completed, attempt=1)


def _outcome_of_a_lost_attempt(story: Story) -> int:
    held = story.claim("j")
    story.do("j", TakeOver(worker="w2", lease_s=15, lost_epoch=held))
    return story.plant("j", Completed, attempt=1)


def _outcome_of_no_attempt(story: Story) -> int:
    story.claim("j")
    return story.plant("j", Failed, attempt=9, error=BOOM)


def _failure_after_the_end(story: Story) -> int:
    story.run("j")
    return story.plant("j", Failed, attempt=1, error=BOOM)


def _one_attempt_too_many(story: Story) -> int:
    for _ in range(2):
        story.claim("j")
        story.do("j", Fail(epoch=story.epoch("j"), error=BOOM))
    held = story.claim("j")
    story.do("j", Fence(epoch=held - 3, attempt=2, worker="w1", outcome="failed"))
    return story.plant("j", Started, attempt=4, worker="w2", lease_s=15)


def _a_limit_raised_by_a_retry(story: Story) -> int:
    story.claim("j")
    story.do("j", Fail(epoch=story.epoch("j"), error=BOOM, retry_at=story.now))
    story.plant("j", Started, attempt=2, worker="w1", lease_s=15)
    story.do("j", Fail(epoch=story.epoch("j"), error=BOOM, retry_at=story.now + timedelta(seconds=1)))
    story.now += timedelta(seconds=1)
    return story.plant("j", Queued, cause="retried", attempt=3, max_attempts=99)


def _started_after_the_end(story: Story) -> int:
    story.run("j")
    return story.plant("j", Started, attempt=2, worker="w2", lease_s=15)


def _cancelled_after_the_end(story: Story) -> int:
    story.run("j")
    return story.plant("j", Cancelled)


def _queued_while_running(story: Story) -> int:
    story.claim("j")
    return story.plant("j", Queued, cause="retried", attempt=2, max_attempts=3)


def _requeued_when_cancelled(story: Story) -> int:
    story.do("j", CancelJob())
    return story.plant("j", Queued, cause="requeued", max_attempts=3)


def _fenced_without_a_claim(story: Story) -> int:
    end = story.run("j")
    return story.plant(
        "j", Fenced, attempt=1, worker="w1", held_epoch=end, current_epoch=0, outcome="completed"
    )


def _of_another_task(story: Story) -> int:
    story.claim("j")
    return story.plant("j", Completed, attempt=1, task="other")


@pytest.mark.parametrize(
    ("plant", "rule", "sentence"),
    [
        (_second_outcome, "outcome", "`completed` is a second outcome of attempt 1, which was completed before"),
        (_another_outcome, "outcome", "`completed` is a second outcome of attempt 1, which was failed before"),
        (_outcome_of_a_lost_attempt, "outcome", "`completed` of attempt 1 was accepted, whose claim 2 was lost before"),
        (_outcome_of_no_attempt, "transition", "`failed` of attempt 9, running is 1"),
        (_failure_after_the_end, "outcome", "`failed` is a second outcome of attempt 1, which was completed before"),
        (_one_attempt_too_many, "attempts", "attempt 4 of 3 was started"),
        (_a_limit_raised_by_a_retry, "attempts", "`queued` changes the limit of 3 attempts to 99"),
        (_started_after_the_end, "transition", "`started` follows while it is completed"),
        (_cancelled_after_the_end, "transition", "`cancelled` follows while it is completed"),
        (_queued_while_running, "transition", "`queued` with cause 'retried' while it is running"),
        (_requeued_when_cancelled, "transition", "`queued` follows while it is cancelled"),
        (_fenced_without_a_claim, "transition", "`fenced` claim 3 as attempt 1, which it never had"),
        (_of_another_task, "transition", "`completed` names email/j (other), its chain is of email/j (send)"),
    ],
)  # fmt: skip
def test_a_planted_event_is_found_and_named(plant: Callable[[Story], int], rule: Any, sentence: str) -> None:
    story = Story()
    story.enqueue("j")
    sequence = plant(story)
    expected = Violation(stream_sequence=sequence, job="email/j", rule=rule, sentence=sentence)
    assert check(story.messages).violations[-1:] == (expected,)
    story.enqueue("k")
    story.run("k")
    report = check(story.messages)
    assert [each for each in report.violations if each.stream_sequence > sequence] == [], (
        "others are not accused"
    )


def test_an_epoch_that_goes_back_is_found() -> None:
    story = Story()
    story.enqueue("j")
    held = story.claim("j")
    sequence = story.do("j", TakeOver(worker="w2", lease_s=15, lost_epoch=held))
    taken_over = story.messages[-1]
    story.messages[-1] = read_message(taken_over.subject, taken_over.data, held, taken_over.stored_at)
    report = check(story.messages)
    assert sequence == held + 1
    assert found(report) == [(held, "", "sequence"), (held, "email/j", "epoch")]
    assert report.violations[1].sentence == f"claim {held} follows claim {held}: epochs must grow"


def test_an_attempt_counted_by_nobody_is_found() -> None:
    """Given back are attempts that ended so; a limit of one allows one that counts."""
    story = Story()
    story.enqueue("j", max_attempts=1)
    for _ in range(3):
        story.claim("j")
        story.do("j", Interrupt(epoch=story.epoch("j"), reason="deploy"))
    held = story.claim("j")
    assert check(story.messages).sound
    sequence = story.plant("j", Started, attempt=5, worker="w2", lease_s=15)
    report = check(story.messages)
    assert held == sequence - 1
    assert found(report) == [(sequence, "email/j", "attempts")]
    assert report.violations[0].sentence == "attempt 2 of 1 was started"


@pytest.mark.parametrize("event", [Failed, Snoozed])
def test_half_a_batch_is_found(event: type[JobEvent]) -> None:
    story = Story()
    story.enqueue("j")
    story.enqueue("k")
    story.claim("j")
    if event is Failed:
        sequence = story.plant("j", Failed, attempt=1, error=BOOM)
    else:
        sequence = story.do("j", Snooze(epoch=story.epoch("j"), until=story.now))
    story.claim("k")
    expected = [(sequence, "email/j", "batch")] if event is Failed else []
    assert found(check(story.messages)) == expected


# Timers.


def delayed(cause: Cause = "due") -> Story:
    story = Story()
    if cause == "retried":
        story.enqueue("j")
        story.claim("j")
        due_at = story.now + timedelta(seconds=60)
        story.do("j", Fail(epoch=story.epoch("j"), error=BOOM, retry_at=due_at))
    else:
        story.enqueue("j", run_at=story.now + timedelta(seconds=60))
        due_at = BEGIN + timedelta(seconds=60)
    story.now = due_at
    return story


@pytest.mark.parametrize("cause", ["due", "retried"])
@pytest.mark.parametrize(
    ("off_s", "sound"), [(-30, False), (-1.1, False), (-0.9, True), (0, True), (500, True)]
)
def test_a_timer_that_fired_early_is_found(cause: Cause, off_s: float, sound: bool) -> None:
    story = delayed(cause)
    story.now += timedelta(seconds=off_s)
    sequence = story.do("j", Dispatch(cause=cause))
    report = check(story.messages)
    assert found(report) == ([] if sound else [(sequence, "email/j", "timer")])
    if not sound:
        assert (
            f"`queued` as {cause!r} {-off_s:.3f} s before 2026-01-02T00:01" in report.violations[0].sentence
        )


def test_the_tolerance_of_timers_can_be_chosen() -> None:
    story = delayed()
    story.now -= timedelta(seconds=0.5)
    story.do("j", Dispatch(cause="due"))
    assert check(story.messages).sound
    assert check(story.messages, options=Options(timer_tolerance_s=0.1)).broken == {"timer": 1}


def test_an_operator_may_come_before_the_timer_and_says_why() -> None:
    story = delayed()
    story.now -= timedelta(seconds=30)
    story.do("j", Dispatch(cause="due", reason="the customer waits"))
    assert check(story.messages).sound


@pytest.mark.parametrize("behind", ["appender", "server"])
def test_one_wrong_clock_makes_no_early_timer(behind: str) -> None:
    story = delayed()
    due_at, early_at = story.now, story.now - timedelta(hours=1)
    story.now = early_at if behind == "appender" else due_at
    story.do("j", Dispatch(cause="due"))
    stored_at = due_at if behind == "appender" else early_at
    story.messages[-1] = msgspec.structs.replace(story.messages[-1], stored_at=stored_at)
    assert check(story.messages).sound


def test_a_timer_that_never_fired_is_found_where_it_must_have() -> None:
    story = delayed()
    due_at = story.now
    assert check(story.messages).timers_pending == 1
    assert check(story.messages, Expected(timers_until=due_at)).sound
    report = check(story.messages, Expected(timers_until=due_at + timedelta(seconds=1)))
    assert found(report) == [(1, "email/j", "timer")]
    assert report.violations[0].sentence == "it was due at 2026-01-02T00:01:00+00:00 and is still scheduled"


# What the caller knows.


def test_a_job_without_a_final_state_is_found() -> None:
    story = rich()
    for job_id in ("queued", "running", "dead"):
        story.enqueue(job_id, max_attempts=1)
    started = story.claim("running")
    story.claim("dead")
    story.do("dead", Fail(epoch=story.epoch("dead"), error=BOOM))
    report = check(story.messages, Expected(all_final=True))
    assert [each[1:] for each in found(report)] == [("email/queued", "final"), ("email/running", "final")]
    assert report.violations[1].stream_sequence == started
    assert report.violations[1].sentence == "it is still running: it has no final state"
    assert check(story.messages).sound, "while work goes on it is as it should be"


def test_acknowledged_jobs_and_those_in_the_ledger_are_the_same() -> None:
    story = rich()
    story.enqueue("extra")
    acknowledged = {("email", each) for each in "abcdefg"}
    report = check(story.messages, Expected(enqueued=acknowledged | {("email", "lost"), ("other", "a")}))
    assert sorted(found(report)) == [
        (0, "email/lost", "enqueue"),
        (0, "other/a", "enqueue"),
        (len(story.messages), "email/extra", "enqueue"),
    ]


def test_an_enqueue_without_an_answer_may_be_there_or_not() -> None:
    acknowledged = [("email", each) for each in "abcdef"]
    unsure = {("email", "g"), ("email", "never arrived")}
    assert check(rich().messages, Expected(enqueued=acknowledged, unsure=unsure)).sound


def test_what_is_left_in_a_consumer_is_found() -> None:
    left = Leftover(consumer="work_email_high", pending=2, ack_pending=1)
    report = check(rich().messages, Expected(leftovers=[left]))
    assert found(report) == [(0, "", "consumer")]
    assert report.violations[0].sentence == "consumer work_email_high holds 2 pending and 1 unacknowledged"


# A range that starts later.


def test_a_later_range_checks_links_sequence_and_what_begins_in_it() -> None:
    story = rich()
    report = check(story.messages[4:], from_sequence=5)
    assert (report.sound, report.jobs, report.partial_jobs) == (True, 6, 1)
    assert (report.from_sequence, report.head_sequence) == (5, len(story.messages))


def test_a_later_range_finds_a_broken_link_and_a_forged_job() -> None:
    story = Story()
    for job_id in ("old", "new"):
        story.enqueue(job_id)
        story.claim(job_id)
        story.do(job_id, ReportProgress(epoch=story.epoch(job_id), done=1))
        story.plant(job_id, Queued, cause="new", max_attempts=3)
    story.messages[1] = changed(story.messages[1], b'"worker":"w1"', b'"worker":"w2"')
    report = check(story.messages[1:], from_sequence=2)
    assert found(report) == [(3, "email/old", "chain"), (8, "email/new", "transition")]
    assert check(story.messages).broken == {"chain": 1, "transition": 2}, "from 1 the other one is found too"


def test_expected_jobs_need_the_whole_ledger() -> None:
    checker = Checker(NAMES, from_sequence=5)
    with pytest.raises(InvalidInputError, match="from sequence 1"):
        checker.finish(Expected(enqueued=[]))


# Locks.


def _acquired_while_held(story: Story) -> int:
    return story.append_lock(
        lock_events.Acquired(scope="account", lock="7", at=BEGIN, by="x", holder="x", lease_s=15)
    )


def _released_by_nobody(story: Story) -> int:
    return story.append_lock(
        lock_events.Released(scope="account", lock="7", at=BEGIN, by="x", fencing_number=99)
    )


def _took_over_nothing(story: Story) -> int:
    story.release()
    return story.append_lock(
        lock_events.Acquired(scope="account", lock="7", at=BEGIN, by="x", holder="x", lease_s=15, took_over=1)
    )


@pytest.mark.parametrize("plant", [_acquired_while_held, _released_by_nobody, _took_over_nothing])
def test_a_lock_that_two_held_is_found(plant: Callable[[Story], int]) -> None:
    story = Story()
    story.acquire("w1")
    sequence = plant(story)
    assert found(check(story.messages)) == [(sequence, "lock account/7", "transition")]


def test_damage_to_a_locks_chain_is_found() -> None:
    story = Story()
    story.acquire("w1")
    story.release()
    story.acquire("w2")
    flipped = [*story.messages]
    flipped[1] = changed(flipped[1], b'"by":"h"', b'"by":"i"')
    assert found(check(flipped)) == [(3, "lock account/7", "chain")]
    moved = [msgspec.structs.replace(story.messages[0], subject="ledger.lock.account.8.acquired")]
    assert found(check(moved)) == [(1, "lock account/8", "subject")]
    headless = [msgspec.structs.replace(story.messages[1], stream_sequence=1)]
    assert [each[2] for each in found(check(headless))] == ["chain", "transition"]
    unreadable = [msgspec.structs.replace(story.messages[0], data=b"{}")]
    assert found(check(unreadable)) == [(1, "lock account/7", "readable")]
    assert check(story.messages[1:], from_sequence=2).sound


# From a log.


async def stored_in(story: Story, log: MemoryLog) -> MemoryLog:
    for message in story.messages:
        await log.append([_entry(log, message.subject, message.data)])
    return log


def _entry(log: MemoryLog, subject: str, data: bytes) -> Entry:
    chain = ".".join([*subject.split(".")[:4], ">"])
    return Entry(subject, data, chain, log._last_of(chain))


def test_a_log_is_verified_in_the_order_of_its_stream() -> None:
    async def scenario() -> None:
        story = rich()
        log = await stored_in(story, MemoryLog())
        seen: list[tuple[int, int]] = []
        report = await verify(log, on_progress=lambda done, last: seen.append((done, last)))
        assert report.sound
        assert report.digest == check(story.messages).digest
        assert seen[-1] == (len(story.messages), len(story.messages))
        part = await verify(log, from_sequence=5, to_sequence=20)
        assert (part.sound, part.events, part.head_sequence) == (True, 16, 20)

    asyncio.run(scenario())


def test_what_cannot_be_read_is_a_violation_and_the_check_goes_on_behind_it() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        story = Story()
        for job_id in ("a", "b"):
            story.enqueue(job_id)
            story.run(job_id)
        await stored_in(story, log)
        log._kept[1] = log._kept[1]._replace(data=b"{}")
        await log.append([_entry(log, "ledger.job.email.new.escalated", b'{"type":"escalated"}')])
        story.plant("b", Cancelled)
        last = story.messages[-1]
        await log.append([_entry(log, last.subject, last.data)])
        report = await verify(log)
        assert found(report) == [
            (2, "", "readable"),
            (3, "email/a", "chain"),
            (3, "email/a", "transition"),
            (7, "", "readable"),
            (8, "email/b", "transition"),
        ]
        assert (report.events, report.head_sequence) == (6, 8)

    asyncio.run(scenario())


def test_verify_gives_up_on_what_is_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("jobledger.ledger.audit.UNREADABLE_MAX", 3)
        log = MemoryLog()
        for number in range(5):
            await log.append([_entry(log, f"ledger.job.email.j{number}.cancelled", b"{}")])
        report = await verify(log)
        assert found(report) == [
            (1, "", "readable"),
            (2, "", "readable"),
            (3, "", "readable"),
            (4, "", "sequence"),
        ]
        assert report.violations[-1].sentence.startswith("stream sequence 4 to 5 could not be read")

    asyncio.run(scenario())


class HoledLog(MemoryLog):
    """A log that lost a stretch, as a reader of a dense stream learns of it; the end can be lost as well."""

    def __init__(self, lost: range) -> None:
        super().__init__()
        self.lost = lost

    async def read_messages(
        self, *, from_sequence: int = 1, **options: Any
    ) -> AsyncGenerator[list[Message], None]:
        async for batch in super().read_messages(from_sequence=from_sequence, **options):
            before = [message for message in batch if message.stream_sequence < self.lost.start]
            if before:
                yield before
            if self.lost.stop > len(self._kept):
                return
            if from_sequence < self.lost.stop:
                raise SequenceGapError("lost", stream_sequence=self.lost.start, next_sequence=self.lost.stop)
            yield batch


def test_a_hole_in_the_log_is_named_and_the_check_goes_on_behind_it() -> None:
    async def scenario() -> None:
        story = rich()
        log = HoledLog(range(5, 8))
        await stored_in(story, log)
        report = await verify(log)
        assert found(report)[0] == (5, "", "sequence")
        assert report.broken["sequence"] == 1
        assert (report.events, report.head_sequence) == (len(story.messages) - 3, len(story.messages))

    asyncio.run(scenario())


def test_an_end_that_cannot_be_read_is_missing() -> None:
    async def scenario() -> None:
        story = rich()
        last = len(story.messages)
        log = HoledLog(range(last - 1, last + 1))
        await stored_in(story, log)
        report = await verify(log)
        assert found(report) == [(last - 1, "", "sequence")]
        assert f"{last - 1} to {last} could not be read" in report.violations[0].sentence

    asyncio.run(scenario())


def test_a_log_that_ends_too_early_was_rewound() -> None:
    async def scenario() -> None:
        log = await stored_in(rich(), MemoryLog())
        assert found(await verify(log, from_sequence=1_000)) == [(1_000, "", "sequence")]
        assert (await verify(log, to_sequence=1_000)).broken == {"sequence": 1}
        assert (await verify(log, from_sequence=len(log._kept) + 1)).sound
        with pytest.raises(InvalidInputError, match="before from_sequence"):
            await verify(log, from_sequence=5, to_sequence=3)

    asyncio.run(scenario())
