"""`jobledger workers list`: the workers with a lease at this moment."""

from __future__ import annotations

from datetime import datetime

from jobledger.admin.amounts import duration
from jobledger.admin.workers import list_workers
from jobledger.cli import options
from jobledger.cli.command import Cli, command
from jobledger.cli.groups import WORKERS
from jobledger.cli.text import Cell, age, colored
from jobledger.ledger.nats.fleet_clock import APART_S_MAX
from jobledger.ledger.nats.leases import WorkerInfo


@command(WORKERS, "list")
async def list_command(cli: Cli, *, limit: options.Limit = 100) -> None:
    """List the workers with a live lease, and those that stopped within the last lease time."""
    async with cli.ledger() as ledger:
        found = await list_workers(ledger)
        now = ledger.clock.now()
    if cli.output.as_json:
        for info in found[:limit]:
            cli.output.object(info)
    elif not found:
        cli.output.say("no worker runs; start one with `jobledger worker --app MODULE`")
    else:
        columns = ("worker", "supervisor", "queues", "running>", "version!", "up!", "seen!")
        cli.output.table(columns, [_row(info, now) for info in found[:limit]])
        for host, seconds in sorted({info.host: info.clock_apart_s for info in found}.items()):
            if abs(seconds) > APART_S_MAX:
                side = "ahead of" if seconds > 0 else "behind"
                cli.output.say(
                    f"the clock of {host} is {duration(abs(seconds))} {side} the server's: synchronise it, with NTP "
                    "for instance; its workers go by the server's time"
                )


def _row(info: WorkerInfo, now: datetime) -> tuple[Cell, ...]:
    return (
        info.worker,
        _short(info.supervisor, info.host),
        ", ".join(info.queues),
        info.running,
        info.version,
        age(info.started_at, now).removesuffix(" ago"),
        colored("stopped") if info.stopped else age(info.renewed_at, now),
    )


def _short(supervisor: str, host: str) -> str:
    """Return the process id in an identity, without its host, which is the worker's, and its random part."""
    return supervisor.removeprefix(f"{host}-").partition("-")[0] if supervisor else ""
