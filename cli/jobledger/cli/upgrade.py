"""`jobledger upgrade ...`: which process runs which release, and the end of an upgrade."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.admin.upgrades import Upgrade, finish_upgrade, look_at_upgrade
from jobledger.cli.command import Cli, command
from jobledger.cli.groups import UPGRADE


@command(UPGRADE, "show")
async def show(cli: Cli) -> None:
    """Show the ledger's form, and of each worker and holder of a lock which release it is and what it reads.

    Projectors, gateways, exporters and subscribers hold no lease: look at their versions where they run.
    """
    async with cli.ledger() as ledger:
        found = await look_at_upgrade(ledger)
    if cli.output.as_json:
        cli.output.object(found)
        return
    cli.output.say(f"the ledger has form {found.form}; jobledger {found.version} reads up to {found.newest}")
    rows = [
        (each.process, each.kind, each.version or "?", each.reads, each.release) for each in found.processes
    ]
    if rows:
        cli.output.table(("process", "kind", "version", "reads>", "release"), rows)
    cli.output.say(_next_step(found))


def _next_step(found: Upgrade) -> str:
    if found.form > found.newest:
        return f"this program is too old for the ledger: install a jobledger that reads form {found.form}"
    if found.form == found.newest:
        return "nothing is left to do"
    if found.behind:
        count = f"{len(found.behind)} of {len(found.processes)}"
        return f"{count} must be brought to {found.version} or end before `jobledger upgrade finish`"
    return (
        "every process here reads the newer form: when projectors, gateways, exporters and subscribers do too, and you "
        "will not go back, run `jobledger upgrade finish`"
    )


@command(UPGRADE, "finish")
async def finish(
    cli: Cli,
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = "",
    force: Annotated[
        bool,
        typer.Option("--force", metavar="", help="Also while a living process reads less: it stops working."),
    ] = False,
) -> None:
    """Let events of the newest form be appended. Earlier releases stop reading there: nobody can go back to them.

    Refused while a worker or a holder of a lock cannot read that form.
    """
    async with cli.ledger() as ledger:
        found = await finish_upgrade(ledger, reason=reason, force=force)
    if cli.output.as_json:
        cli.output.object(found)
    elif found.before == found.form:
        cli.output.say(f"the ledger has form {found.form} already")
    else:
        cli.output.say(f"the ledger has form {found.form} now (before: {found.before})", style="bold green")
