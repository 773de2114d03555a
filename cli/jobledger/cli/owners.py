"""`jobledger erase`: destroy the key of an owner, and wait until that is done."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

import anyio
import typer

from jobledger.admin.erasure import SETTLE_S, Erasure
from jobledger.admin.verbs.kit import Place, operator_principal
from jobledger.admin.verbs.owners import EraseOwner
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import TOP
from jobledger.cli.session import operator, stoppable
from jobledger.cli.times import seconds
from jobledger.cli.verbs import tell_answer
from jobledger.ledger.model.owner import GRACE_S, GRACE_S_MAX
from jobledger.ledger.model.times import shown_time

_Owner = Annotated[str, typer.Argument(metavar="OWNER", help="Whose data: kind:id, as person:17.")]
_Request = Annotated[
    str,
    typer.Option(
        "--request", metavar="TEXT", help="What asked for it: the number of a letter or of a ticket."
    ),
]
_Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="SPAN",
        parser=seconds(maximum=GRACE_S_MAX),
        help="Time for what cancelled jobs undo, which needs their inputs. (default: 5m)",
        show_default=False,
    ),
]
_Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger with who acted.")
]
_Plan = Annotated[
    bool, typer.Option("--plan", metavar="", help="Show what would happen, and change nothing.")
]
_NoWait = Annotated[
    bool, typer.Option("--no-wait", metavar="", help="Do what can be done now, and say when to go on.")
]
#: How much later than it said the server's clock may have a step come due.
_LATE: Final = timedelta(seconds=60)


@command(TOP, "erase", takes=ROWS)
async def erase(
    cli: Cli,
    *,
    owner: _Owner,
    request: _Request = "",
    grace: _Grace = GRACE_S,
    reason: _Reason = "",
    plan: _Plan = False,
    no_wait: _NoWait = False,
) -> None:
    """Destroy the key of an owner, so that nobody can read what was sealed under it, wherever a copy is.

    First nothing new of the owner begins, what waits or runs is cancelled, and dead letters are discarded. The same
    command goes on with an erasure where another one was interrupted.
    """
    wish = EraseOwner(owner=owner, request=request, grace_s=grace, reason=reason, plan=plan)
    async with stoppable(), cli.ledger() as ledger:
        place = Place(ledger, cli.rows(ledger), operator_principal(operator()))
        found = await wish.perform(place)
        ends_at = ledger.clock.now() + timedelta(seconds=GRACE_S_MAX + SETTLE_S) + _LATE
        while found.next_at is not None and not no_wait:
            assert ledger.clock.now() < ends_at, "each step has its time"
            _tell_of_wait(cli, found)
            await anyio.sleep(max(0.1, (found.next_at - ledger.clock.now()).total_seconds()))
            found = await wish.perform(place)
        now = ledger.clock.now()
    tell_answer(cli.output, wish, found, now)


def _tell_of_wait(cli: Cli, found: Erasure) -> None:
    assert found.next_at is not None, "an erasure that is not done goes on at some time"
    if found.destroyed_at is None:
        what = f"{found.living:,} jobs have not ended; key {found.key} is destroyed"
    else:
        what = f"key {found.key} is destroyed; nobody has it in memory any more"
    cli.output.note(
        f"{what} at {shown_time(found.next_at)}; if this is interrupted, run the same command again"
    )
