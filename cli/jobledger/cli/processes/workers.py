"""`jobledger workers list`: who holds a lease at this moment."""

from __future__ import annotations

from datetime import datetime

import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.output import Cell, Output
from jobledger.cli.session import Target, opened, run
from jobledger.cli.text import age, colored, shortened
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.nats.leases import WorkerInfo

app = typer.Typer(help="See the workers.", no_args_is_help=True)


@app.callback()
def _workers() -> None:
    """Keep `list` a command of its own, whatever their number."""


@app.command("list")
def list_workers(
    *,
    limit: options.Limit = 100,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """List the workers whose leases live, and those that stopped within the last lease time."""
    output = Output(as_json=as_json)
    run(lambda: _list(output, Target(url=url, environment=environment), limit))


async def _list(output: Output, target: Target, limit: int) -> None:
    async with opened(target) as ledger:
        found = sorted(await ledger.leases.all(), key=lambda info: (info.host, info.supervisor, info.worker))
        now = ledger.clock.now()
    if output.as_json:
        for info in found[:limit]:
            output.object(msgspec.structs.asdict(info))
    elif not found:
        output.say("no worker runs; start one with `jobledger worker --app MODULE`")
    else:
        columns = ("worker", "supervisor", "queues", "running>", "version!", "up!", "seen!")
        output.table(columns, [_row(info, now) for info in found[:limit]])


def _row(info: WorkerInfo, now: datetime) -> tuple[Cell, ...]:
    return (
        shortened(info.worker, 30),
        _short(info.supervisor, info.host),
        ", ".join(info.queues),
        info.running,
        info.version,
        age(info.started_at, now).removesuffix(" ago"),
        colored("stopped") if info.stopped else age(info.renewed_at, now),
    )


def _short(supervisor: str, host: str) -> str:
    """Leave out the host, which is that of the worker, and the random part: what is left is the process id."""
    return supervisor.removeprefix(f"{host}-").partition("-")[0] if supervisor else ""
