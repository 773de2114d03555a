"""The check that consumers of work are paused like their queues in the ledger; it corrects consumers that differ.

The process that pauses a queue also pauses its consumers. If it dies in between, or another program changes a consumer,
they differ. A queue without events of its own is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import JetStreamDisabledError, LedgerError, UnreachableError
from jobledger.ledger.model.queue_pause import QUEUE, QueueState
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.nats.pauses import agrees, queue_of_work, queue_state

logger = logging.getLogger("jobledger.workers.reactors.pauses")


class Pauses:
    """Compares consumers with queues; keeps the states that it read until a queue has a newer event."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._states: dict[str, QueueState] = {}
        self._newest = 0  # stream sequence of the newest event of any queue that was read

    async def look_at(self, consumers: Iterable[ConsumerInfo]) -> None:
        """Bring the consumers of work in line with their queues; a fault of one does not stop the others.

        Raises: UnreachableError, JetStreamDisabledError.
        """
        work = [(info, queue) for info in consumers if (queue := queue_of_work(info.name))]
        await self._read({queue for _, queue in work})
        now = self._ledger.clock.now()
        states = self._states
        wrong = {queue for info, queue in work if queue in states and not agrees(info, states[queue], now)}
        for queue in sorted(wrong):
            try:
                self._states[queue] = await self._ledger.tell_consumers(queue)
            except (JetStreamDisabledError, UnreachableError):
                raise
            except LedgerError as error:
                logger.warning("the consumers of queue %s cannot be paused or resumed: %s", queue, error)
            else:
                logger.warning(
                    "the consumers of queue %s were not paused or resumed as it is: now they are", queue
                )
                self._ledger.hints.tell_queue(queue)

    async def _read(self, queues: set[str]) -> None:
        """Read the unknown states of these queues; nothing while no queue has an event."""
        log = self._ledger.log
        newest = await log.last(QUEUE.everything(log.names))
        if newest is None:
            return
        known = self._states if newest.stream_sequence == self._newest else {}
        self._states = known | {
            queue: await queue_state(log, queue) for queue in sorted(queues - known.keys())
        }
        self._newest = newest.stream_sequence
