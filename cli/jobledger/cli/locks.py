"""`jobledger locks list` and `show`: the held locks, their processes, and whether these live."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from jobledger.admin.objects.locks import LockShown, list_locks, lock_state
from jobledger.cli import options
from jobledger.cli.command import Cli, command
from jobledger.cli.groups import LOCKS
from jobledger.cli.text import age, moment, shortened

_GONE: Final = "gone: the lock is free for whoever asks"

_Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="What kind of thing is locked.")]
_Lock = Annotated[str, typer.Argument(metavar="LOCK", help="The lock's id within its scope.")]


@command(LOCKS, "list")
async def list_all(cli: Cli, *, limit: options.Limit = 50) -> None:
    """List the held locks, the newest first: by whom, since when, with which number."""
    output = cli.output
    async with cli.ledger() as ledger:
        found, now = await list_locks(ledger, limit=limit), ledger.clock.now()
    if output.as_json:
        for each in found:
            output.object(each)
    elif not found:
        output.say("no lock is held")
    else:
        rows = [
            (
                shortened(f"{each.scope}/{each.lock}", 64),
                _holder(each),
                each.fencing_number,
                age(each.since, max(now, each.since)).removesuffix(" ago"),
            )
            for each in found
        ]
        output.table(("lock", "holder", "number>", "for>"), rows)


def _holder(each: LockShown) -> str:
    return shortened(each.holder, 64) if each.is_alive else f"{shortened(each.holder, 64)} (gone)"


@command(LOCKS, "show")
async def show(cli: Cli, *, scope: _Scope, lock: _Lock) -> None:
    """Show one lock: whether it is held, by which process, since when, and its newest fencing number."""
    output = cli.output
    async with cli.ledger() as ledger:
        found, now = await lock_state(ledger, scope, lock), ledger.clock.now()
    if output.as_json:
        output.object(found)
        return
    output.say(f"lock {found.scope}/{found.lock}", style="bold")
    since = None if found.since is None else moment(found.since, max(now, found.since))
    output.facts(
        [
            ("state", "held" if found.held else "free"),
            ("holder", shortened(found.holder, 100) if found.held else None),
            ("process", None if not found.held else "lives" if found.is_alive else _GONE),
            ("taken" if found.held else "given back", since),
            ("number", f"{found.fencing_number:,}" if found.fencing_number else "nobody ever took it"),
        ]
    )
