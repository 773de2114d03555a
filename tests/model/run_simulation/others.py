"""Everybody beside the run's holder: workers of children, the reactor, people, timers, an archive run."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any

from tests.model.run_simulation.holder import ERROR
from tests.model.run_simulation.program import SIGNALS, Program
from tests.model.run_simulation.stage import RUN, Delivered, Stage
from tests.model.simulation.loop import Process

from jobledger.ledger.model.chain import commit, load, transact
from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Claim,
    Command,
    Complete,
    ConfirmCancel,
    Discard,
    Dispatch,
    Fail,
    GiveSignal,
    Pause,
    RequestPause,
    Requeue,
    ResumeJob,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    JobNotFoundError,
    StaleClaimError,
    WrongSequenceError,
)
from jobledger.ledger.model.job import CLOSED_STATES, OPERATOR, JobState
from jobledger.ledger.model.runs.orders import WITH_ITS_RUN
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.protocols import Client
from jobledger.ledger.timers import wait_timer
from jobledger.workers.reactors.children.creation import ChildOpener
from jobledger.workers.reactors.children.joins import Joiner
from jobledger.workers.reactors.children.reach import ChildFollower
from jobledger.workers.reactors.children.reactor import ChildrenReactor

#: What people may prefer; see `wish`.
CANCEL, PAUSE, MEND = 0.5, 0.6, 0.97
_REFUSED = (IllegalTransitionError, JobNotFoundError, StaleClaimError, WrongSequenceError)


async def work(stage: Stage, program: Program, client: Client, ref: JobRef) -> None:
    """Make one attempt of a child: it completes or becomes a dead letter, unless it is told to end or to pause."""
    log, stamp = client.log, client.stamp
    with contextlib.suppress(*_REFUSED):
        view = await load(log, ref)
        job = view.job
        if job is None or job.state not in (JobState.QUEUED, JobState.RUNNING):
            return
        command: Command = Claim(worker=stamp().by, lease_s=1.0)
        if job.state is JobState.RUNNING:
            command = TakeOver(worker=stamp().by, lease_s=1.0, lost_epoch=job.claim_epoch)
        view = await commit(log, view, decide(job, command, stamp()))
        job = view.job
        if job is None or job.state is not JobState.RUNNING:
            return
        seen = stage.jobs[ref]  # what it hears of by a hint
        outcome: Command = Complete(epoch=job.claim_epoch)
        if seen.cancel_requested:
            outcome = ConfirmCancel(epoch=job.claim_epoch)
        elif seen.pause_requested:
            outcome = Pause(epoch=job.claim_epoch, event=OPERATOR)
        elif job.member is not None and job.member.item in program.failing and not stage.is_mended(ref):
            outcome = Fail(epoch=job.claim_epoch, error=ERROR, give_up="rejected")
        await transact(log, ref, outcome, stamp, known=view)


class SimReactor(ChildrenReactor):
    """The reactor as it is, fed by hand instead of a consumer."""

    ack_first = False  #: a planted bug

    def __init__(self, stage: Stage, client: Any) -> None:
        self.ledger = client
        self.joining = Joiner(client, ChildOpener(client))
        self._reaching = ChildFollower(client)
        self._stage = stage

    async def deal_with(self, process: Process, handed: Delivered) -> None:
        """Deal with one delivery, then acknowledge it; what could not be done comes again."""
        handed.times += 1
        handed.in_hands_of.append(process)
        stored = handed.stored
        delivery = Delivery(
            data=stored.data,
            reply="",
            stream_sequence=stored.stream_sequence,
            delivered=handed.times,
            stored_ns=0,
            pending=0,
            subject=stored.subject.encode(),
        )
        if self.ack_first:
            self._ack(handed)
        try:
            kept = self.keep(delivery)
            if kept is not None:
                await self.react(kept)
        except WrongSequenceError:
            handed.in_hands_of.remove(process)
            return
        self._ack(handed)

    def _ack(self, handed: Delivered) -> None:
        if self._stage.waiting.pop(handed.stored.stream_sequence, None) is not None:
            self._stage.acks += 1


async def ask(client: Client, ref: JobRef, command: Command) -> None:
    """Do what a person asks for, if it is allowed."""
    with contextlib.suppress(*_REFUSED):
        await transact(client.log, ref, command, client.stamp)


async def resume(client: Client, ref: JobRef) -> None:
    """Let a run go on that a person paused: its children first, as who dies in between can be asked again."""
    with contextlib.suppress(*_REFUSED):
        view = await load(client.log, ref)
        if view.job is None or view.job.state is not JobState.PAUSED:
            return
        await ChildFollower(client).resume(ref, view.job)
        await transact(client.log, ref, ResumeJob(), client.stamp)


async def fire(stage: Stage, client: Client, ref: JobRef) -> None:
    """Act on the timer of a job that waits for a moment."""
    job = stage.jobs[ref]
    if job.due_at is None or job.due_at > stage.now() or job.state is JobState.PAUSED:
        return
    timer = wait_timer(job)
    await ask(client, ref, Dispatch(cause=timer.cause, asked_by=timer.asked_by))


async def archive(stage: Stage, client: Client) -> None:
    """Carry every open job over, then take the older events away; nothing that the reactor still has to hear of."""
    await client.log.head()
    through = min(stage.known_to_all(), min(stage.waiting, default=len(stage.stored) + 1) - 1)
    for ref, job in list(stage.jobs.items()):
        if job.state not in CLOSED_STATES or job.last_sequence > through:
            await ask(client, ref, Carry(through=through))
    for job in stage.jobs.values():
        if job.state not in CLOSED_STATES and job.carried_sequence <= through:
            return  # somebody was faster, or it was made meanwhile: another time
    await stage.log.purge(through)


def wish(stage: Stage, client: Client, favourite: float | None) -> Coroutine[Any, Any, None]:
    """Return what a person does next to the run or to one of its children, as a coroutine.

    `favourite`: the number of what this person prefers.
    """
    random = stage.random
    what = random.random() if favourite is None or random.random() < 0.5 else favourite
    children = list(stage.children)
    if what < 0.45 or not children:
        name = random.choice(SIGNALS)
        return ask(client, RUN, GiveSignal(name=name, id=random.choice(("", "1", "2"))))
    if what < 0.84:
        return _wish_of_run(client, what)
    if what >= 0.96:
        return mend(stage, client, random.choice(stage.dead or children))
    child = random.choice(children)
    if what < 0.88:
        return ask(client, child, CancelJob())
    if what < 0.92:
        return ask(client, child, RequestPause(reason="a person"))
    return resume_child(stage, client, child)


def mend(stage: Stage, client: Client, child: JobRef) -> Coroutine[Any, Any, None]:
    """Return what a person does with a dead child, mostly a requeue, as a coroutine."""
    return ask(client, child, Requeue() if stage.random.random() < 0.8 else Discard())


def _wish_of_run(client: Client, what: float) -> Coroutine[Any, Any, None]:
    if what < 0.53:
        return ask(client, RUN, CancelJob(reason="a person"))
    if what < 0.66:
        return ask(client, RUN, RequestPause(reason="a person"))
    return resume(client, RUN) if what < 0.8 else ask(client, RUN, Requeue())


async def resume_child(stage: Stage, client: Client, ref: JobRef) -> None:
    """Let a child go on that a person paused; one that is paused with its run waits for that."""
    job = stage.jobs[ref]
    if job.state is JobState.PAUSED and not job.pause_reason.startswith(WITH_ITS_RUN):
        await ask(client, ref, ResumeJob())
