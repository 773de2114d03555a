"""A person's acts on a queue: pause and resume. The ledger records them; then consumers and workers are told."""

from __future__ import annotations

from typing import Protocol

from jobledger.ledger.model.errors import ServerUnreachableError, UnreachableError
from jobledger.ledger.model.queue_pause import QUEUE, QueueCommand, QueueState, decide
from jobledger.ledger.named_values import Writer, change
from jobledger.ledger.nats.hints import Hints


class Client(Writer, Protocol):
    """The part of a ledger's client that a pause needs."""

    hints: Hints

    async def tell_consumers(self, queue: str, known: QueueState | None = None) -> QueueState:
        """Apply a queue's state in the ledger to the server's consumers."""
        ...


async def change_queue(client: Client, queue: str, command: QueueCommand, *, by: str) -> QueueState:
    """Record the event of a command, and apply it at the server and the workers; return the queue after that.

    Raises: as `Ledger.pause_queue` and `resume_queue`.
    """
    recorded = await change(
        client, QUEUE, queue, lambda before, stamp: decide(queue, before, command, stamp), by=by
    )
    try:
        state = await client.patience.read(lambda: client.tell_consumers(queue, recorded.state))
    except UnreachableError as error:
        raise ServerUnreachableError(
            f"it is recorded, but the consumers of queue {queue} could not be told: do it again, or wait until "
            f"a worker compares them with the ledger, each minute ({error})"
        ) from error
    client.hints.tell_queue(queue)
    return state
