"""One gateway process put together: its application, its server, its child processes and services."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
from prometheus_client import CollectorRegistry

from jobledger.admin.diagnoses import counted
from jobledger.admin.keeper import Keeper
from jobledger.gateway.app import app
from jobledger.gateway.events.feed import Feed
from jobledger.gateway.gateway import Access, Gateway
from jobledger.gateway.hooks.watches import WatchJudge
from jobledger.gateway.life import Life
from jobledger.gateway.process.children import KeeperChild, ProjectorChild, setup_of
from jobledger.gateway.process.counters import Counters, GatewayCollector
from jobledger.gateway.process.health import LAG_S_MAX, ProcessHealth
from jobledger.gateway.process.listener import raise_file_limit
from jobledger.gateway.process.past import PastViews
from jobledger.gateway.process.requests import Requests
from jobledger.gateway.process.rows import FollowedProjection, FollowedRows
from jobledger.gateway.process.server import Server, Settings
from jobledger.gateway.process.worker_child import WebhookHost, WorkerChild
from jobledger.gateway.shares import SHARES, Share, Shares
from jobledger.ledger import Ledger, TaskRegistry
from jobledger.ledger.model.identity import new_identity
from jobledger.ledger.nats.jetstream import JetStreamLog
from jobledger.ledger.webhooks.secrets import Secrets
from jobledger.projections.metrics.exporter import Exporter, ExporterConfig
from jobledger.workers.announcement import announce_tasks
from jobledger.workers.declared_routes import declare_routes
from jobledger.workers.metrics import LoopLag
from jobledger.workers.reactors.schedules.declarations import ScheduleDeclarer
from jobledger.workers.reactors.schedules.hooks import with_hooks
from jobledger.workers.services import outlive

# The user's code in a gateway (`--app`): its tasks are announced and its schedules declared, as in a worker.


class LoadedCode:
    """The announcer of loaded code, by which tasks can be enqueued by name and schedules tick without a worker."""

    def __init__(self, ledger: Ledger, tasks: TaskRegistry, *, schedules: bool) -> None:
        """Announce nothing yet; without `schedules` declare neither these nor routes. Raises: ConfigurationError where there is no task."""
        self.announced = asyncio.Event()  #: set once the tasks are stored, or the server refused them
        self._ledger = ledger
        self._tasks = with_hooks(tasks)
        self._identity = new_identity()
        found = list(tasks.schedules.values()) if schedules else []
        self._routes = list(tasks.routes.values()) if schedules else []
        # All queues, since requests to `/v1/run` can run jobs of a queue that no worker serves.
        self._declaring = ScheduleDeclarer(ledger, found, [each.queue for each in found])

    async def keep(self) -> None:
        """Announce the code, again after each failure, until cancelled."""
        await asyncio.gather(
            self._outlive("the announcement", self._announce),
            self._outlive("the schedules", self._declaring.declare_once),
            self._outlive("the routes", lambda: declare_routes(self._ledger, self._routes)),
        )

    async def _announce(self) -> None:
        await announce_tasks(self._ledger, self._tasks, self._identity, done=self.announced)

    async def _outlive(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        await outlive(self._ledger.connection, name, run)


#: Bytes of a body beside the largest value in it.
_BODY_BYTES_EXTRA: Final = 64 << 10
#: How long the first request waits for the projection's file and for the announcement of tasks.
_FIRST_S: Final = 10.0

#: Open files beside connections: of the projection, of past moments, of children and of the log.
_OTHER_FILES: Final = 128
_log: Final = logging.getLogger("jobledger.gateway")

Service = tuple[str, Callable[[], Awaitable[None]]]


class Process:
    """One gateway process; `run` it once."""

    def __init__(
        self,
        ledger: Ledger,
        projection: Path,
        access: Access,
        settings: Settings,
        *,
        tasks: TaskRegistry | None = None,
        schedules: bool = True,
        project: bool = True,
        secrets: Secrets | None = None,
        hosting: WebhookHost | None = None,
        keeps: bool = False,
    ) -> None:
        """Without `project` another process follows the ledger into the file; `tasks`, `secrets`: see `Gateway`.

        `schedules`: declare the schedules of the tasks' modules. `hosting`: run a worker for the gateway's own tasks,
        deliver webhooks, and judge watches. `keeps`: be the keeper; the folder of the archive is on this machine.

        Raises: ConfigurationError.
        """
        self.life = Life()
        self.counted = Counters()
        self._ledger = ledger
        self._following = (
            ProjectorChild(setup_of(ledger, projection, "gateway-projector")) if project else None
        )
        of_worker = setup_of(ledger, projection, "gateway-worker")
        self._working = None if hosting is None else WorkerChild(of_worker, hosting)
        keeping = KeeperChild(ledger, projection) if keeps else None
        self._keeper = None if keeping is None else Keeper(ledger, keeping.work, clear=keeping.clear)
        self._code = None if tasks is None else LoadedCode(ledger, tasks, schedules=schedules)
        self._past = PastViews(setup_of(ledger, projection, "gateway-past"))
        rows = FollowedRows(ledger, projection, self._past)
        self._projection = FollowedProjection(rows, projection)
        self._lag = LoopLag()
        registry = CollectorRegistry()
        shares = Shares({**settings.shares, "connections": _connections(settings)})
        health = ProcessHealth(
            ledger, projection, self.life, self._why_not_followed, registry, overloaded=shares.overloaded
        )
        feed = Feed(ledger)
        self.gateway = Gateway(
            ledger,
            rows,
            self._projection,
            access,
            feed,
            tasks=tasks,
            life=self.life,
            health=health,
            secrets=secrets,
            shares=shares,
        )
        self._answering = Requests(
            app(self.gateway),
            self.life,
            self.counted,
            body_bytes_max=ledger.config.payload_bytes_max + _BODY_BYTES_EXTRA,
            appends=self._appends,
        )
        self._server = Server(self._answering, settings, self._connected)
        config, why = ExporterConfig(lag_s_max=LAG_S_MAX), self._why_not_followed
        registry.register(Exporter(ledger, projection, config, followed=why, diagnose=counted))
        registry.register(self._collector())

    def _collector(self) -> GatewayCollector:
        return GatewayCollector(
            self.counted,
            self._lag.late_s,
            shares=self.gateway.shares,
            appends=self._appends,
        )

    def _connected(self, address: str) -> Callable[[], None]:
        gate = self.gateway.access.gate
        return self.gateway.shares.connected(address, is_bound=gate is None or not gate.is_proxy(address))

    def stop(self) -> None:
        """Stop in order: end waits and streams now, let other requests finish; end all at once when called again."""
        self.life.stop()
        self.gateway.feed.close()
        self._server.stop()

    async def run(self, bound: socket.socket, on_ready: Callable[[], None] = lambda: None) -> None:
        """Answer on a socket until stopped; `on_ready` is called once requests are answered."""
        try:
            held = self._ledger.reader_leases.held("gateway")
            async with held, self.gateway.feed, anyio.create_task_group() as group:
                group.start_soon(self._lag.run)
                for name, service in self._services():
                    group.start_soon(self._keep, name, service)
                if self._code is not None:
                    group.start_soon(self._code.keep)
                await self._begun()
                await self._server.run(bound, on_ready)
                self._projection.close()
                group.cancel_scope.cancel()
        finally:
            self._answering.log.close()

    async def _begun(self) -> None:
        """Wait a short time for things that the first request may need; after that it is answered without them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                if self._code is not None:
                    await self._code.announced.wait()
                if self._following is not None:
                    await self._following.begun.wait()

    def _services(self) -> list[Service]:
        """Return the services that run beside the requests, and that are started again when they end."""
        found: list[Service] = [("past", self._past.run)]
        if self._following is not None:
            found.append(("projector", self._following.run))
        if self._keeper is not None:
            found.append(("keeper", self._keeper.run))
        if self._working is not None:
            found += [
                ("worker", self._working.run),
                ("watches", WatchJudge(self._ledger, self._projection).run),
            ]
        return found

    async def _keep(self, name: str, service: Callable[[], Awaitable[None]]) -> None:
        async def counted() -> None:
            try:
                await service()
            except Exception:  # every end is counted; `outlive` logs it and starts the service again
                self.counted.child_ended(name)
                raise

        await outlive(self._ledger.connection, f"the process {name} of the gateway", counted)

    def _why_not_followed(self) -> str:
        return "" if self._following is None else self._following.problem

    def _appends(self) -> int:
        log = self._ledger.log
        return log.writer.in_flight if isinstance(log, JetStreamLog) else 0


def _connections(settings: Settings) -> Share:
    """Return the share of connections, smaller if this process may not open as many files."""
    share = settings.shares.get("connections", SHARES["connections"])
    most = max(raise_file_limit() - _OTHER_FILES, 2)
    if share.total <= most:
        return share
    _log.warning(
        "this process may open few files (ulimit -n): it takes %d connections, not %d", most, share.total
    )
    return Share(each=min(share.each, most // 2), total=most)
