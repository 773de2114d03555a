"""What a person does to a queue: pause it and resume it. The ledger records it; then consumers and workers are told."""

from __future__ import annotations

from typing import Protocol

from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import ServerUnreachableError, UnreachableError
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.queue_pause import QUEUE, QueueCommand, QueueState, decide, evolve
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.nats.hints import Hints
from jobledger.ledger.patience import Patience


class Client(Protocol):
    """What pausing needs of a ledger's client."""

    log: Log
    hints: Hints
    patience: Patience

    def stamp(self, by: str = "") -> Stamp:
        """Return who and when."""
        ...

    async def tell_consumers(self, queue: str, known: QueueState | None = None) -> QueueState:
        """Have the server do what the ledger says of a queue."""
        ...


async def change_queue(client: Client, queue: str, command: QueueCommand, *, by: str) -> QueueState:
    """Record what follows from a command, and have the server and the workers do it; return the queue after that.

    Raises: as `Ledger.pause_queue` and `resume_queue`.
    """
    check_token("queue", queue)
    recorded = await client.patience.read(lambda: retry_raced(lambda: _record(client, queue, command, by)))
    try:
        state = await client.patience.read(lambda: client.tell_consumers(queue, recorded))
    except UnreachableError as error:
        raise ServerUnreachableError(
            f"it is recorded, but the consumers of queue {queue} could not be told: do it again, or wait until "
            f"a worker compares them with the ledger, each minute ({error})"
        ) from error
    client.hints.tell_queue(queue)
    return state


async def _record(client: Client, queue: str, command: QueueCommand, by: str) -> QueueState:
    log = client.log
    view = QUEUE.view(*await end_of_chain(log, QUEUE.chain(log.names, queue)))
    event = decide(queue, view.state, command, client.stamp(by))
    return evolve(view.state, event, await log.append(QUEUE.link(log.names, [event], view)))
