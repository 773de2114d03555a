"""`jobledger schedules prune`: remove schedules that code declared and that no running worker's code has."""

from __future__ import annotations

from jobledger.admin.schedules import to_prune
from jobledger.cli.bulk import Plan, Why, ask
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import SCHEDULES
from jobledger.cli.schedules import options
from jobledger.cli.session import operator


@command(SCHEDULES, "prune", takes=ROWS)
async def prune(cli: Cli, *, reason: Why = "", plan: Plan = False, yes: options.Yes = False) -> None:
    """Remove schedules that code declared and that no running worker's code has; none while no worker runs."""
    output = cli.output
    async with cli.ledger() as ledger:
        found = [row.name for row in await to_prune(cli.rows(ledger))]
        if found and not (plan or yes):
            await ask(output, f"remove {', '.join(found)}?")
        for name in () if plan else found:
            await ledger.schedules.remove(name, reason=reason, by=operator())
    if output.as_json:
        for name in found:
            output.object({"name": name, "result": "planned" if plan else "done"})
    elif not found:
        output.say(
            "nothing to remove: each schedule that code declared is in a running worker's code, no worker runs, or one "
            "does not say what its code has"
        )
    else:
        done = "would be removed; nothing was changed" if plan else "removed"
        output.say(f"{', '.join(found)}: {done}")
