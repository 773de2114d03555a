"""`jobledger workflows list` and `versions`: the workflows, and the versions that runs still need."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime

import msgspec

from jobledger.admin.workflows.versions import WorkflowVersion, age_of, list_workflows
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import WORKFLOWS
from jobledger.cli.session import load_tasks
from jobledger.cli.text import Cell, age, shortened
from jobledger.ledger import TaskRegistry


@command(WORKFLOWS, "list", takes=ROWS)
def list_command(cli: Cli, *, modules: options.App = None) -> Awaitable[None]:
    """List the workflows of living workers, of recorded runs and of --app: versions, queues, and open runs by state."""
    return _list(cli, load_tasks(modules) if modules else None)


async def _list(cli: Cli, tasks: TaskRegistry | None) -> None:
    async with cli.ledger() as ledger:
        found = await list_workflows(cli.rows(ledger), tasks)
    if cli.output.as_json:
        for each in found:
            cli.output.object({**msgspec.to_builtins(each), "is_free": each.is_free})
    elif not found:
        cli.output.say("no workflows: no living worker has one, and the ledger has no run")
    else:
        columns = ("workflow", "version", "queue", "workers>", "open runs~")
        cli.output.table(columns, [_cells(each) for each in found])


def _cells(each: WorkflowVersion) -> tuple[Cell, ...]:
    states = [f"{count:,} {state.replace('_', ' ')}" for state, count in each.open.items()]
    if each.dead_letters:
        states.append(_dead_letters(each))
    return (
        shortened(each.workflow, 64),
        each.version or "-",
        shortened(", ".join(each.queues), 30),
        each.workers,
        ", ".join(states) or "none",
    )


@command(WORKFLOWS, "versions", takes=ROWS)
async def versions(cli: Cli) -> None:
    """Tell which versions of workflows open runs still need, and which may be taken out of the code."""
    async with cli.ledger() as ledger:
        found = await list_workflows(cli.rows(ledger))
        now = ledger.clock.now()
    if cli.output.as_json:
        for each in found:
            cli.output.object({**msgspec.to_builtins(each), "is_free": each.is_free})
    elif not found:
        cli.output.say("no workflows: no living worker has one, and the ledger has no run")
    else:
        columns = ("workflow", "version", "open>", "oldest open!", "newest run!", "may it go?~")
        cli.output.table(columns, [_version_cells(each, now) for each in found])


def _version_cells(each: WorkflowVersion, now: datetime) -> tuple[Cell, ...]:
    return (
        shortened(each.workflow, 64),
        each.version or "-",
        f"{each.open_count:,}",
        _age(each.oldest_open, now),
        _age(each.newest, now),
        _verdict(each),
    )


def _age(text: str | None, now: datetime) -> str:
    at = age_of(text)
    return "" if at is None else age(at, now)


def _verdict(each: WorkflowVersion) -> str:
    if each.open_count:
        return "no: open runs need it"
    if each.dead_letters:
        return f"not while {_dead_letters(each)} may be requeued"
    return "no run needs it"


def _dead_letters(each: WorkflowVersion) -> str:
    return "1 dead letter" if each.dead_letters == 1 else f"{each.dead_letters:,} dead letters"
