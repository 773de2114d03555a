"""Histories of jobs at random: the same seed gives the same bytes, and `decide` refuses what cannot be."""

from __future__ import annotations

import copy
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from tests.support.orders import enqueue_of

from jobledger.ledger.model.chain import link, load
from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Checkpoint,
    Claim,
    Command,
    Complete,
    CompleteStep,
    Discard,
    Dispatch,
    Enqueue,
    Fail,
    FailStep,
    Fence,
    GiveSignal,
    Interrupt,
    Join,
    Note,
    Pause,
    PutBack,
    RefuseSignal,
    ReportProgress,
    RequestPause,
    Requeue,
    Rescue,
    ResumeJob,
    Snooze,
    Stamp,
    StartStep,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.events import ChildOrder, ErrorInfo, PayloadRef
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.runs.steps import next_signal
from jobledger.ledger.model.subjects import JobRef

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
ERROR = ErrorInfo(kind="exception", type="ValueError", message="no such user", traceback="Traceback ...")
#: What may happen to a job, with its weight: an early cancel would end nearly every history.
WEIGHTS = {
    "claim": 20,
    "complete": 3,
    "fail": 6,
    "give_up": 3,
    "take_over": 4,
    "dispatch": 20,
    "snooze": 4,
    "pause": 4,
    "interrupt": 4,
    "checkpoint": 4,
    "progress": 4,
    "cancel": 1,
    "requeue": 5,
    "requeue_edited": 5,
    "requeue_large": 5,
    "discard": 3,
    "fence": 2,
    "enqueue_later": 10,
    "enqueue_held": 10,
    "carry": 2,
    "rescue": 1,
}
#: What may happen to a run beside that, and what a person may do to any job.
RUN_WEIGHTS = {
    "step": 4,
    "step_fails": 2,
    "children": 4,
    "joined": 4,
    "signal": 2,
    "refuse": 4,
    "ask_to_pause": 2,
    "resume": 4,
    "note": 1,
}
STEPS = tuple(WEIGHTS)
CHILDREN = ChildOrder(task="g", queue="children", count=5, limit=2, on_failure="collect")
#: With grants that no `granted` gave: for whoever does not check them.
LIMITED_STEPS = (*STEPS, *RUN_WEIGHTS, "admit", "put_back")


class SteppedClock:
    """A clock that tells every event's own time, so that the same seed gives the same bytes."""

    def __init__(self) -> None:
        self.ticks = 0

    def now(self) -> datetime:
        self.ticks += 1
        return BEGIN + timedelta(milliseconds=13 * self.ticks)

    def monotonic(self) -> float:
        return time.monotonic()


def ref_of(number: int) -> JobRef:
    return JobRef(queue=f"queue-{number % 3}", job_id=f"job-{number:05}")


def enqueue(number: int, **order: Any) -> Enqueue:
    value = msgspec.Raw(msgspec.json.encode({"number": number}))
    fields: dict[str, Any] = {"input": value, "max_attempts": 2, **order}
    return enqueue_of(ref_of(number), task=f"app.task_{number % 2}", **fields)


def command_of(number: int, step: str, job: Job | None, at: datetime) -> Command:
    """Return what `step` means for a job; `decide` refuses where it does not fit."""
    if job is None:
        said: dict[str, Any] = {
            "limits": ("smtp", "tenant:t1"),
            "tenant": "t1",
            "metadata": {"n": str(number)},
        }
        return enqueue(
            number,
            run_at=at + timedelta(hours=1) if step == "enqueue_later" else None,
            **(said if step == "enqueue_held" else {}),
        )
    epoch, later = job.claim_epoch, at + timedelta(seconds=5)
    first = job.attempts[0] if job.attempts else None
    commands: dict[str, Command] = {
        "claim": Claim(worker=f"w-{number % 4}", lease_s=15),
        "complete": Complete(epoch=epoch, result=msgspec.Raw(b'{"ok":true}')),
        "fail": Fail(epoch=epoch, error=ERROR, retry_at=later),
        "give_up": Fail(epoch=epoch, error=ERROR, give_up="rejected"),
        "take_over": TakeOver(worker="w-9", lease_s=15, lost_epoch=epoch),
        "dispatch": Dispatch(cause="due"),
        "snooze": Snooze(epoch=epoch, until=later),
        "interrupt": Interrupt(epoch=epoch, reason="deploy"),
        "checkpoint": Checkpoint(epoch=epoch, value=msgspec.Raw(b"[1,2]")),
        "progress": ReportProgress(epoch=epoch, done=1, total=4, note="first"),
        "cancel": CancelJob(reason="changed my mind"),
        "requeue": Requeue(attempts=2),
        "requeue_edited": Requeue(input=msgspec.Raw(b'{"number":-1}')),
        "requeue_large": Requeue(input_ref=PayloadRef(sha256="ab" * 32, size_bytes=70_000)),
        "discard": Discard(reason="known"),
        "fence": Fence(epoch=first.epoch if first else 0, attempt=1, worker="w-0", outcome="completed"),
        "enqueue_later": CancelJob(),
        "enqueue_held": CancelJob(),
        "pause": Pause(epoch=epoch, event="approved"),
        "rescue": Rescue(lost_epoch=epoch),
        "step": CompleteStep(epoch=epoch, step=f"s{job.last_sequence}", kind="step", target="f", tries=9),
        "step_fails": FailStep(
            epoch=epoch, step="late", kind="step", target="f", error=ERROR, retry_at=later
        ),
        "children": StartStep(epoch=epoch, step="all", kind="map", target="g", order=CHILDREN),
        "joined": Join(step="all", completed=((0, 0),), failed=((1, 1),)),
        "signal": GiveSignal(name="paid", id=str(len(job.signals) % 3)),
        "refuse": RefuseSignal(
            epoch=epoch,
            step="paid",
            name="paid",
            signal=kept.sequence if (kept := next_signal(job.signals, "paid")) else 0,
            reason="no int",
        ),
        "ask_to_pause": RequestPause(reason="deploy"),
        "resume": ResumeJob(reason="deployed"),
        "carry": Carry(through=job.last_sequence - number % 2),
        "note": Note(text="asked by the customer"),
        "admit": Dispatch(cause="admitted", grant=job.last_sequence),
        "put_back": PutBack(asked_by=job.wait_sequence),
    }
    return commands[step]


async def act(log: Log, number: int, step: str, clock: SteppedClock) -> bool:
    """Append what `step` does to a job, or nothing where it is refused."""
    chain = await load(log, ref_of(number))
    stamp = Stamp(at=clock.now(), by="test")
    try:
        events = decide(chain.job, command_of(number, step, chain.job, stamp.at), stamp)
    except RefusedError:
        return False
    await log.append(link(chain, events, log.names).entries)
    return True


async def random_history(log: Log, seed: int, *, jobs: int, steps: int, runs: bool = False) -> None:
    """Append the same events for the same seed: about one per step, until jobs end for good.

    `runs`: whether the jobs record steps, too.
    """
    chance, clock = random.Random(seed), SteppedClock()
    weights = WEIGHTS | RUN_WEIGHTS if runs else WEIGHTS
    for _ in range(steps):
        number = chance.randrange(jobs)
        for step in chance.choices(tuple(weights), list(weights.values()), k=8):
            if await act(log, number, step, clock):
                break


#: What `memory_history` made, by its arguments, with the clock of each.
_MADE: dict[tuple[int, int, int, bool], tuple[MemoryLog, SteppedClock]] = {}


async def memory_history(seed: int = 1, *, jobs: int = 60, steps: int = 500, runs: bool = False) -> MemoryLog:
    """Return a log of the caller's own with a random history, which is made once: that takes half a second."""
    asked = (seed, jobs, steps, runs)
    if asked not in _MADE:
        clock = SteppedClock()
        log = MemoryLog(clock=clock)
        await random_history(log, seed, jobs=jobs, steps=steps, runs=runs)
        _MADE[asked] = log, clock
    made, clock = _MADE[asked]
    log = MemoryLog(clock=copy.copy(clock))
    log.copy_from(made)
    return log
