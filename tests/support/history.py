"""A short history with every kind of end, made on any ledger by commands alone: no worker, nothing to wait for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from jobledger.ledger.model.chain import link, load
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    Command,
    Complete,
    Discard,
    Dispatch,
    Enqueue,
    Fail,
    Fence,
    Interrupt,
    Pause,
    Requeue,
    Snooze,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import ErrorInfo, Order, Priority
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef

_SOON: Final = timedelta(
    milliseconds=100
)  #: longer than one act takes on a busy machine, else it is due at once
_LATER: Final = timedelta(hours=1)


def _error(kind: str) -> ErrorInfo:
    return ErrorInfo(kind="exception", type=kind, message="it went wrong", traceback="")


class History:
    """Does one thing after the other to the jobs of a log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ticks = 0

    async def act(self, ref: JobRef, command: Command) -> Job:
        """Append what follows from a command; return the job after it."""
        self._ticks += 1
        stamp = Stamp(at=datetime.now(UTC) + timedelta(microseconds=self._ticks), by="test")
        chain = await load(self._log, ref)
        await self._log.append(link(chain, decide(chain.job, command, stamp), self._log.names).entries)
        job = (await load(self._log, ref)).job
        assert job is not None
        return job

    async def enqueue(
        self,
        job_id: str,
        *,
        queue: str = "mail",
        task: str = "send",
        priority: Priority = "normal",
        later: bool = False,
    ) -> JobRef:
        """Add a job, for now or for an hour from now."""
        ref = JobRef(queue=queue, job_id=job_id)
        run_at = datetime.now(UTC) + _LATER if later else None
        await self.act(
            ref,
            Enqueue(
                ref=ref,
                task=task,
                run_at=run_at,
                order=Order(input=msgspec.Raw(b"{}"), max_attempts=2, priority=priority),
            ),
        )
        return ref

    async def start(self, ref: JobRef, worker: str = "w-1") -> int:
        """Claim a job; return the claim epoch."""
        return (await self.act(ref, Claim(worker=worker, lease_s=15))).claim_epoch

    async def complete(self, ref: JobRef) -> None:
        """Run a job to its good end."""
        await self.act(ref, Complete(epoch=await self.start(ref), result=msgspec.Raw(b"1")))

    async def die(self, ref: JobRef, kind: str) -> None:
        """Make a dead letter of a job."""
        await self.act(ref, Fail(epoch=await self.start(ref), error=_error(kind), give_up="rejected"))


async def write_history(log: Log, name: str = "a") -> None:
    """Append about 70 events on 22 jobs; `name` begins their ids."""
    history = History(log)
    for number in range(6):
        await history.complete(await history.enqueue(f"{name}-good-{number}"))
    for number in range(2):
        await history.enqueue(f"{name}-high-{number}", priority="high")
        await history.complete(
            await history.enqueue(f"{name}-report-{number}", queue="reports", task="render")
        )
    await _ends_badly(history, name)
    await _waits(history, name)
    taken = await history.enqueue(f"{name}-taken")
    lost = await history.start(taken)
    taker = await history.act(taken, TakeOver(worker="w-2", lease_s=15, lost_epoch=lost))
    await history.act(taken, Fence(epoch=lost, attempt=1, worker="w-1", outcome="completed"))
    await history.act(taken, Complete(epoch=taker.claim_epoch, result=msgspec.Raw(b"2")))
    stopped = await history.enqueue(f"{name}-stopped")
    await history.act(stopped, Interrupt(epoch=await history.start(stopped), reason="deploy"))
    await history.start(await history.enqueue(f"{name}-running", queue="reports", task="render"), "w-2")


async def _ends_badly(history: History, name: str) -> None:
    for kind in ("ValueError", "KeyError"):
        await history.die(await history.enqueue(f"{name}-dead-{kind}"), kind)
    again = await history.enqueue(f"{name}-requeued")
    await history.die(again, "ValueError")
    await history.act(again, Requeue(attempts=2))
    await history.complete(again)
    closed = await history.enqueue(f"{name}-discarded", queue="reports", task="render")
    await history.die(closed, "OSError")
    await history.act(closed, Discard(reason="known"))


async def _waits(history: History, name: str) -> None:
    await history.enqueue(f"{name}-later", later=True)
    await history.act(await history.enqueue(f"{name}-never", later=True), CancelJob(reason="no"))
    snoozed = await history.enqueue(f"{name}-snoozed")
    until = datetime.now(UTC) + _LATER
    await history.act(snoozed, Snooze(epoch=await history.start(snoozed), until=until))
    paused = await history.enqueue(f"{name}-paused", queue="reports", task="render")
    await history.act(paused, Pause(epoch=await history.start(paused), event="approved"))
    timed = await history.enqueue(f"{name}-timed", queue="reports", task="render")
    await history.act(timed, Pause(epoch=await history.start(timed), until=until))
    retried = await history.enqueue(f"{name}-retried")
    epoch = await history.start(retried)
    soon = datetime.now(UTC) + _SOON
    await history.act(retried, Fail(epoch=epoch, error=_error("OSError"), retry_at=soon))
    while datetime.now(UTC) <= soon:
        await asyncio.sleep(_SOON.total_seconds() / 4)  # the checker refuses a dispatch before its time
    await history.act(retried, Dispatch(cause="due"))
    await history.complete(retried)
