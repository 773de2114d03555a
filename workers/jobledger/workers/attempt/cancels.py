"""The watch for cancel requests: at once when a hint comes, else by reading jobs that have run for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.events import CancelRequested
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.connection import ConnectionLostError

logger = logging.getLogger("jobledger.workers.attempt.cancels")

_LOOK_EVERY_S: Final = 5.0
_LOOKS_PER_S: Final = 200
_AT_ONCE: Final = 32


class CancelWatch:
    """Calls `on_cancel` with each running job that somebody cancelled, its claim epoch and the reason.

    `running` returns the running jobs with their claim epochs. A request concerns a claim only if it is newer: an
    older request was obeyed when the job was taken over.
    """

    def __init__(
        self,
        ledger: Ledger,
        queues: Iterable[str],
        *,
        running: Callable[[], Mapping[JobRef, int]],
        on_cancel: Callable[[JobRef, int, str], None],
    ) -> None:
        self._ledger = ledger
        self._queues = tuple(queues)
        self._running = running
        self._on_cancel = on_cancel
        self._hinted: asyncio.Queue[JobRef] = asyncio.Queue(maxsize=10_000)
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def open(self) -> None:
        """Listen for hints."""
        for queue in self._queues:
            await self.listen(queue)

    async def listen(self, queue: str) -> None:
        """Listen for hints about one more queue."""
        await self._ledger.hints.listen_cancels(queue, self._on_hint)

    def _on_hint(self, ref: JobRef) -> None:
        if ref in self._running() and not self._hinted.full():
            self._hinted.put_nowait(ref)

    async def run(self) -> None:
        """Check a job when a hint comes, and every few seconds all that also ran at the last check; until cancelled."""
        looked_at = self._ledger.clock.monotonic()
        seen: Mapping[JobRef, int] = {}
        while True:
            running = self._running()
            pause = max(_LOOK_EVERY_S, len(running) / _LOOKS_PER_S)
            left = looked_at + pause - self._ledger.clock.monotonic()
            try:
                async with asyncio.timeout(max(left, 0)):
                    refs: Iterable[JobRef] = [await self._hinted.get()]
            except TimeoutError:
                looked_at = self._ledger.clock.monotonic()
                running = self._running()
                refs = [ref for ref, epoch in running.items() if seen.get(ref) == epoch]
                seen = dict(running)
            await asyncio.gather(*(self._look(ref) for ref in refs))

    async def _look(self, ref: JobRef) -> None:
        async with self._gate:
            epoch = self._running().get(ref)
            if epoch is None:
                return
            try:
                found = await self._ledger.log.read_chain(self._ledger.names.of_type(ref, "cancel_requested"))
            except (LedgerError, ConnectionLostError) as error:  # the next look comes in a few seconds
                logger.debug("job %s could not be looked at: %s", ref.job_id, error)
                return
        for stored in found:
            if stored.stream_sequence > epoch and isinstance(stored.event, CancelRequested):
                self._on_cancel(ref, epoch, stored.event.reason)
