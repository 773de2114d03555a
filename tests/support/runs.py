"""A run as its commands make it, event by event: checked against the table, and read back from its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from jobledger.ledger.model.codec import decode, encode
from jobledger.ledger.model.commands import (
    Claim,
    Command,
    CompleteStep,
    Enqueue,
    FailStep,
    Pause,
    Stamp,
    StartStep,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import ChildOrder, ErrorInfo, JobEvent, Order, event_type
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.runs.orders import OnFailure, items_of
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.transitions import violation

NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER: Final = NOW + timedelta(hours=1)
REF: Final = JobRef(queue="orders", job_id="order-77")
BOOM: Final = ErrorInfo(kind="exception", type="ValueError", message="boom")
NEW: Final = Enqueue(ref=REF, task="order", order=Order(max_attempts=3))
CLAIM: Final = Claim(worker="w1", lease_s=15.0)
TAKE_OVER: Final = TakeOver(worker="w2", lease_s=15.0, lost_epoch=0)
PARK: Final = Pause(epoch=0, steps=("approved",), until=LATER)
YES: Final = msgspec.Raw(b'{"yes":true}')


class Story:
    """A run in the making; `at` is the time by which it decides."""

    def __init__(self, *commands: Command, at: datetime = NOW) -> None:
        self.job: Job | None = None
        self.events: list[JobEvent] = []
        self.at = at
        for command in commands:
            self.do(command)

    @property
    def run(self) -> Job:
        assert self.job is not None
        return self.job

    def decided(self, command: Command) -> tuple[JobEvent, ...]:
        """Decide, without recording."""
        return decide(self.job, of_holder(command, self.job), Stamp(at=self.at, by="w1"))

    def do(self, command: Command) -> list[JobEvent]:
        """Record what follows from a command, and return it."""
        found = list(self.decided(command))
        for event in found:
            assert violation(self.job, event) is None
            read = decode(encode(event))
            assert read == event
            self.events.append(read)
            self.job = evolve(self.job, read, len(self.events))
        return found

    def replayed(self) -> Job:
        """The run folded again from its events."""
        job: Job | None = None
        for sequence, event in enumerate(self.events, start=1):
            job = evolve(job, event, sequence)
        assert job is not None
        return job


def of_holder(command: Command, job: Job | None) -> Command:
    """Return a command of the claim's holder by the claim that holds now, unless it names another one."""
    if job is not None:
        for name in ("epoch", "lost_epoch"):
            if getattr(command, name, None) == 0:
                command = msgspec.structs.replace(command, **{name: job.claim_epoch})
    return command


def step(command: type[Any], key: str, **fields: Any) -> Any:
    """Return a command on a step, which is of kind `step` and has its key as target unless told otherwise."""
    return command(**{"epoch": 0, "step": key, "kind": "step", "target": key, **fields})


def start(key: str, **fields: Any) -> StartStep:
    made: StartStep = step(StartStep, key, **fields)
    return made


def end(key: str, **fields: Any) -> CompleteStep:
    made: CompleteStep = step(CompleteStep, key, **fields)
    return made


def fail(key: str, **fields: Any) -> FailStep:
    made: FailStep = step(FailStep, key, **{"error": BOOM, **fields})
    return made


def group(
    key: str = "pages", count: int = 4, *, limit: int = 0, on_failure: OnFailure = "stop", **order: Any
) -> StartStep:
    """The start of a step with children."""
    asked = ChildOrder(task="fetch", queue="pages", count=count, limit=limit, on_failure=on_failure, **order)
    return start(key, kind="graph" if asked.after else "map", target="fetch", order=asked)


def opened(step: Step) -> list[int]:
    return items_of(step.opened)


WAIT: Final = start("approved", kind="wait", target="approved", until=LATER)


def running(*commands: Command) -> Story:
    """Return a run that a worker has claimed, after some commands."""
    return Story(NEW, CLAIM, *commands)


def parked(*commands: Command, undos: int = 0) -> Story:
    """Return a run that is paused until it is sent signal `approved`, for an hour at most."""
    return running(*commands, WAIT, msgspec.structs.replace(PARK, undos=undos))


def types(events: Iterable[JobEvent]) -> list[str]:
    return [event_type(each) for each in events]
