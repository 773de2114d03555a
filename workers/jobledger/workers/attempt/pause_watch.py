"""The watch for pauses of queues and their ends: at once when a hint comes, else at the next look."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.pauses import queue_state

logger = logging.getLogger("jobledger.workers.attempt.pause_watch")

_LOOK_EVERY_S: Final = 10.0
#: How many times a queue is read after a hint, since a replica may lag behind.
_TRIES_MAX: Final = 5
_TRY_AGAIN_S: Final = 0.02


class PauseWatch:
    """Calls `on_change` with each queue that was paused or resumed, and its new state.

    Nothing depends on it: a paused consumer delivers nothing, whether or not its workers know why.
    """

    def __init__(
        self, ledger: Ledger, queues: tuple[str, ...], *, on_change: Callable[[str, QueueState], None]
    ) -> None:
        self._ledger = ledger
        self._queues = queues
        self._on_change = on_change
        self._hinted: set[str] = set()
        self._wake = asyncio.Event()
        self.states: dict[str, QueueState] = {}  #: known states of the queues that have events

    async def open(self) -> None:
        """Listen for hints."""
        for queue in self._queues:
            await self._ledger.hints.listen_queue(queue, functools.partial(self._look_soon, queue))

    def _look_soon(self, queue: str) -> None:
        self._hinted.add(queue)
        self._wake.set()

    def holds_back(self, queue: str) -> bool:
        """Return whether to give a delivered job back because its queue is paused; then have the pause checked."""
        state = self.states.get(queue)
        if state is None or not state.is_paused(self._ledger.clock.now()):
            return False
        self._look_soon(queue)
        return True

    async def run(self) -> None:
        """Read a queue as soon as a hint comes, and every few seconds all, as hints may be lost; until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._wake.wait()
            self._wake.clear()
            hinted, self._hinted = self._hinted, set()
            try:
                if hinted:
                    await self._look(hinted)
                else:
                    for queue in self._queues:
                        await self._learn(queue)
            except (LedgerError, ConnectionLostError) as error:  # the next look comes in a few seconds
                logger.debug("queues could not be looked at: %s", error)

    async def _look(self, queues: set[str]) -> None:
        """Look at queues until each has a new event, at most a few times."""
        for _ in range(_TRIES_MAX):
            queues = {queue for queue in sorted(queues) if not await self._learn(queue)}
            if not queues:
                return
            await asyncio.sleep(_TRY_AGAIN_S)

    async def _learn(self, queue: str) -> bool:
        """Return whether a queue has a new event; pass its state on."""
        state, before = await queue_state(self._ledger.log, queue), self.states.get(queue, QueueState())
        if state.sequence <= before.sequence:
            return False
        self.states[queue] = state
        self._on_change(queue, state)
        return True
