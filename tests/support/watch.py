"""Follow a ledger while it is under fire, and wait for what happens in it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Final, Self

from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import SequenceGapError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.nats.durables import consumer_config, ensure_consumer

_ENDS: Final = frozenset({"completed", "cancelled", "dead_lettered"})
_POLL_S: Final = 0.02


async def make_consumers(ledger: Ledger, queue: str, *, ack_wait_s: float, in_memory: bool = True) -> None:
    """Make the consumers of a queue before a worker does, with another ack wait than the default, or in files."""
    names = ledger.names
    for priority in PRIORITIES:
        config = consumer_config(
            names.dispatches(queue, priority),
            ack_wait_s=ack_wait_s,
            ack_pending_max=20_000,
            in_memory=in_memory and not ledger.connection.is_clustered,  # as a worker makes them
        )
        await ensure_consumer(ledger.inbox, names.ledger_stream, names.consumer(queue, priority), config)


class Watch:
    """Which jobs have come to an end so far, and how many events of each type there are."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.ended: dict[str, str] = {}  #: job id -> its last end
        self.running: set[str] = set()  #: job ids that were claimed and have no outcome yet
        self.count: Counter[str] = Counter()
        self.progress_at: list[float] = []  #: monotonic times at which an outcome was seen
        self._error: BaseException | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def following(cls, ledger: Ledger) -> AsyncGenerator[Self, None]:
        """Follow for the length of the block."""
        watch = cls(ledger)
        task = asyncio.create_task(watch._run())
        try:
            yield watch
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        try:
            async with contextlib.aclosing(self._ledger.log.read_messages(follow=True)) as batches:
                async for batch in batches:
                    now = time.monotonic()
                    for message in batch:
                        self._take(message.subject, now)
        except SequenceGapError as error:
            self._error = error
            raise

    def _take(self, subject: str, now: float) -> None:
        words = subject.split(".")
        if words[-1] == "limited":  # the end of a job with limits
            words.pop()
        if "queued" in words[-2:]:
            word, job = "queued", words[-3]
        else:
            word, job = words[-1], words[-2]
        self.count[word] += 1
        if word == "started":
            self.running.add(job)
        elif word in _ENDS:
            self.ended[job] = word
            self.progress_at.append(now)
            self.running.discard(job)
        elif word in {"failed", "interrupted", "snoozed", "paused"}:
            self.running.discard(job)

    async def until(self, holds: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(limit_s):
            while not holds():
                assert self._error is None, self._error
                await asyncio.sleep(_POLL_S)

    async def until_started(self, attempts: int) -> None:
        """Wait until this many attempts have begun."""
        await self.until(lambda: self.count["started"] >= attempts)

    async def until_ended(self, jobs: int, limit_s: float = 60.0) -> None:
        """Wait until this many jobs have ended."""
        try:
            await self.until(lambda: len(self.ended) >= jobs, limit_s)
        except TimeoutError:
            message = f"{len(self.ended)} of {jobs} jobs have ended after {limit_s:g} s: {dict(self.count)}"
            raise AssertionError(message) from None

    async def recovered_s(self, since: float, limit_s: float = 60.0) -> float:
        """Wait for the next outcome after a moment; return how long that took."""
        await self.until(lambda: bool(self.progress_at) and self.progress_at[-1] > since, limit_s)
        return next(at for at in self.progress_at if at > since) - since
