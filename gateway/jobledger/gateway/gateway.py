"""Parts that the handlers of one gateway share: the ledger, its projection, and the access control."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from starlette.requests import HTTPConnection

from jobledger.admin.past import AsOf
from jobledger.admin.rows import Rows, View
from jobledger.gateway.access.gate import Gate
from jobledger.gateway.events.feed import Feed
from jobledger.gateway.life import Life
from jobledger.gateway.refused_requests import RefusedRequests
from jobledger.gateway.shares import Shares
from jobledger.ledger import Ledger, TaskRegistry
from jobledger.ledger.model.hooks.route import ROUTE
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.webhooks.secrets import Secrets

# A process's copy of all route names, so that a request to an unknown name costs no read of the ledger.

#: After a read of the ledger, unknown names cause no other read for this long.
FRESH_S: Final = 0.5


class _RouteNames:
    """All route names ever set, as far as this process has read; only the ledger says whether one is still set."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._reached = 0  # the stream sequence of the newest event of a route that was read
        self._looked_at = float("-inf")  # beginning of the last look that was completed
        self._looking: asyncio.Task[None] | None = None

    def add(self, name: str) -> None:
        """Add a name that was set here just now."""
        self._names.add(name)

    async def has(self, ledger: Ledger, name: str) -> bool:
        """Return whether a route of this name was ever set; one set in the last half second may be missing.

        Anybody can send requests to unknown names, so in that time all of them together cause one read of the ledger.

        Raises: InvalidTokenError, UnreachableError.
        """
        check_token("route", name)
        since = ledger.clock.monotonic() - FRESH_S
        while name not in self._names and self._looked_at < since:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(ledger))
            await asyncio.shield(self._looking)  # a cancelled caller must not end the look for others
        return name in self._names

    async def _look(self, ledger: Ledger) -> None:
        began = ledger.clock.monotonic()
        await ledger.patience.read(lambda: self._read_on(ledger))
        self._looked_at = began

    async def _read_on(self, ledger: Ledger) -> None:
        log, every = ledger.log, ROUTE.everything(ledger.log.names)
        if await log.newest_sequence(every) <= self._reached:
            return
        batches = log.read_messages(from_sequence=self._reached + 1, subject=every)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                self._names.update(each.subject.split(".")[2] for each in batch)
                self._reached = batch[-1].stream_sequence


#: The most files of tables in memory at the same time.
_TABLE_READS: Final = 2


class Access(Protocol):
    """The access control of a gateway."""

    @property
    def gate(self) -> Gate | None:
        """The gate that every request passes first; None: nothing is checked."""
        ...

    def principal(self, connection: HTTPConnection) -> Principal:
        """Return the caller. Raises: ProblemError (UNAUTHENTICATED)."""
        ...

    def form_token(self, connection: HTTPConnection) -> str:
        """Return the token that each form of a page must hold. Raises: as `principal`."""
        ...

    def can_log_out(self, connection: HTTPConnection) -> bool:
        """Return whether the caller logged in in this browser. Raises: as `principal`."""
        ...


class Projection(Protocol):
    """The rows from which lists are read."""

    def opened(self, past: AsOf | None = None, *, min_sequence: int = 0) -> AbstractAsyncContextManager[View]:
        """Open the present rows, or those of a past moment, for the length of a block.

        `min_sequence`: wait until the rows have this event, so that its writer finds it.

        Raises: ProjectionError, MomentAheadError, MomentArchivedError, UnreachableError.
        """
        ...


class Health(Protocol):
    """The health of this process."""

    async def why_not_ready(self) -> str:
        """Return "" while this process should get requests, else the reason in a sentence."""
        ...

    async def scrape(self, accept: str) -> tuple[str, bytes]:
        """Return the metrics as Prometheus reads them: content type and text."""
        ...


class Gateway:
    """The parts that the handlers of one gateway share."""

    def __init__(
        self,
        ledger: Ledger,
        rows: Rows,
        projection: Projection,
        access: Access,
        feed: Feed,
        *,
        tasks: TaskRegistry | None = None,
        life: Life | None = None,
        health: Health | None = None,
        secrets: Secrets | None = None,
        shares: Shares | None = None,
    ) -> None:
        """`rows` finds jobs by the beginning of their id, as in commands; lists are read from `projection`.

        `tasks`: the user's code, which runs jobs inside requests; None: this gateway runs none. `secrets`: reads the
        secrets that routes refer to; None: there are none, so no webhook is accepted. `shares`: None: the usual ones.
        """
        self.secrets = secrets or Secrets({})
        self.refused = RefusedRequests()
        self.route_names = _RouteNames()
        self.life = life or Life()
        self.shares = shares or Shares()
        self.health = health
        self.ledger = ledger
        self.rows = rows
        self.projection = projection
        self.access = access
        self.feed = feed
        self.tasks = tasks
        self.table_reads = asyncio.Semaphore(_TABLE_READS)
