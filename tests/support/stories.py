"""Ledgers in the making for tests of the checker: `Story` writes them event by event, `rich` has every type."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from tests.support.orders import enqueue_of

from jobledger.audit.verify import Checker, Expectation, Report
from jobledger.ledger.model import lock as lock_events
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.aggregates import aggregate_for, read_message
from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, advance, link
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Checkpoint,
    Claim,
    Complete,
    ConfirmCancel,
    DeadLetter,
    Discard,
    Dispatch,
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
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.events import Cause, ErrorInfo, JobEvent
from jobledger.ledger.model.job import CLOSED_STATES, Job
from jobledger.ledger.model.limits.definition import LimitSet
from jobledger.ledger.model.limits.flow import Granted, GrantedJob, Snapshotted
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.reactor import Archived, LimitInForce, ReactorEvent
from jobledger.ledger.model.subjects import JobRef, LockRef, Names

NAMES = Names()
BEGIN = datetime(2026, 1, 2, tzinfo=UTC)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom", traceback="x" * 5_000)
LOCK = LockRef(scope="account", lock_id="7")


class Story:
    """A ledger in the making; its clock moves a second an append, or where a test sets it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.chains: dict[JobRef, JobView] = {}
        self.lock = View[lock_events.Lock]()
        self.now = BEGIN

    def ref(self, job_id: str) -> JobRef:
        return JobRef(queue="email", job_id=job_id)

    def enqueue(self, job_id: str, **options: Any) -> None:
        order: dict[str, Any] = {"max_attempts": 3, "input": msgspec.Raw(b'{"user_id":7}'), **options}
        self.do(job_id, enqueue_of(self.ref(job_id), **order))

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
        linked = link(chain, events, NAMES)
        first = len(self.messages) + 1
        for entry in linked.entries:
            self.store(entry.subject, data or entry.data)
        self.chains[self.ref(job_id)] = advance(chain, linked, first)
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
            lock_events.decide(LOCK, self.lock.state, command, Stamp(at=self.now, by=holder))
        )

    def release(self) -> int:
        assert self.lock.state is not None
        command = lock_events.Release(fencing_number=self.lock.state.fencing_number)
        return self.append_lock(
            lock_events.decide(LOCK, self.lock.state, command, Stamp(at=self.now, by="h"))
        )

    def react(self, event: ReactorEvent) -> int:
        """Append an event of a reactor, linked to its chain."""
        return self.record(event)

    def record(self, event: Envelope) -> int:
        """Append an event of an aggregate whose newest event says the whole state, linked to its chain."""
        of = aggregate_for(event)
        chain = of.chain_of(NAMES, event).removesuffix(">")
        own = [each for each in self.messages if each.subject.startswith(chain)]
        entry = of.link(NAMES, [event], of.view(own[-1] if own else None))[0]
        self.store(entry.subject, entry.data)
        return len(self.messages)

    def archive(self, through: int, limits: tuple[LimitInForce, ...] | None = None) -> int:
        """Carry what lives, and say that everything up to `through` is archived; nothing is taken away.

        `limits`: what is said of their definitions; None: nothing, as earlier releases did.
        """
        for job_id in [ref.job_id for ref, chain in self.chains.items() if not self._is_read(chain.job)]:
            with contextlib.suppress(LedgerError):
                self.do(job_id, Carry(through=through))
        return self.react(
            Archived(
                reactor="archive",
                at=self.now,
                by="operator",
                through_sequence=through,
                manifest_sha256="a" * 64,
                head_hash=self.messages[through - 1].hash,
                digest="b" * 64,
                count=through,
                limits=limits,
            )
        )

    def _is_read(self, job: Job | None) -> bool:
        """Whether a child has ended, and its run needs nothing of it any more."""
        if job is None or job.member is None or job.state not in CLOSED_STATES:
            return False
        run = self.chains[self.ref(job.member.job)].job
        step = None if run is None else run.steps.get(job.member.step)
        return run is None or run.state in CLOSED_STATES or (step is not None and step.has_ended)

    def append_lock(self, event: lock_events.LockEvent) -> int:
        entry = lock_events.LOCK.link(NAMES, [event], self.lock)[0]
        self.store(entry.subject, entry.data)
        self.lock = lock_events.LOCK.advance(entry, event, len(self.messages))
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
    defined = story.record(LimitSet(limit="api", slots=1, at=story.now, by="op", source="operator"))
    story.record(Snapshotted(shard="main", through=0, low=1, at=story.now, by="r1"))
    story.enqueue("g", limits=("api",))
    held = len(story.messages)
    jobs = (GrantedJob(queue="email", job="g", held=held),)
    granted = Granted(shard="main", through=held, limits_sequence=defined, jobs=jobs, at=story.now, by="r1")
    story.do("g", Dispatch(cause="admitted", grant=story.record(granted)))
    story.do("g", CancelJob())


def _locked(story: Story) -> None:
    held = story.acquire("w1")
    story.acquire("w2", lost=held)
    story.release()
    story.acquire("w3")


def check(
    messages: Sequence[Message],
    expected: Expectation | None = None,
    /,
    *,
    names: Names = NAMES,
    **options: Any,
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


_CAUSES: tuple[Cause, ...] = ("due", "retried", "admitted", "resumed", "redispatched")


def _dispatch_in_time(story: Story, job_id: str) -> None:
    job = story.chains[story.ref(job_id)].job
    story.now = max(story.now, job.due_at) if job is not None and job.due_at is not None else story.now
    for cause in _CAUSES:
        with contextlib.suppress(LedgerError):
            story.do(job_id, Dispatch(cause=cause, grant=int(cause == "admitted")))
            return


STEPS: list[Callable[[Story, str], Any]] = [
    lambda story, job: story.claim(job),
    lambda story, job: story.do(job, TakeOver(worker="w2", lease_s=15, lost_epoch=story.epoch(job))),
    lambda story, job: story.complete(job),
    lambda story, job: story.do(job, Fail(epoch=story.epoch(job), error=BOOM)),
    lambda story, job: story.do(job, Fail(epoch=story.epoch(job), error=BOOM, offers_again=True)),
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


async def stored_in(story: Story, log: MemoryLog) -> MemoryLog:
    for message in story.messages:
        await log.append([entry_of(log, message.subject, message.data)])
    return log


def entry_of(log: MemoryLog, subject: str, data: bytes) -> Entry:
    chain = ".".join([*subject.split(".")[:4], ">"])
    return Entry(subject, data, chain, log._last_of(chain))


def story_event(story: Story, index: int) -> JobEvent:
    stored = story.messages[index]
    assert isinstance(stored, StoredEvent)
    return stored.event
