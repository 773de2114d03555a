"""What the handlers of one gateway share: the ledger, its projection, and who lets in."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from starlette.requests import HTTPConnection

from jobledger.admin.past import AsOf
from jobledger.admin.rows import Rows, View
from jobledger.gateway.access.gate import Gate
from jobledger.gateway.events.feed import Feed
from jobledger.gateway.life import Life
from jobledger.gateway.refused import RefusedRequests
from jobledger.gateway.route_names import RouteNames
from jobledger.gateway.shares import Shares
from jobledger.ledger import Ledger, TaskRegistry
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.webhooks.secrets import Secrets

#: Files of tables that are in memory at the same time.
_TABLE_READS: Final = 2


class Access(Protocol):
    """The access control of a gateway."""

    @property
    def gate(self) -> Gate | None:
        """What every request passes first; None: nothing is checked."""
        ...

    def principal(self, connection: HTTPConnection) -> Principal:
        """Return who asks. Raises: ProblemError (UNAUTHENTICATED)."""
        ...

    def form_token(self, connection: HTTPConnection) -> str:
        """Return what each form of a page must hold that is sent back by the same person. Raises: as `principal`."""
        ...

    def can_log_out(self, connection: HTTPConnection) -> bool:
        """Return whether who asks logged in, in this browser. Raises: as `principal`."""
        ...


class Projection(Protocol):
    """Where lists are read."""

    def opened(self, past: AsOf | None = None, *, min_sequence: int = 0) -> AbstractAsyncContextManager[View]:
        """Open the rows as they are, or as of a past moment, for the length of a block.

        `min_sequence`: wait until the rows have this event, so that its writer reads it.

        Raises: ProjectionError, MomentAheadError, MomentArchivedError, UnreachableError.
        """
        ...


class Health(Protocol):
    """How this process is."""

    async def why_not_ready(self) -> str:
        """Return "" while requests are to come here, else why not, in a sentence."""
        ...

    async def scrape(self, accept: str) -> tuple[str, bytes]:
        """Return the metrics as Prometheus reads them: content type and text."""
        ...


class Gateway:
    """What the handlers of one gateway share."""

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
        """`rows` finds jobs by the beginning of their id, as commands do; `projection` is what lists are read from.

        `tasks`: the user's code, which runs jobs inside requests; None: this gateway runs none. `secrets`: what the
        references of routes stand for; None: nothing, so no webhook is taken. `shares`: None for the usual ones.
        """
        self.secrets = secrets or Secrets({})
        self.refused = RefusedRequests()
        self.route_names = RouteNames()
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
