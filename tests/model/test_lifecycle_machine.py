"""Random commands by several writers with views of any age, against a model of a few lines.

A writer may read, decide on an old view, repeat an append it made long ago, or die between deciding and learning
the answer. Whatever they do, the invariants of the lifecycle must hold in what is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.limits import LIMIT_S

from jobledger.ledger.connection import connect
from jobledger.ledger.model.chain import (
    EMPTY_CHAIN,
    JobView,
    LinkedEvents,
    advance,
    extend,
    fold,
    link,
    load,
    transact,
)
from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Checkpoint,
    Claim,
    Command,
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
    PutBack,
    ReportProgress,
    Requeue,
    Rescue,
    Snooze,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import JobNotFoundError, RefusedError, WrongSequenceError
from jobledger.ledger.model.events import (
    Cause,
    ErrorInfo,
    Failed,
    Held,
    JobEvent,
    Order,
    Queued,
    Started,
    event_type,
)
from jobledger.ledger.model.job import Job, JobState, evolve, retried
from jobledger.ledger.model.lifecycle import CAUSES
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.transitions import violation

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

T = TypeVar("T")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom")
JOB_IDS = ("a", "b", "c")
ACTORS = ("w0", "w1", "w2")
CAUSES_ASKED: tuple[Cause, ...] = ("due", "admitted", "retried", "resumed", "redispatched")
OUTCOMES = frozenset({"completed", "failed", "interrupted", "snoozed", "paused"})

jobs = st.sampled_from(JOB_IDS)
actors = st.sampled_from(ACTORS)
seldom = st.sampled_from([False, False, False, True])


class Lifecycle(RuleBasedStateMachine):
    """Several writers on a few chains of one log."""

    log: Log

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.exit = contextlib.AsyncExitStack()
        self.log = self.run(self.open_log())
        self.views: dict[tuple[str, str], JobView] = {}  # what each writer believes of each job
        self.held: dict[tuple[str, str], int] = {}  # the claim epoch a writer thinks it holds
        self.sent: list[tuple[Entry, ...]] = []  # every append ever tried
        #: The model: an append is let in exactly if its writer had seen the newest event of the chain.
        self.model: dict[str, JobView] = dict.fromkeys(JOB_IDS, EMPTY_CHAIN)
        self.moment = 0

    async def open_log(self) -> Log:
        return MemoryLog()

    def run(self, action: Awaitable[T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(LIMIT_S):
                return await action

        return self.runner.run(bounded())

    def teardown(self) -> None:
        try:
            self.run(self.check_the_whole_log())
        finally:
            self.run(self.exit.aclose())
            self.runner.close()

    def ref(self, job: str) -> JobRef:
        return JobRef(queue="email", job_id=job)

    def stamp(self, actor: str) -> Stamp:
        self.moment += 1  # never the same bytes twice, unless an append is repeated
        return Stamp(at=NOW + timedelta(seconds=self.moment), by=actor)

    def view(self, actor: str, job: str) -> JobView:
        return self.views.get((actor, job), EMPTY_CHAIN)

    def attempt(self, actor: str, job: str, command: Command, *, crash: bool = False) -> bool:
        """Decide on the writer's own view, however old, and append; the model says whether that may succeed."""
        view = self.view(actor, job)
        try:
            events = decide(view.job, command, self.stamp(actor))
        except (RefusedError, JobNotFoundError):
            return False
        linked = link(view, events, self.log.names)
        self.sent.append(linked.entries)
        newest = self.model[job].last_sequence == view.last_sequence
        try:
            first = self.run(self.log.append(linked.entries))
        except WrongSequenceError:
            assert not newest, "a writer with the newest view was refused"
            return False
        assert newest, "a writer with a stale view was let in"
        self.model[job] = advance(view, linked, first)
        if not crash:
            self.views[actor, job] = self.model[job]
            if isinstance(linked.events[-1], Started):
                self.held[actor, job] = self.model[job].last_sequence
        return True

    @initialize(limited=st.booleans())
    def begin(self, limited: bool) -> None:
        self.attempt("w0", JOB_IDS[0], self._order(JOB_IDS[0]))
        second = self._order(JOB_IDS[1])
        limits = ("api", "tenant:acme") if limited else ()
        order = msgspec.structs.replace(second.order, limits=limits)
        self.attempt("w0", JOB_IDS[1], msgspec.structs.replace(second, order=order))

    @rule(actor=actors, job=jobs)
    def read(self, actor: str, job: str) -> None:
        self.views[actor, job] = self.run(load(self.log, self.ref(job)))

    @rule(actor=actors, job=jobs)
    def forget(self, actor: str, job: str) -> None:
        """The process dies; its claim stays on record."""
        self.views.pop((actor, job), None)
        self.held.pop((actor, job), None)

    @rule(actor=actors, attempts=st.integers(1, 3), delayed=seldom, limited=seldom)
    def enqueue(self, actor: str, attempts: int, delayed: bool, limited: bool) -> None:
        run_at = NOW + timedelta(days=60) if delayed else None
        limits = ("api",) if limited else ()
        job = JOB_IDS[-1]
        order = Enqueue(
            ref=self.ref(job), task="send", run_at=run_at, order=Order(max_attempts=attempts, limits=limits)
        )
        self.attempt(actor, job, order)

    @rule(actor=actors, job=jobs, crash=seldom, stale=seldom)
    def claim(self, actor: str, job: str, crash: bool, stale: bool) -> None:
        if not stale:
            self.read(actor, job)
        self.attempt(actor, job, Claim(worker=actor, lease_s=15.0), crash=crash)

    @rule(actor=actors, job=jobs, data=st.data())
    def work(self, actor: str, job: str, data: st.DataObject) -> None:
        """What a worker does when nothing gets in its way."""
        self.claim(actor, job, crash=False, stale=False)
        if (actor, job) in self.held:
            self._say(actor, job, data, crash=False)

    @rule(actor=actors, job=jobs)
    def take_over(self, actor: str, job: str) -> None:
        self.read(actor, job)
        found = self.view(actor, job).job
        lost = found.claim_epoch if found else 0
        self.attempt(actor, job, TakeOver(worker=actor, lease_s=15.0, lost_epoch=lost))

    @precondition(lambda self: bool(self.held))
    @rule(crash=seldom, fresh=seldom, data=st.data())
    def report(self, crash: bool, fresh: bool, data: st.DataObject) -> None:
        """What a holder says, on the view it had (it has not heard of a takeover) or on the newest one."""
        actor, job = data.draw(st.sampled_from(sorted(self.held)))
        if fresh:
            self.read(actor, job)
        self._say(actor, job, data, crash=crash)

    def _say(self, actor: str, job: str, data: st.DataObject, *, crash: bool) -> None:
        epoch = self.held[actor, job]
        later = NOW + timedelta(days=60)
        sayings: list[Command] = [
            Complete(epoch=epoch, result=msgspec.Raw(b"1")),
            Fail(epoch=epoch, error=BOOM),
            Fail(epoch=epoch, error=BOOM, offers_again=True),
            Fail(epoch=epoch, error=BOOM, retry_at=later),
            Fail(epoch=epoch, error=BOOM, give_up="rejected"),
            Interrupt(epoch=epoch, reason="deploy"),
            Snooze(epoch=epoch, until=later),
            Pause(epoch=epoch, event="paid"),
            ConfirmCancel(epoch=epoch),
            Checkpoint(epoch=epoch, value=msgspec.Raw(b"{}")),
            ReportProgress(epoch=epoch, done=1),
        ]
        said = data.draw(st.sampled_from(sayings))
        holder = self.model[job].job
        accepted = self.attempt(actor, job, said, crash=crash)
        assert not accepted or (holder is not None and holder.claim_epoch == epoch), (
            "a stale claim was believed"
        )

    @rule(actor=actors, job=jobs, data=st.data())
    def operate(self, actor: str, job: str, data: st.DataObject) -> None:
        """What operators, timers and reactors ask for, by the path that decides again after a lost race."""
        newest = self.model[job].job
        fitting = CAUSES.get(newest.state if newest else None, frozenset[Cause]())
        held = self.held.get((actor, job), 7)
        wishes: list[Command] = [
            *(
                Dispatch(cause=cause, grant=newest.last_sequence if newest and cause == "admitted" else 0)
                for cause in CAUSES_ASKED
                if cause in fitting or cause == "redispatched"
            ),
            PutBack(asked_by=newest.wait_sequence if newest else 0),
            *(Fence(epoch=held, attempt=number, worker=actor, outcome="completed") for number in (1, 2)),
            *(Requeue(attempts=number) for number in (1, 2)),
            DeadLetter(reason="max_deliver", epoch=newest.claim_epoch if newest else 0),
            Rescue(lost_epoch=newest.claim_epoch if newest else 0),
            Discard(),
            CancelJob(reason="no"),
            *(Carry(through=newest.last_sequence - back if newest else 0) for back in (0, 1, 3)),
        ]
        command = data.draw(st.sampled_from(wishes))
        known = self.views.get((actor, job))
        try:
            after = self.run(
                transact(self.log, self.ref(job), command, lambda: self.stamp(actor), known=known)
            )
        except (RefusedError, JobNotFoundError):
            with pytest.raises((RefusedError, JobNotFoundError)):  # on the newest view too
                decide(self.model[job].job, command, self.stamp(actor))
            return
        expected = decide(self.model[job].job, command, self.stamp(actor))
        assert after.last_sequence - self.model[job].last_sequence >= len(expected)
        self.model[job] = self.views[actor, job] = after

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """An append whose answer was lost is sent again, late: the log lets no second copy in."""
        if not self.sent:
            return
        entries = data.draw(st.sampled_from(self.sent))
        job = entries[0].subject.split(".")[3]
        if self.model[job].last_sequence == entries[0].expected:
            return  # it was refused before and would be let in now: that is a new append, not a repetition
        before = self.run(self.log.head()).last_sequence
        # JetStream finds its own bytes and says where they are; a log that cannot tell refuses. Neither stores.
        with contextlib.suppress(WrongSequenceError):
            assert self.run(self.log.append(entries)) <= before
        assert self.run(self.log.head()).last_sequence == before

    @rule(job=jobs, data=st.data())
    def race(self, job: str, data: st.DataObject) -> None:
        """Everybody appends at once on one view: one is let in."""
        chain = self.model[job]
        wishes: list[Command] = [Claim(worker="x", lease_s=1), self._order(job)]
        command = data.draw(st.sampled_from(wishes))
        linked: list[LinkedEvents] = []
        for actor in ACTORS:
            try:
                linked.append(link(chain, decide(chain.job, command, self.stamp(actor)), self.log.names))
            except (RefusedError, JobNotFoundError):
                return

        async def together() -> list[int | BaseException]:
            appends = (self.log.append(one.entries) for one in linked)
            return await asyncio.gather(*appends, return_exceptions=True)

        answers = self.run(together())
        won = [(one, answer) for one, answer in zip(linked, answers, strict=True) if isinstance(answer, int)]
        assert len(won) == 1
        assert all(isinstance(answer, int | WrongSequenceError) for answer in answers)
        self.model[job] = advance(chain, *won[0])

    def _order(self, job: str) -> Enqueue:
        return Enqueue(ref=self.ref(job), task="send", order=Order(max_attempts=3))

    @invariant()
    def live_state_is_what_was_let_in(self) -> None:
        for job in JOB_IDS:
            assert self.run(load(self.log, self.ref(job))) == self.model[job]

    async def check_the_whole_log(self) -> None:
        """Replay everything that is stored and hold each event to the invariants."""
        chains: dict[str, JobView] = dict.fromkeys(JOB_IDS, EMPTY_CHAIN)
        accepted: set[tuple[str, int]] = set()  # attempts that have an outcome
        sequence = 0
        dispatches: dict[int, JobEvent] = {}
        async for batch in self.log.read():
            for stored in batch:
                sequence += 1
                assert stored.stream_sequence == sequence
                before, event = chains[stored.event.job], stored.event
                assert event.prev == before.last_hash
                assert violation(before.job, event) is None
                chains[event.job] = extend(before, stored)
                job = chains[event.job].job
                assert job is not None
                _check_step(before.job, job, stored.event.__class__ in (Queued, Held))
                dispatches[sequence] = event
                _check_without_chain(job, event, sequence, dispatches)
                if event_type(event) in OUTCOMES and before.job is not None:
                    outcome = (event.job, before.job.claim_epoch)
                    assert outcome not in accepted, "two outcomes of one attempt"
                    accepted.add(outcome)
        assert chains == self.model
        for job_id, chain in self.model.items():
            assert fold(await self.log.read_chain(self.log.names.chain(self.ref(job_id)))) == chain


def _check_step(before: Job | None, after: Job, is_ready: bool) -> None:
    live = [attempt for attempt in after.attempts if attempt.state == "running"]
    assert len(live) == (after.state is JobState.RUNNING), "exactly the running job has one live claim"
    assert after.claim_epoch == (live[0].epoch if live else 0), "the claim epoch is the live attempt's"
    epochs = [attempt.epoch for attempt in after.attempts]
    assert epochs == sorted(set(epochs)), "epochs grow"
    assert len(after.attempts) <= after.order.max_attempts + after.attempts_given_back, (
        "more attempts than granted"
    )
    if before is not None and before.is_final and after.state is not before.state:
        left_by_a_person = before.state is JobState.DEAD_LETTERED and (
            is_ready or after.state is JobState.DISCARDED
        )
        assert left_by_a_person, "a final state was left"


def _check_without_chain(job: Job, event: JobEvent, sequence: int, events: dict[int, JobEvent]) -> None:
    """Whoever has only a retry, or a failure and the dispatch that it names, decides as on the whole chain."""
    alone: Job | None = None
    if isinstance(event, Queued) and event.given_back is not None:
        alone = evolve(None, event, sequence)
    elif isinstance(event, Failed) and event.dispatch:
        dispatch = events[event.dispatch]
        assert isinstance(dispatch, Queued)
        alone = retried(dispatch, event, sequence)
    if alone is None:
        return
    assert (alone.state, alone.order, alone.due_at) == (job.state, job.order, job.due_at)
    stamp = Stamp(at=NOW, by="w")
    for command in (
        Claim(worker="w", lease_s=15.0),
        Dispatch(cause="retried", asked_by=job.wait_sequence),
        Dispatch(cause="redispatched", asked_by=job.wait_sequence),
        CancelJob(reason="no"),
        DeadLetter(reason="exhausted"),
    ):
        assert _answer(alone, command, stamp) == _answer(job, command, stamp)
    if job.state is JobState.QUEUED:
        claimed, whole = (evolve(each, _start(each, stamp), sequence + 1) for each in (alone, job))
        for said in (Complete(epoch=sequence + 1), Fail(epoch=sequence + 1, error=BOOM, offers_again=True)):
            assert _answer(claimed, said, stamp) == _answer(whole, said, stamp)


def _start(job: Job, stamp: Stamp) -> JobEvent:
    (started,) = decide(job, Claim(worker="w", lease_s=15.0), stamp)
    return started


def _answer(job: Job, command: Command, stamp: Stamp) -> tuple[JobEvent, ...] | type[RefusedError]:
    try:
        return decide(job, command, stamp)
    except RefusedError as error:
        return type(error)


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        phases=[
            Phase.reuse,
            Phase.generate,
        ],  # shrinking a failure takes longer than a test may: its steps are shown
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("examples", [50, pytest.param(1_000, marks=pytest.mark.fault)])
def test_the_lifecycle_holds_in_memory(examples: int) -> None:
    run_state_machine_as_test(Lifecycle, settings=_settings(examples, 50))


@pytest.mark.anyio
@pytest.mark.timeout(60)
async def test_the_lifecycle_holds_on_jetstream(nats_server: EmbeddedServer) -> None:
    class OnJetStream(Lifecycle):
        async def open_log(self) -> Log:
            settings: dict[str, Any] = {
                "environment": f"m_{secrets.token_hex(6)}",
                "ledger_bytes_max": 1 << 22,
            }
            ledger = await self.exit.enter_async_context(connect(nats_server.url, **settings))
            return ledger.log

    # The machine has an event loop of its own, so it needs a thread of its own.
    machine = _settings(20, 40)
    await asyncio.to_thread(run_state_machine_as_test, OnJetStream, settings=machine)
