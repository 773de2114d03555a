"""The health of one gateway process: whether it takes requests, and its metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from prometheus_client import CollectorRegistry

from jobledger.admin.projection import projection_status
from jobledger.gateway.life import Life
from jobledger.gateway.problems import without_files
from jobledger.ledger import Ledger
from jobledger.ledger.metrics.exposition import scrape
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.projections import ProjectionError

#: A process whose lists are older than this gets no requests.
LAG_S_MAX: Final = 10.0
_LOOK_S: Final = 3.0
#: How long an answer is used again, since every load balancer of a fleet asks every second.
_KEPT_S: Final = 0.5

_log: Final = logging.getLogger("jobledger.gateway")


class ProcessHealth:
    """The health of a process, checked when somebody asks."""

    def __init__(
        self,
        ledger: Ledger,
        projection: Path,
        life: Life,
        followed: Callable[[], str],
        registry: CollectorRegistry,
        *,
        overloaded: Callable[[], str],
    ) -> None:
        """`followed`, `overloaded`: return the reason why it is not followed, or is overloaded; "" without one."""
        self._ledger = ledger
        self._projection = projection
        self._life = life
        self._followed = followed
        self._registry = registry
        self._overloaded = overloaded
        self._looked: tuple[float, str] = (float("-inf"), "")
        self._logged = ""  # the last error in the log, which is logged once
        self._looking = anyio.Lock()

    async def why_not_ready(self) -> str:
        """Return "" while this process should get requests, else the reason in a sentence."""
        if self._life.stopping.is_set():
            return "this gateway is stopping"
        if not self._ledger.connection.is_connected:
            return "there is no connection to the server"
        if reason := self._followed() or self._overloaded():
            return reason
        async with self._looking:  # one read answers all callers that wait meanwhile
            if time.monotonic() - self._looked[0] > _KEPT_S:
                self._looked = (time.monotonic(), await self._look())
            return self._looked[1]

    async def _look(self) -> str:
        try:
            with anyio.fail_after(_LOOK_S):
                status, problem = await projection_status(self._ledger, self._projection)
        except TimeoutError:
            return f"the server did not answer within {_LOOK_S:g} s"
        except (LedgerError, ProjectionError, ConnectionLostError) as error:
            return self._told(error)
        if problem is not None:
            return self._told(problem)
        if not status.exists:
            return "the projection is not there yet"
        if status.lag_s is not None and status.lag_s > LAG_S_MAX:
            return f"the lists are {status.lag_events:,} events, {status.lag_s:,.0f} s behind the ledger"
        return ""

    def _told(self, error: Exception) -> str:
        """Return the sentence for callers without rights, and log the error once."""
        told = without_files(error)
        if told != str(error) != self._logged:
            self._logged = str(error)
            _log.warning("this gateway is not ready: %s", error)
        return told or "the connection to the server was lost"

    async def scrape(self, accept: str) -> tuple[str, bytes]:
        """Return the metrics as Prometheus reads them: content type and text."""
        # In a thread, since the exporter blocks until answers arrive on this loop.
        return await anyio.to_thread.run_sync(scrape, self._registry, accept)
