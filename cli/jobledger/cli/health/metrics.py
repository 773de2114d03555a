"""`jobledger metrics`: one exporter for the whole fleet, from a projection that it keeps up to date itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import anyio
import typer

from jobledger.cli import options
from jobledger.cli.exposure import LOOPBACK, Exposure
from jobledger.cli.output import Output
from jobledger.cli.session import Target, opened, projection_path, run, until_closed, watch_signals
from jobledger.ledger.config import DEFAULT_URL


def metrics(
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
            help="Address to serve on; beyond this machine only with a token.",
        ),
    ] = LOOPBACK,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar="JOBLEDGER_METRICS_TOKEN_FILE",
            metavar="FILE",
            help="File with the token that every request must carry (Authorization: Bearer).",
        ),
    ] = None,
    label_values_max: Annotated[
        int,
        typer.Option(
            "--label-values-max",
            min=1,
            max=10_000,
            metavar="N",
            help="Queues, tasks and types of error with series of their own, each; the rest is summed up.",
        ),
    ] = 200,
    lag_max: Annotated[
        float,
        typer.Option(
            "--lag-max", min=0.1, metavar="SECONDS", help="How far it may be behind before /healthz is red."
        ),
    ] = 30.0,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Serve the metrics of all queues, tasks and workers for Prometheus, until Ctrl-C."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    exposure = Exposure(port=port, host=host, token_file=token_file)
    run(lambda: _metrics(output, target, exposure, projection, label_values_max, lag_max))


async def _metrics(  # noqa: PLR0917 - what it was told
    output: Output,
    target: Target,
    exposure: Exposure,
    chosen: Path | None,
    label_values_max: int,
    lag_max: float,
) -> None:
    # Imported here: the other commands do not load what it takes.
    from jobledger.projections.metrics.exporter import Exporter, ExporterConfig  # noqa: PLC0415

    config = ExporterConfig(label_values_max=label_values_max, lag_s_max=lag_max)
    async with opened(target) as ledger:
        path = await projection_path(ledger, chosen)
        exporter = Exporter(ledger, path, config)
        with exposure.server(exporter, exporter.health) as server:
            async with anyio.create_task_group() as group:
                await group.start(watch_signals, group.cancel_scope.cancel)
                group.start_soon(until_closed, ledger)
                if output.as_json:
                    output.object({"metrics": server.url, "projection": str(path), "pid": os.getpid()})
                else:
                    output.say(f"metrics at {server.url}, from {path}; stop with Ctrl-C")
                await exporter.run()
