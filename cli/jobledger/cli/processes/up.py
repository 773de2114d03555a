"""`jobledger up`: server, worker and projector in one process and a gateway beside it, for one machine and first steps."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn

import anyio
import msgspec

from jobledger.admin.keeper import Keeper
from jobledger.cli import options
from jobledger.cli.command import CREATES, WAITS, Cli, command
from jobledger.cli.embedded import blamed, described, embedded, safety, until_ended
from jobledger.cli.errors import ServerEndedError, UsageError
from jobledger.cli.exposure import LOOPBACK, Exposure
from jobledger.cli.groups import TOP
from jobledger.cli.logs import log_application, log_as_process, log_format, name_worker
from jobledger.cli.output import Output
from jobledger.cli.processes import options as process
from jobledger.cli.processes.entrance import Entrance
from jobledger.cli.processes.gateway import DEFAULT_PORT, missing
from jobledger.cli.processes.settings import LEDGER, WORKER
from jobledger.cli.processes.supervise import environment_of_child
from jobledger.cli.session import Target, load_tasks, opened, until_closed, watch_signals
from jobledger.gateway.process.children import KeeperChild
from jobledger.ledger import Ledger, TaskRegistry
from jobledger.ledger.model.errors import PortInUseError
from jobledger.ledger.model.identity import new_identity
from jobledger.ledger.nats.access import NO_ACCESS
from jobledger.ledger.nats.addresses import holds_secret, shown
from jobledger.ledger.server import Durability, EmbeddedServer
from jobledger.projections import Projector, Snapshots
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.process import log_what_nobody_catches, tune_collector
from jobledger.workers.processes.child import Child, how_ended, python
from jobledger.workers.processes.messages import Stop
from jobledger.workers.processes.parent import FROM_SUPERVISED, SaidBySupervised, supervised
from jobledger.workers.services import outlive

# A gateway beside another command: `jobledger gateway` as a child process, which ends with the command.

_START_S: Final = 30.0
_FAREWELL_S: Final = 5.0
_log: Final = logging.getLogger("jobledger.gateway")


class Beside:
    """The gateway as a child process; it reads a projection that its parent keeps up to date."""

    def __init__(
        self, target: Target, projection: Path, listening: socket.socket, *, access_log: bool
    ) -> None:
        """Keep the gateway's socket `listening` open, so that a restarted child has the same port."""
        self.entrance = Entrance(gateway="")  #: address of the gateway
        self._listening = listening
        # The worker of this process declares the schedules, unless it was told not to.
        self._environment = environment_of_child(target) | {
            "JOBLEDGER_NO_SCHEDULES": "1",
            "JOBLEDGER_NO_ACCESS_LOG": "0" if access_log else "1",
        }
        self._command = [
            *python("jobledger.cli", "--log-format", log_format(), "gateway"),
            *("--projection", str(projection.absolute()), "--no-projector"),
            *(("--environment", target.environment) if target.environment else ()),
            *("--listening", str(listening.fileno())),
        ]
        self._identity = new_identity()
        self._child: Child[SaidBySupervised] | None = None

    async def start(self) -> None:
        """Start the child, and wait until it answers. Raises: ServerEndedError; the child's own words are on stderr."""
        await self.stop()  # clean up after a child that has ended
        self._child = child = await Child[SaidBySupervised].start(
            lambda line: (*self._command, *supervised(self._identity, line)),
            FROM_SUPERVISED,
            what="gateway process",
            environment=self._environment,
            pass_fds=(self._listening.fileno(),),
            stdout=subprocess.DEVNULL,
        )
        with contextlib.suppress(TimeoutError):
            if ready := await child.until_ready(_START_S):
                self.entrance = msgspec.convert(ready.facts, Entrance)
                _log.info("the gateway of process %d answers at %s", child.pid, self.entrance.gateway)
                return
        raise ServerEndedError(
            "the gateway did not start: its own words are above; --no-gateway does without"
        )

    async def keep(self) -> None:
        """Start the child again if it has ended, then wait until it ends by itself. Raises: ServerEndedError."""
        if self._child is None or self._child.has_ended:
            await self.start()
        assert self._child is not None, "it was started"
        async for _ in self._child.messages():
            pass  # heartbeats; they end with the child
        await self._child.until_ended()
        raise ServerEndedError(f"its process {how_ended(self._child.reap())}")

    async def stop(self) -> None:
        """Ask the child to end at once; kill it if it stays."""
        child, self._child = self._child, None
        if child is not None:
            child.send(Stop(at_once=True))
            await child.leave(_FAREWELL_S)


@contextlib.asynccontextmanager
async def gateway_beside(
    output: Output, target: Target, projection: Path, port: int | None, *, access_log: bool = False
) -> AsyncGenerator[Beside | None, None]:
    """Run a gateway for the length of the block; yield None, after a note, without the extra.

    Without a `port` the gateway takes the usual one, or a free one if that is in use. `access_log`: log each request.

    Raises: PortInUseError, ServerEndedError.
    """
    if sentence := missing():
        output.note(f"no gateway is started: {sentence}")
        yield None
        return
    with _listen(port) as listening:
        made = Beside(target, projection, listening, access_log=access_log)
        try:
            await made.start()
            yield made
        finally:
            with anyio.CancelScope(shield=True):  # `stop` is bounded in time
                await made.stop()


def _listen(port: int | None) -> socket.socket:
    """Return the socket of the gateway, bound here so that nobody takes the port before the gateway begins."""
    from jobledger.gateway.process.listener import listen  # noqa: PLC0415 - the extra was checked before

    if port is not None:
        return listen(LOOPBACK, port, option="--gateway-port")
    try:
        return listen(LOOPBACK, DEFAULT_PORT)
    except PortInUseError:
        return listen(LOOPBACK, 0)


class _Projection(msgspec.Struct, frozen=True):
    follow: Callable[[], Coroutine[Any, Any, NoReturn]]  #: keeps the projection up to date
    path: Path
    metrics: str | None  #: address of the metrics


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    directory: Path
    port: int
    durability: Durability
    url: str | None
    registry: TaskRegistry | None
    config: WorkerConfig
    app: str
    exposure: Exposure
    gateway: bool
    gateway_port: int | None
    browser: bool
    access_log: bool
    archive: str  #: folder for old events if the ledger's setting names none; "": none


@command(
    TOP,
    "up",
    takes=("projection", "environment", CREATES, WAITS, "as_json"),
    settings=WORKER | LEDGER,
)
def up(
    cli: Cli,
    *,
    app: options.App = None,
    directory: process.OptionalDirectory = None,
    port: process.OptionalPort = None,
    durability: process.Durability = "power",
    url: process.OptionalUrl = None,
    queues: process.Queues = None,
    no_schedules: process.NoSchedules = False,
    metrics_port: process.MetricsPort = None,
    metrics_host: process.MetricsHost = LOOPBACK,
    metrics_token_file: process.MetricsTokenFile = None,
    no_gateway: process.NoGateway = False,
    gateway_port: process.GatewayPort = None,
    access_log: process.AccessLog = False,
    no_browser: process.NoBrowser = False,
) -> Awaitable[None]:
    """Run the embedded server (or use --url), a worker for --app, a projector and a gateway, until Ctrl-C."""
    if url is not None and (directory is not None or port is not None):
        raise UsageError(
            f"--dir and --port are for a server of our own, and --url or JOBLEDGER_URL names {shown(url)}: "
            "leave one of them out"
        )
    log_as_process()
    served, weights = process.weighted(queues)
    exposure = Exposure(port=metrics_port, host=metrics_host, token_file=metrics_token_file)
    registry = load_tasks(app) if options.split(app) else None
    if registry is not None:
        log_application(each.function.__module__ for each in registry)
        process.warn_of_foreign(served, registry)
    plan = _Plan(
        directory=directory or Path(".jobledger"),
        port=4222 if port is None else port,
        durability=durability,
        url=url,
        config=WorkerConfig(queues=served, weights=weights, schedules=not no_schedules, **cli.worker),
        registry=registry,
        app=",".join(options.split(app)),
        exposure=exposure,
        gateway=not no_gateway,
        gateway_port=gateway_port,
        access_log=access_log,
        archive="" if url is not None else str((directory or Path(".jobledger")).absolute() / "archive"),
        browser=not no_browser,
    )
    return _up(cli, plan)


async def _up(cli: Cli, plan: _Plan) -> None:
    """Start in the order server, connection, projector, gateway, worker; stop in the opposite one."""
    tune_collector()
    output = cli.output
    async with _server(plan) as server:
        url = plan.url or "" if server is None else server.url
        access = cli.target.access if server is None else NO_ACCESS  # the embedded server admits everybody
        wait_s = cli.target.wait_for_server_s if server is None else 0.0  # the embedded server has started
        target = msgspec.structs.replace(cli.target, url=url, access=access, wait_for_server_s=wait_s)
        async with opened(target) as ledger:
            path = await cli.rows(ledger).path()
            log_what_nobody_catches(ledger.connection.loop)
            made = Worker(ledger, plan.registry, plan.config) if plan.registry is not None else None
            if made is not None:
                name_worker(made.name)
            async with (
                ledger.reader_leases.held("projector"),
                _projecting(output, ledger, path, made, plan.exposure) as projecting,
                _gateway(output, target, path, plan) as gateway,
            ):
                with output.telling():
                    _say_ready(output, plan, server, url, made, projecting, gateway)
                entrance = Entrance(gateway="") if gateway is None else gateway.entrance
                with entrance.shown(browser=plan.browser):
                    child = KeeperChild(ledger, path, plan.archive)
                    keeper = Keeper(ledger, child.work, clear=child.clear, default_to=plan.archive)
                    await _run(output, ledger, server, projecting, made, gateway, keeper)


@contextlib.asynccontextmanager
async def _projecting(
    output: Output, ledger: Ledger, path: Path, made: Worker | None, exposure: Exposure
) -> AsyncGenerator[_Projection, None]:
    """Yield the follower of the projection; if metrics were asked for, serve them for the length of the block."""
    with Projector(ledger.log, path, snapshots=Snapshots(path)) as projector:
        missing = (await projector.prepare(mend=True)).missing
        if missing:
            output.note(missing)
        if exposure.port is None:
            yield _Projection(projector.run, path, None)
            return
    # Imported here, so that a process without metrics does not load them.
    from prometheus_client import CollectorRegistry  # noqa: PLC0415

    from jobledger.admin.diagnoses import counted  # noqa: PLC0415
    from jobledger.projections.metrics.exporter import Exporter  # noqa: PLC0415
    from jobledger.workers.metrics import measured  # noqa: PLC0415

    exporter, shown = Exporter(ledger, path, diagnose=counted), CollectorRegistry()
    shown.register(exporter)
    healths = [exporter.health]
    async with contextlib.AsyncExitStack() as stack:
        if made is not None:
            collector = await stack.enter_async_context(measured(ledger, made))
            shown.register(collector)
            healths.append(collector.health)
        server = stack.enter_context(
            exposure.server(shown, lambda: next(filter(None, (health() for health in healths)), ""))
        )
        yield _Projection(exporter.follow, path, server.url)


def _gateway(
    output: Output, target: Target, path: Path, plan: _Plan
) -> contextlib.AbstractAsyncContextManager[Beside | None]:
    if not plan.gateway:
        return contextlib.nullcontext()
    return gateway_beside(output, target, path, plan.gateway_port, access_log=plan.access_log)


@contextlib.asynccontextmanager
async def _server(plan: _Plan) -> AsyncGenerator[EmbeddedServer | None, None]:
    if plan.url is not None:
        yield None
        return
    async with embedded(plan.directory, port=plan.port, durability=plan.durability) as server, blamed(server):
        yield server


async def _run(  # noqa: PLR0917 - parts that run
    output: Output,
    ledger: Ledger,
    server: EmbeddedServer | None,
    projecting: _Projection,
    made: Worker | None,
    gateway: Beside | None,
    keeper: Keeper,
) -> None:
    stopped = anyio.Event()

    def on_signal() -> None:
        if not stopped.is_set():
            output.note("stopping in order; a second signal stops at once")
        stopped.set()
        if made is not None:
            made.stop()

    async with anyio.create_task_group() as group:
        await group.start(watch_signals, on_signal)
        if server is not None:
            group.start_soon(until_ended, server)
        group.start_soon(until_closed, ledger)
        group.start_soon(outlive, ledger.connection, "the projector", projecting.follow)
        group.start_soon(outlive, ledger.connection, "the keeper", keeper.run)
        if gateway is not None:
            group.start_soon(outlive, ledger.connection, "the gateway", gateway.keep)
        if made is not None:
            await made.run()
        else:
            await stopped.wait()
        group.cancel_scope.cancel()


def _say_ready(  # noqa: PLR0917 - facts for a person
    output: Output,
    plan: _Plan,
    server: EmbeddedServer | None,
    url: str,
    made: Worker | None,
    projecting: _Projection,
    gateway: Beside | None,
) -> None:
    if output.as_json:
        body = described(server) if server is not None else {"url": shown(url)}
        page = {} if projecting.metrics is None else {"metrics": projecting.metrics}
        page |= {} if gateway is None else msgspec.to_builtins(gateway.entrance)
        worker = made.identity if made else None
        output.object({**body, "worker": worker, "projection": str(projecting.path), **page})
        return
    output.say(f"jobledger is ready at {shown(url)}", style="bold green")
    entrance = None if gateway is None else gateway.entrance
    here = "" if url == "nats://127.0.0.1:4222" or holds_secret(url) else f" --url {url}"
    store = (
        f"{server.directory} ({server.durability}: {safety(server.durability)})"
        if server is not None
        else None
    )
    output.facts(
        [
            ("server", "embedded nats-server" if server is not None else "a running one, not started here"),
            ("store", store),
            (
                "worker",
                f"{made.identity}, queues {', '.join(made.queues)}"
                if made
                else "none: name tasks with --app",
            ),
            ("projection", str(projecting.path)),
            ("dashboard", None if entrance is None else entrance.address),
            ("programs", entrance.command if entrance is not None and entrance.key_file else None),
            ("metrics", projecting.metrics),
            ("next", f"jobledger enqueue --app {plan.app or 'MODULE'} TASK key=value --wait{here}"),
            ("", f"jobledger jobs list{here}"),
            ("", f"jobledger events tail --follow{here}"),
            ("stop", "Ctrl-C"),
        ]
    )
