"""`jobledger worker`: one process that runs jobs; stopping it is a request first and a command the second time."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import anyio
import typer

from jobledger.cli import options
from jobledger.cli.output import Output
from jobledger.cli.session import Target, load_tasks, opened, run, until_closed, watch_signals
from jobledger.ledger import Ledger, TaskRegistry
from jobledger.ledger.config import DEFAULT_URL
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.process import settle

_READY_POLL_S = 0.05


def worker(
    *,
    app: options.App = None,
    queues: options.Queues = None,
    concurrency: options.Concurrency = 100,
    grace: options.Grace = 30.0,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    ledger_bytes_max: options.LedgerBytesMax = None,
    until_eof: Annotated[
        bool,
        typer.Option(
            "--until-eof",
            metavar="",
            help="Stop at once when stdin ends: for a parent that must leave nobody behind.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C: running ones get their grace, the rest is given back; twice stops at once."""
    config = WorkerConfig(queues=tuple(options.split(queues)), concurrency=concurrency, grace_s=grace)
    registry = load_tasks(app)
    target = Target(url=url, environment=environment, ledger_bytes_max=ledger_bytes_max)
    run(lambda: _worker(Output(as_json=as_json), target, registry, config, until_eof=until_eof))


async def _worker(
    output: Output, target: Target, registry: TaskRegistry, config: WorkerConfig, *, until_eof: bool
) -> None:
    settle()
    async with opened(target) as ledger:
        await _run(output, ledger, Worker(ledger, registry, config), until_eof=until_eof)


async def _run(output: Output, ledger: Ledger, made: Worker, *, until_eof: bool) -> None:

    def on_signal() -> None:
        output.note("stopping: running attempts get their grace; once more to stop at once")
        made.stop()

    async with anyio.create_task_group() as group:
        await group.start(watch_signals, on_signal)
        group.start_soon(until_closed, ledger)
        group.start_soon(_say_ready, output, ledger, made)
        if until_eof:
            group.start_soon(_stop_at_eof, made)
        await made.run()
        group.cancel_scope.cancel()


async def _say_ready(output: Output, ledger: Ledger, made: Worker) -> None:
    """Say so once the worker holds its lease, for those who wait for it."""
    # Another part of the program takes the lease and sets no event for us.
    while await ledger.leases.find(made.identity) is None:  # noqa: ASYNC110
        await anyio.sleep(_READY_POLL_S)
    if output.as_json:
        output.object({"worker": made.identity, "queues": made.queues})
    else:
        output.say(f"worker {made.identity} takes jobs of {', '.join(made.queues)}; stop it with Ctrl-C")


async def _stop_at_eof(made: Worker) -> None:
    with contextlib.suppress(
        OSError, ValueError
    ):  # nothing that can be waited for, such as /dev/null, has ended
        while True:
            await anyio.wait_readable(sys.stdin)
            if not os.read(sys.stdin.fileno(), 1024):
                break
    made.stop()
    made.stop()
