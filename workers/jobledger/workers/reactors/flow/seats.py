"""The hosts of the reactor of the limits, and the served queues, from the leases of living workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import JetStreamDisabledError, UnreachableError
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.workers.reactors.timers import TwoClocks

logger = logging.getLogger("jobledger.workers.reactors.flow.seats")

#: Number of workers that host it: more would read the same events for nothing, and with only one there is no stand-by.
HOSTS: Final = 2
_LOOK_S: Final = 1.0
#: A worker with many others before it looks less often.
_FAR_LOOK_S: Final = 5.0
_NEAR: Final = 5


class Fleet(msgspec.Struct, frozen=True):
    """The living workers."""

    candidates: tuple[str, ...] = ()  #: names of workers that host reactors; the first ones host this one
    served: Mapping[str, int] = {}  #: queue -> attempts that its workers may run at once

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the workers whose turn it is to host the reactor."""
        return self.candidates[:HOSTS]


def fleet_of(infos: Iterable[WorkerInfo]) -> Fleet:
    """Return the fleet that leases describe."""
    living = [info for info in infos if not info.stopped]
    served: dict[str, int] = {}
    for info in living:
        for queue in info.queues:
            served[queue] = served.get(queue, 0) + max(1, info.concurrency)
    return Fleet(tuple(sorted(info.worker for info in living if info.reactors)), served)


class Seats:
    """Looks at the leases now and then, and decides whether this worker hosts the reactor."""

    def __init__(self, ledger: Ledger, identity: Callable[[], str]) -> None:
        """`identity`: returns the name under which this worker holds its lease now."""
        self._ledger = ledger
        self._identity = identity
        self._clocks = TwoClocks(ledger.clock)
        self.fleet = Fleet()
        self.changed = asyncio.Event()  #: set when a look found a change

    @property
    def identity(self) -> str:
        """The name of this worker at this moment."""
        return self._identity()

    @property
    def is_host(self) -> bool:
        """Whether this worker should host the reactor, as far as is known."""
        return self._identity() in self.fleet.hosts

    @property
    def is_clock_wrong(self) -> bool:
        """Whether this machine's clock and the server's are more than five seconds apart."""
        return self._clocks.are_apart

    async def watch(self) -> None:
        """Look until cancelled; after a failed look the last result stays."""
        while True:
            await self.look()
            candidates, own = self.fleet.candidates, self._identity()
            is_near = own not in candidates or candidates.index(own) < _NEAR
            await asyncio.sleep(_LOOK_S if is_near else _FAR_LOOK_S)

    async def look(self) -> None:
        """Read the leases once."""
        try:
            fleet = fleet_of(await self._ledger.leases.all())
        except (ConnectionLostError, JetStreamDisabledError, UnreachableError) as error:
            logger.debug("the workers could not be looked up: %s", error)
            return
        told_at = self._ledger.leases.told_at
        if told_at is not None:
            self._hear(told_at)
        if fleet != self.fleet:
            self.fleet = fleet
            self.changed.set()

    def _hear(self, told_at: datetime) -> None:
        was_wrong = self.is_clock_wrong
        self._clocks.told(told_at)
        if self.is_clock_wrong and not was_wrong:
            logger.warning(
                "this machine's clock and the server's are %.1f s apart: set the clock; until then this worker counts "
                "rates of limits as if no time went by",
                abs(self._clocks.ahead_s),
            )
