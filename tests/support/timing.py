"""What tests of timers ask of a ledger and its jobs, and how long they wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from tests.support import limits
from tests.support.jetstream import api
from tests.support.working import types

from jobledger.ledger import (
    JobHandle,
    JobState,
    Ledger,
    task,
)
from jobledger.ledger.model.errors import UnreachableError
from jobledger.ledger.model.events import Queued, Scheduled
from jobledger.workers.reactors.hosts import start_reactors

LIMIT_S = limits.LIMIT_S


class Slack:
    """How late this machine is at the moment: what a test may add to a promise about time.

    Of many turns of this loop, each with one answer of the server, how much later they came than they were due.
    """

    #: What a delivery, a wait and an append may cost, in units of one turn and one answer.
    _TIMES: Final = 5

    def __init__(self) -> None:
        self._late: list[float] = []

    def note(self, late_s: float) -> None:
        self._late.append(late_s)

    @property
    def worst_s(self) -> float:
        """What may be added for the latest of all."""
        return self._TIMES * max(self._late, default=0.0)

    @property
    def usual_s(self) -> float:
        """What may be added for 99 of 100."""
        return self._TIMES * sorted(self._late)[len(self._late) * 99 // 100]


@contextlib.asynccontextmanager
async def measured_slack(ledger: Ledger) -> AsyncGenerator[Slack, None]:
    """Measure for the length of the block; the block must take a moment."""
    slack, loop = Slack(), asyncio.get_running_loop()

    async def measure() -> None:
        while True:
            due = loop.time() + 0.02
            await asyncio.sleep(0.02)
            await api(ledger.inbox, f"STREAM.INFO.{ledger.names.ledger_stream}", {})
            slack.note(loop.time() - due)

    measuring = asyncio.create_task(measure())
    try:
        yield slack
    finally:
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)


@contextlib.asynccontextmanager
async def reacting(ledger: Ledger) -> AsyncGenerator[None, None]:
    """Only the reactors: what they dispatch stays queued."""
    hosted = start_reactors(ledger)
    try:
        yield
    finally:
        for each in hosted:
            each.cancel()
        await asyncio.gather(*hosted, return_exceptions=True)


async def until(holds: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    """Wait until an async question is answered with yes; one that has no answer in time is asked again."""
    async with asyncio.timeout(limit_s):
        while True:
            with contextlib.suppress(UnreachableError):
                if await holds():
                    return
            await asyncio.sleep(0.01)


async def until_grown(count: Callable[[], Awaitable[int]], aim: int, still_s: float = LIMIT_S) -> None:
    """Wait until a count is `aim`, as long as that takes; fail where it has not grown for `still_s`."""
    highest, grew_at = -1, time.monotonic()
    while (now := await count()) < aim:
        if now > highest:
            highest, grew_at = now, time.monotonic()
        assert time.monotonic() - grew_at < still_s, f"{now} of {aim}, and not one more in {still_s:g} s"
        await asyncio.sleep(0.05)


async def state(job: JobHandle[Any]) -> JobState:
    return (await job.snapshot()).state


async def is_queued(job: JobHandle[Any]) -> bool:
    return await state(job) is JobState.QUEUED


async def in_stream(ledger: Ledger) -> int:
    info = await api(ledger.inbox, f"STREAM.INFO.{ledger.names.timers_stream}", {})
    return int(info["state"]["messages"]) if "error" not in info else 0


async def lateness(ledger: Ledger) -> list[float]:
    """Return how late each delayed job was dispatched, sorted; assert that none was early by either clock."""
    due: dict[str, datetime] = {}
    late: list[float] = []
    async for stored in ledger.events(follow=False):
        event = stored.event
        if isinstance(event, Scheduled):
            due[event.job] = event.run_at
        elif isinstance(event, Queued) and event.job in due:
            assert event.at >= due[event.job], f"{event.job} was early by its worker's clock"
            assert stored.stored_at >= due[event.job], f"{event.job} was early by the server's clock"
            late.append((stored.stored_at - due[event.job]).total_seconds())
    return sorted(late)


@task
async def add(n: int) -> int:
    return n + 1


async def has_been_queued(job: JobHandle[Any]) -> bool:
    return "queued" in await types(job)
