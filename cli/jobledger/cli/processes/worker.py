"""`jobledger worker`: one process that runs jobs; a first signal asks it to end, a second forces it.

With --processes or --reload the command is the supervisor of such processes (supervise.py).
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncGenerator, Awaitable
from typing import Annotated

import anyio
import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.command import CREATES, WAITS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.exposure import LOOPBACK, Exposure
from jobledger.cli.groups import TOP
from jobledger.cli.logs import log_application, log_as_process, log_format, name_worker
from jobledger.cli.output import Output
from jobledger.cli.processes import options as process
from jobledger.cli.processes.settings import LEDGER, WORKER
from jobledger.cli.processes.supervise import Crew, supervise
from jobledger.cli.session import (
    StopAction,
    Target,
    load_tasks,
    named_modules,
    opened,
    stoppable,
    until_closed,
)
from jobledger.cli.session import until_eof as when_stdin_ends
from jobledger.ledger import Ledger, TaskRegistry
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.idle import until_idle
from jobledger.workers.process import log_what_nobody_catches, tune_collector
from jobledger.workers.processes.parent import Parent


@command(
    TOP,
    "worker",
    takes=("url", "environment", CREATES, WAITS, "as_json"),
    settings=WORKER | LEDGER,
)
def worker(
    cli: Cli,
    *,
    app: options.App = None,
    queues: process.Queues = None,
    processes: process.Processes = None,
    reload: process.Reload = False,
    no_schedules: process.NoSchedules = False,
    metrics_port: process.MetricsPort = None,
    metrics_host: process.MetricsHost = LOOPBACK,
    metrics_token_file: process.MetricsTokenFile = None,
    until_idle: process.UntilIdle = False,
    until_eof: process.UntilEof = False,
    supervised: Annotated[str | None, typer.Option("--supervised", metavar="NAME:FD", hidden=True)] = None,
) -> Awaitable[None] | int:
    """Run jobs until SIGTERM or Ctrl-C.

    The first signal lets running jobs finish (--grace) and returns the others to the queue; a second stops at once.
    """
    log_as_process()
    parent = Parent(supervised) if supervised is not None else None
    served, weights = process.weighted(queues)
    config = WorkerConfig(
        queues=served,
        weights=weights,
        schedules=not no_schedules,
        supervisor=parent.identity if parent is not None else "",
        **cli.worker,
    )
    target = cli.target if parent is None else _beneath(cli.target)
    exposure = Exposure(port=metrics_port, host=metrics_host, token_file=metrics_token_file)
    if until_idle and (processes is not None or reload):
        raise UsageError("--until-idle is for one process: leave out --processes and --reload")
    if parent is None and (processes is not None or reload):
        crew = Crew(
            modules=named_modules(app),
            queues=options.split(queues),
            processes=processes or 1,
            reload=reload,
            exposure=exposure,
        )
        return supervise(cli.output, target, config, crew, _switches(cli.line), until_eof=until_eof)
    exposure.check(1)
    registry = load_tasks(app)
    log_application(each.function.__module__ for each in registry)
    process.warn_of_foreign(served, registry)
    ends = Ends(on_eof=until_eof, when_idle=until_idle)
    return work(cli.output, target, registry, config, parent, exposure, ends)


def _beneath(target: Target) -> Target:
    """Return the target of a worker under a supervisor, which made the ledger and restarts the worker."""
    # A ledger that was deleted since must not be made again, as it would be empty.
    return msgspec.structs.replace(target, create=False, wait_for_server_s=0.0)


def _switches(line: typer.Context) -> list[str]:
    """Return the switches before the command, for the workers of a supervisor."""
    given = [f"--{name}" for name in ("verbose", "debug") if _of_root(line, name)]
    return [*given, "--log-format", log_format()]


def _of_root(line: typer.Context, name: str) -> bool:
    return line.parent is not None and bool(line.parent.params.get(name))


class Ends(msgspec.Struct, frozen=True, kw_only=True):
    """Ends of the worker beside a signal."""

    on_eof: bool
    when_idle: bool


async def work(  # noqa: PLR0917 - options of the command
    output: Output,
    target: Target,
    registry: TaskRegistry,
    config: WorkerConfig,
    parent: Parent | None,
    exposure: Exposure,
    ends: Ends,
) -> None:
    """Run a worker until it has to stop. Raises: as `Worker.run`."""
    tune_collector()
    async with stoppable() as stopping, opened(target) as ledger:
        log_what_nobody_catches(ledger.connection.loop)
        made = Worker(ledger, registry, config, announce=parent.announce if parent is not None else None)
        name_worker(made.name)
        spoken = contextlib.nullcontext() if parent is None else parent.connected()
        async with spoken, _shown(output, ledger, made, exposure):
            await _run(output, ledger, made, parent, stopping, ends)


@contextlib.asynccontextmanager
async def _shown(
    output: Output, ledger: Ledger, made: Worker, exposure: Exposure
) -> AsyncGenerator[None, None]:
    """Serve the worker's metrics for the length of the block, if that was asked for."""
    if exposure.port is None:
        yield
        return
    # Imported here, so that a worker without metrics does not load them.
    from jobledger.workers.metrics import measured  # noqa: PLC0415

    async with measured(ledger, made) as collector:
        with exposure.server(collector, collector.health) as server:
            output.note(f"metrics of process {os.getpid()} at {server.url}")
            yield


async def _run(  # noqa: PLR0917 - options of the command
    output: Output,
    ledger: Ledger,
    made: Worker,
    parent: Parent | None,
    stopping: StopAction,
    ends: Ends,
) -> None:
    once = functools.cache(made.stop)  # a second call would stop it at once

    def on_signal() -> None:
        output.note("stopping: running attempts may finish (--grace); a second signal stops at once")
        made.stop()

    def at_once() -> None:
        made.stop()
        made.stop()

    async with anyio.create_task_group() as group:
        stopping.act = on_signal if parent is None else once
        if parent is not None:
            group.start_soon(parent.watch, once, at_once)
        group.start_soon(until_closed, ledger)
        group.start_soon(_say_ready, output, made, parent)
        if ends.on_eof:
            group.start_soon(when_stdin_ends, at_once)
        if ends.when_idle:
            group.start_soon(_stop_when_idle, ledger, made)
        await made.run()
        group.cancel_scope.cancel()


async def _stop_when_idle(ledger: Ledger, made: Worker) -> None:
    await until_idle(ledger, made)
    made.stop()


async def _say_ready(output: Output, made: Worker, parent: Parent | None) -> None:
    """Report that the worker is ready, once it takes work."""
    await made.taking.wait()
    if parent is not None:
        parent.ready()
    with output.telling():
        if output.as_json:
            output.object({"worker": made.identity, "queues": made.queues, "pid": os.getpid()})
        else:
            stop = "" if parent is not None else "; stop it with Ctrl-C"
            what = "hosts the reactors" if made.hosts_only else f"takes jobs of {', '.join(made.queues)}"
            output.say(f"worker {made.identity} {what}{stop}")
