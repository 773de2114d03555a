"""`jobledger unique show`: the unique keys of a task, and the job that holds each."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
import typer

from jobledger.admin.amounts import duration
from jobledger.admin.objects.fleet import key_shown
from jobledger.cli.command import Cli, command
from jobledger.cli.groups import UNIQUE
from jobledger.cli.pairs import pairs
from jobledger.cli.text import Cell, colored, plain, shortened
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.unique.queries import KeyHolder, find_keys

_LIMIT: Final = 50

_Task = Annotated[str, typer.Argument(metavar="TASK", help="Name of the task.")]
_Words = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Only keys that these arguments made.")
]
_Limit = Annotated[
    int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="At most this many, the newest first.")
]


@command(UNIQUE, "show")
async def show(cli: Cli, *, task: _Task, words: _Words = None, limit: _Limit = _LIMIT) -> None:
    """Show the unique keys of a task, the newest first: which job took each, and whether it still holds it."""
    check_token("task name", task)
    arguments = pairs(words or [])
    async with cli.ledger() as ledger:
        now = ledger.clock.now()
        found = await find_keys(ledger.log, task, now=now, arguments=arguments, limit=limit)
    output = cli.output
    if output.as_json:
        for each in found:
            output.object(key_shown(each))
    elif not found:
        named = " ".join(words or [])
        output.say(f"no job of task {task} has taken a key{f' with {named}' if named else ''}")
        output.note(
            f"a fixed period (for_s alone) takes no key, it is part of the job's id: `jobledger jobs list --task {task}`"
        )
    else:
        rows: list[tuple[Cell, ...]] = [
            (
                shortened(_arguments(each), 60),
                shortened(each.taken.job, 64),
                _state(each),
                _held(each, now),
            )
            for each in found
        ]
        output.table(("key", "job!", "status!", "held!"), rows)
        if len(found) == limit:
            output.note(f"the newest {limit:,}; more with --limit, fewer with KEY=VALUE")


def _arguments(found: KeyHolder) -> str:
    taken = found.taken
    text = taken.key
    if taken.arguments is not NO_VALUE:
        values = msgspec.json.decode(taken.arguments, type=dict[str, msgspec.Raw])
        text = ", ".join(f"{name}={bytes(value).decode()}" for name, value in values.items()) or "the task"
    return plain(f"{text} of {taken.tenant}" if taken.tenant else text)


def _state(found: KeyHolder) -> Cell:
    if found.job is not None:
        return colored(found.job.state.value)
    return "archived" if found.taken.made else "not made yet"


def _held(found: KeyHolder, now: datetime) -> str:
    expires_at = found.taken.expires_at
    if not found.is_held:
        return "no"
    return "yes" if expires_at is None else duration((expires_at - now).total_seconds())
