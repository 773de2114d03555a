"""What a person does to a queue: pause it and resume it. The ledger records it; then consumers and workers are told."""

from __future__ import annotations

from typing import Protocol

from jobledger.ledger.model.errors import ServerUnreachableError, UnreachableError
from jobledger.ledger.model.queue_pause import QUEUE, QueueCommand, QueueState, decide
from jobledger.ledger.named_values import Writer, change
from jobledger.ledger.nats.hints import Hints


class Client(Writer, Protocol):
    """What pausing needs of a ledger's client."""

    hints: Hints

    async def tell_consumers(self, queue: str, known: QueueState | None = None) -> QueueState:
        """Have the server do what the ledger says of a queue."""
        ...


async def change_queue(client: Client, queue: str, command: QueueCommand, *, by: str) -> QueueState:
    """Record what follows from a command, and have the server and the workers do it; return the queue after that.

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
