"""Leases of readers: a process that reads the ledger for long announces its release, and its highest form.

So the end of an upgrade is refused while a reader of an earlier release lives. A reader has nothing to take over:
without a lease it reads on, and nobody waits for its lease. Source: ADR 057.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Final, Literal

from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import LedgerError, PermissionRefusedError
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.leases import Leases
from jobledger.ledger.nats.outage import Outage

logger = logging.getLogger("jobledger.lease")

#: How long a reader reads before it takes a lease, so that one that reads for a moment writes nothing; and how long it
#: waits before another try.
_AGAIN_S: Final = 5.0
#: The same after the server refused the right: somebody may give it while the reader reads.
_REFUSED_AGAIN_S: Final = 600.0
_FAREWELL_S: Final = 1.0

#: The kinds of processes that read a ledger for long.
Reader = Literal["projector", "gateway", "exporter", "sealer", "subscription", "follower"]


class ReaderLeases:
    """The leases of one client's readers: one for each kind, however many of that kind there are."""

    def __init__(self, leases: Leases, clock: Clock, outage: Outage) -> None:
        """Begin without a lease."""
        self._leases = leases
        self._clock = clock
        self._outage = outage
        self._counts = Counter[Reader]()
        self._keeping: dict[Reader, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def held(self, reader: Reader) -> AsyncGenerator[None, None]:
        """Hold a lease for the length of a block."""
        self.begin(reader)
        try:
            yield
        finally:
            await self.end(reader)

    def begin(self, reader: Reader) -> None:
        """Take a lease, unless this client has one of this kind; each call needs one of `end`."""
        self._counts[reader] += 1
        if reader not in self._keeping and not self._is_closed:
            name = f"lease of the {reader}"
            self._keeping[reader] = asyncio.get_running_loop().create_task(self._keep(reader), name=name)

    async def end(self, reader: Reader) -> None:
        """Give the lease back once nobody here needs it."""
        self._counts[reader] -= 1
        if self._counts[reader] <= 0:
            await self._end(reader)

    async def close(self) -> None:
        """Give back the held leases, while the connection is there."""
        self._is_closed = True
        for reader in list(self._keeping):
            await self._end(reader)
        if self._ending:  # those whose `end` was cancelled
            await asyncio.wait(self._ending, timeout=2 * _FAREWELL_S)

    async def _end(self, reader: Reader) -> None:
        task = self._keeping.pop(reader, None)
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()
            await asyncio.wait({task}, timeout=2 * _FAREWELL_S)

    async def _keep(self, reader: Reader) -> None:
        pause_s = _AGAIN_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = _AGAIN_S
            keeper = LeaseKeeper(
                self._leases,
                self._clock,
                (),
                running=lambda: 0,
                on_lost=lambda _: None,
                kind="client",
                reader=reader,
                outage=self._outage,
            )
            try:
                await keeper.open(patience_s=0.0)
                await keeper.run()
            except PermissionRefusedError:
                pause_s = _REFUSED_AGAIN_S  # the connection has logged it
            except (LedgerError, ConnectionLostError, TimeoutError) as error:
                logger.debug("the %s has no lease yet: %s", reader, error)
            finally:
                await _give_back(keeper)


async def _give_back(keeper: LeaseKeeper) -> None:
    if keeper.is_valid:
        with contextlib.suppress(LedgerError, ConnectionLostError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await keeper.close()
