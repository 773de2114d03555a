"""`jobledger timers`: the number of set timers and the time of the next; setting all of them again from the ledger."""

from __future__ import annotations

from datetime import datetime

from jobledger.cli.command import Cli, command
from jobledger.cli.groups import TIMERS
from jobledger.cli.text import moment
from jobledger.ledger.timer_upkeep import TimersStatus, rebuild_timers, timers_status


@command(TIMERS, "status")
async def status(cli: Cli) -> None:
    """Show how many timers are set, when the next is due, and how many the workers have yet to set."""
    async with cli.ledger() as ledger:
        found = await timers_status(ledger)
        now = ledger.clock.now()
    if cli.output.as_json:
        cli.output.object(found)
        return
    unset = "no worker has set any" if found.unset_events is None else f"{found.unset_events:,} events"
    cli.output.facts(
        [
            ("set", f"{found.timers_set:,}"),
            ("next due", _next_due(found, now)),
            ("fired", f"{found.fired:,} to be dispatched"),
            ("to be set", unset),
        ]
    )


def _next_due(found: TimersStatus, now: datetime) -> str | None:
    if found.next_due_at is None:
        return None
    about = "" if found.next_is_exact else ", among those looked at"
    return moment(found.next_due_at, now) + about


@command(TIMERS, "rebuild")
async def rebuild(cli: Cli) -> None:
    """Set the timer of every waiting job again, from the ledger; safe while workers run."""
    async with cli.ledger() as ledger:
        with cli.output.progress("setting timers") as progress:
            done = await rebuild_timers(ledger, progress=progress)
    if cli.output.as_json:
        cli.output.object({"waits": done.waits, "set": done.set})
    else:
        cli.output.say(
            f"{done.set:,} timers are set; of the {done.waits:,} waits in the ledger the others have ended"
        )
