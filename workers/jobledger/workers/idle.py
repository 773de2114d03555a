"""The test whether a worker's queues have no work left: for hosts that start a worker now and then, and for tests."""

from __future__ import annotations

from typing import Final

import anyio

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import UnreachableError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.subjects import CHILDREN_CONSUMER
from jobledger.ledger.nats.durables import find_consumer
from jobledger.ledger.nats.timer_stream import DUE_CONSUMER
from jobledger.workers.worker import Worker

_LOOK_AGAIN_FIRST_S: Final = 0.02
_LOOK_AGAIN_MAX_S: Final = 0.5


async def until_idle(ledger: Ledger, worker: Worker) -> None:
    """Return when no job of the worker's queues is ready or runs, here or in another worker, and no run is to be woken.

    A job that is held counts as ready as long as its limits admit it. Jobs that wait for a time (delayed, retried
    later, snoozed) stay for the next worker, unless they are due by now; jobs of a paused queue stay, too. A look
    that finds nothing counts only if nothing was stored in the ledger during it.

    Raises: UnreachableError.
    """
    await worker.taking.wait()
    pause_s = _LOOK_AGAIN_FIRST_S
    while True:
        try:
            before = (await ledger.log.head()).last_sequence
            is_quiet = worker.flow is None or worker.flow.is_quiet
            if is_quiet and not worker.running and not await _unsettled(ledger, worker):
                if (await ledger.log.head()).last_sequence == before:
                    return
                pause_s = _LOOK_AGAIN_FIRST_S
        except UnreachableError:  # the worker goes on without the server, and so does this wait
            if ledger.connection.is_closed:
                raise
        await anyio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LOOK_AGAIN_MAX_S)


async def _unsettled(ledger: Ledger, worker: Worker) -> bool:
    """Whether an unpaused queue has a ready or running job, or the end of a child or a due timer is unhandled."""
    names = ledger.names
    consumers = [
        (names.ledger_stream, names.consumer(queue, priority))
        for queue in worker.served
        for priority in PRIORITIES
    ]
    if worker.flow is not None:  # it hosts reactors
        consumers += [(names.ledger_stream, CHILDREN_CONSUMER), (names.timers_stream, DUE_CONSUMER)]
    for stream, consumer in consumers:
        info = await find_consumer(ledger.inbox, stream, consumer)
        if info is not None and info.unsettled and not info.paused:
            return True
    return False
