"""`jobledger metrics`: one exporter for the whole fleet, from a projection that it keeps up to date itself."""

from __future__ import annotations

import os
from typing import Annotated

import anyio
import typer

from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.exposure import LOOPBACK, Exposure
from jobledger.cli.groups import TOP
from jobledger.cli.processes import options as process
from jobledger.cli.session import until_closed, watch_signals
from jobledger.cli.times import seconds


@command(TOP, "metrics", takes=ROWS)
async def metrics(
    cli: Cli,
    *,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, metavar="PORT", help="Port to serve on; 0 takes a free one."
        ),
    ] = 9464,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            envvar="JOBLEDGER_METRICS_HOST",
            metavar="HOST",
            help="Address to serve on; one beyond this machine needs a token.",
        ),
    ] = LOOPBACK,
    metrics_token_file: process.MetricsTokenFile = None,
    label_values_max: Annotated[
        int,
        typer.Option(
            "--label-values-max",
            min=1,
            max=10_000,
            metavar="N",
            help="Most queues, tasks and error types that get series of their own; the rest is added up.",
        ),
    ] = 200,
    lag_max: Annotated[
        float,
        typer.Option(
            "--lag-max", parser=seconds(0.1), metavar="SPAN", help="Lag beyond which /healthz is red."
        ),
    ] = 30.0,
) -> None:
    """Serve the metrics of all queues, tasks and workers for Prometheus, until Ctrl-C."""
    exposure = Exposure(port=port, host=host, token_file=metrics_token_file)
    await _serve(cli, exposure, label_values_max, lag_max)


async def _serve(cli: Cli, exposure: Exposure, label_values_max: int, lag_s_max: float) -> None:
    # Imported here, so that the list of commands does not load these.
    from jobledger.admin.diagnoses import counted  # noqa: PLC0415
    from jobledger.projections.metrics.exporter import Exporter, ExporterConfig  # noqa: PLC0415

    config, output = ExporterConfig(label_values_max=label_values_max, lag_s_max=lag_s_max), cli.output
    async with cli.ledger() as ledger:
        path = await cli.rows(ledger).path()
        exporter = Exporter(ledger, path, config, diagnose=counted)
        with exposure.server(exporter, exporter.health) as server:
            async with anyio.create_task_group() as group:
                await group.start(watch_signals, group.cancel_scope.cancel)
                group.start_soon(until_closed, ledger)
                with output.telling():
                    if output.as_json:
                        output.object({"metrics": server.url, "projection": str(path), "pid": os.getpid()})
                    else:
                        output.say(f"metrics at {server.url}, from {path}; stop with Ctrl-C")
                await exporter.run()
