"""`jobledger server`: the embedded nats-server alone."""

from __future__ import annotations

from pathlib import Path

import anyio

from jobledger.cli import options
from jobledger.cli.command import OFFLINE, Cli, command
from jobledger.cli.embedded import described, embedded, safety, until_ended
from jobledger.cli.groups import TOP
from jobledger.cli.output import Output
from jobledger.cli.processes import options as process
from jobledger.cli.session import watch_signals
from jobledger.ledger.server import EmbeddedServer


@command(TOP, "server", takes=OFFLINE)
async def server(
    cli: Cli,
    *,
    directory: options.Directory = Path(".jobledger"),
    port: process.Port = 4222,
    durability: process.Durability = "power",
) -> None:
    """Run nats-server with the project's nats.conf until Ctrl-C; its store is kept between runs."""
    async with anyio.create_task_group() as group:
        await group.start(watch_signals, group.cancel_scope.cancel)
        async with embedded(directory, port=port, durability=durability) as running:
            with cli.output.telling():
                _say_ready(cli.output, running)
            await until_ended(running)


def _say_ready(output: Output, running: EmbeddedServer) -> None:
    if output.as_json:
        output.object(described(running))
        return
    output.say(f"nats-server is ready at {running.url}", style="bold green")
    output.facts(
        [
            ("store", str(running.directory)),
            ("durability", f"{running.durability}: {safety(running.durability)}"),
            ("monitoring", running.monitor_url),
            ("next", f"jobledger worker --app MODULE --url {running.url}"),
            ("stop", "Ctrl-C"),
        ]
    )
