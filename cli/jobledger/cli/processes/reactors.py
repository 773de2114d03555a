"""`jobledger reactors`: a process for timers, limits, schedules and runs, which runs no task of an application."""

from __future__ import annotations

from collections.abc import Awaitable

from jobledger.cli.command import CREATES, WAITS, Cli, command
from jobledger.cli.exposure import LOOPBACK, Exposure
from jobledger.cli.groups import TOP
from jobledger.cli.logs import log_as_process
from jobledger.cli.processes import options as process
from jobledger.cli.processes.settings import LEDGER
from jobledger.cli.processes.worker import Ends, work
from jobledger.ledger import TaskRegistry
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.workers import WorkerConfig


@command(TOP, "reactors", takes=("url", "environment", CREATES, WAITS, "as_json"), settings=LEDGER)
def reactors(
    cli: Cli,
    *,
    metrics_port: process.MetricsPort = None,
    metrics_host: process.MetricsHost = LOOPBACK,
    metrics_token_file: process.MetricsTokenFile = None,
    until_eof: process.UntilEof = False,
) -> Awaitable[None]:
    """Host the reactors (timers, retries, limits, schedules, runs) until SIGTERM or Ctrl-C, and run no task.

    For workers with `--no-reactors`, and for none at all: jobs that are due wait for it.
    """
    log_as_process()
    exposure = Exposure(port=metrics_port, host=metrics_host, token_file=metrics_token_file)
    exposure.check(1)
    config = WorkerConfig(queues=(BUILT_IN_QUEUE,), schedules=False)
    ends = Ends(on_eof=until_eof, when_idle=False)
    return work(cli.output, cli.target, TaskRegistry([]), config, None, exposure, ends)
