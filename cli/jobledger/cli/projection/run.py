"""`jobledger projection run`: follow the ledger with the projection, or with a read model of one's own."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import anyio
import typer

from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import PROJECTION
from jobledger.cli.projection.read_models import Plan, run_read_model
from jobledger.cli.server_options import is_typed
from jobledger.cli.session import until_closed, watch_signals
from jobledger.projections import Projector, Snapshots


@command(PROJECTION, "run", takes=ROWS)
async def run_projector(
    cli: Cli,
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:Class",
            help="A read model of your own, instead of the projection; a .py file may be named.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="Exit when the ledger's end is reached.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", metavar="", help="Rebuild the read model from the first event.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="SQLite file of the read model. (default: one per ledger and model in your data folder)",
        ),
    ] = None,
) -> None:
    """Follow the ledger and keep the projection, or a read model of your own, up to date until Ctrl-C."""
    if model is not None:
        if is_typed(cli.line, "projection"):
            raise UsageError("--projection names the projection's file: for a read model it is --file")
        await run_read_model(cli, Plan(model=model, file=file, rebuild=rebuild, once=once))
        return
    if rebuild or file is not None:
        instead = "`jobledger projection rebuild`" if rebuild else "--projection"
        raise UsageError(
            f"{'--rebuild' if rebuild else '--file'} is for a read model, as in MODULE:Class; here it is {instead}"
        )
    await _follow(cli, once=once)


async def _follow(cli: Cli, *, once: bool) -> None:
    output = cli.output
    async with cli.ledger() as ledger, anyio.create_task_group() as group:
        await group.start(watch_signals, group.cancel_scope.cancel)
        group.start_soon(until_closed, ledger)
        rows = cli.rows(ledger)
        position, path = await rows.catch_up(), await rows.path()
        if position.missing:
            output.note(position.missing)
        with contextlib.nullcontext() if once else output.telling():
            if output.as_json:
                output.object({"projection": str(path), "position": position.stream_sequence})
            else:
                begins = "holds the ledger up to" if once else "follows the ledger from"
                end = "" if once else "; stop with Ctrl-C"
                output.say(f"{path} {begins} stream sequence {position.stream_sequence:,}{end}")
        if not once:
            with Projector(ledger.log, path, snapshots=Snapshots(path)) as projector:
                await projector.run()
        group.cancel_scope.cancel()
