"""Seeded interleavings of those who act on one job, on the log in memory: every one may stop before and after each of
its calls, and the seed says who goes on. No loop and no clock: a coroutine is sent on by hand.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import msgspec

from jobledger.audit.verify import Checker, Report
from jobledger.ledger import Job, JobState
from jobledger.ledger.model.chain import load, transact
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    Command,
    Complete,
    ConfirmCancel,
    DeadLetter,
    Dispatch,
    Enqueue,
    Fail,
    Interrupt,
    Rescue,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.decisions import retry_command
from jobledger.ledger.model.errors import InvalidInputError, JobNotFoundError, RefusedError
from jobledger.ledger.model.events import ErrorInfo, Order
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef

_STEPS_MAX: Final = 2_000
_ERROR: Final = ErrorInfo(kind="exception", type="ValueError", message="no")
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)

Actor = Coroutine[Any, Any, None]


class _Turn:
    """Let somebody else go on."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class _Stepwise:
    """A log whose every call can be overtaken, before it and after it."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.names = log.names

    async def append(self, entries: Sequence[Entry]) -> int:
        await _Turn()
        sequence = await self._log.append(entries)
        await _Turn()
        return sequence

    async def read_chain(self, chain: str) -> list[StoredEvent]:
        await _Turn()
        found = await self._log.read_chain(chain)
        await _Turn()
        return found


class Races:
    """Plays one race after the other, each on a job of its own, in one ledger."""

    def __init__(self, chance: random.Random, *, log_is_broken: bool = False) -> None:
        """`log_is_broken`: what adds up to no possible job may be refused where the next event is written."""
        self._chance = chance
        self._refusals = (RefusedError, JobNotFoundError, *((InvalidInputError,) if log_is_broken else ()))
        self._memory = MemoryLog()
        self._log = cast("Log", _Stepwise(self._memory))
        self._now = _BEGIN
        self._count = 0
        self.accepted: Counter[str] = Counter()  #: what was accepted, by command
        self.refused: Counter[str] = Counter()

    def _stamp(self) -> Stamp:
        self._now += timedelta(milliseconds=1)
        return Stamp(at=self._now, by="racer")

    async def _do(self, ref: JobRef, choose: Callable[[Job], Command | None]) -> None:
        """Look, choose, act: what was seen may be over by then."""
        seen = (await load(self._log, ref)).job
        command = choose(seen) if seen is not None else None
        if command is None:
            return
        name = type(command).__name__
        try:
            await transact(self._log, ref, command, self._stamp)
        except self._refusals:
            self.refused[name] += 1
        else:
            self.accepted[name] += 1

    def play(self) -> None:
        """One race: a job somewhere on its way, and three to six who want something of it."""
        self._count += 1
        ref = JobRef(queue="q", job_id=f"j{self._count}")
        _run([self._begin(ref)], self._chance)
        choices = self._chance.choices(_ACTS, k=self._chance.randint(3, 6))
        _run([self._do(ref, act) for act in choices], self._chance)
        # Whoever is left finishes it, so that every race has an end.
        _run([self._finish(ref)], self._chance)

    async def _begin(self, ref: JobRef) -> None:
        delay = timedelta(seconds=5) if self._chance.random() < 0.2 else None
        run_at = self._now + delay if delay is not None else None
        first = Enqueue(
            ref=ref, task="t", run_at=run_at, order=Order(max_attempts=self._chance.randint(1, 3))
        )
        await transact(self._log, ref, first, self._stamp)
        for act in (_claim, _fail)[: self._chance.randint(0, 2)]:
            await self._do(ref, act)

    async def _finish(self, ref: JobRef) -> None:
        for act in (_retry, _claim, _complete, _confirm):
            await self._do(ref, act)

    async def _messages(self) -> list[Any]:
        return [message async for batch in self._memory.read_messages() for message in batch]

    def check(self) -> Report:
        """Let the product's checker judge everything that was played."""
        checker = Checker(self._memory.names)
        reading = self._messages()
        try:
            reading.send(None)
        except StopIteration as done:
            for message in done.value:
                checker.feed(message)
        return checker.finish()

    def ends(self) -> Counter[int]:
        """How many ends (completed, cancelled, dead-lettered and not requeued) the jobs have."""
        found: Counter[str] = Counter()
        for kept in self._memory._kept:
            words = kept.subject.split(".")
            job = words[3]
            if msgspec.json.decode(kept.data)["type"] in {"completed", "cancelled", "discarded"}:
                found[job] += 1
        return Counter(found.values())


def _run(actors: list[Actor], chance: random.Random) -> None:
    """Send one actor on after the other, as the seed says, until all are done."""
    for _ in range(_STEPS_MAX):
        if not actors:
            return
        actor = actors[int(chance.random() * len(actors))]
        try:
            actor.send(None)
        except StopIteration:
            actors.remove(actor)
    raise AssertionError("a race has no end")


# What each of them wants, after a look.


def _claim(job: Job) -> Command | None:
    return Claim(worker="w", lease_s=1.0) if job.state is JobState.QUEUED else None


def _take_over(job: Job) -> Command | None:
    return (
        TakeOver(worker="v", lease_s=1.0, lost_epoch=job.claim_epoch)
        if job.state is JobState.RUNNING
        else None
    )


def _complete(job: Job) -> Command | None:
    return Complete(epoch=job.claim_epoch) if job.state is JobState.RUNNING else None


def _fail(job: Job) -> Command | None:
    return Fail(epoch=job.claim_epoch, error=_ERROR) if job.state is JobState.RUNNING else None


def _interrupt(job: Job) -> Command | None:
    return Interrupt(epoch=job.claim_epoch, reason="stopped") if job.state is JobState.RUNNING else None


def _cancel(_: Job) -> Command | None:
    return CancelJob(reason="changed my mind")


def _confirm(job: Job) -> Command | None:
    return ConfirmCancel(epoch=job.claim_epoch) if job.cancel_requested else None


def _retry(job: Job) -> Command | None:
    try:
        return retry_command(job, job.id, "by hand")
    except RefusedError:
        return None


def _timer(job: Job) -> Command | None:
    waits = job.state in {JobState.SCHEDULED, JobState.RETRY_WAIT}
    cause: Any = "due" if job.state is JobState.SCHEDULED else "retried"
    return (
        Dispatch(cause=cause, asked_by=job.wait_sequence, reason="the clock stands still here")
        if waits
        else None
    )


def _redispatch(job: Job) -> Command | None:
    queued = job.state is JobState.QUEUED
    return Dispatch(cause="redispatched", asked_by=job.wait_sequence) if queued else None


def _rescue(job: Job) -> Command | None:
    return Rescue(lost_epoch=job.claim_epoch) if job.state is JobState.RUNNING else None


def _give_up(job: Job) -> Command | None:
    running = job.state is JobState.RUNNING
    return DeadLetter(reason="max_deliver", epoch=job.claim_epoch if running else 0, error=_ERROR)


_ACTS: Final = (
    _claim,
    _take_over,
    _complete,
    _complete,
    _fail,
    _interrupt,
    _cancel,
    _cancel,
    _confirm,
    _retry,
    _timer,
    _redispatch,
    _rescue,
    _give_up,
)
