"""`jobledger timers`: how many are set and when the next is due; set them all again from the ledger."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.output import Output
from jobledger.cli.session import Target, opened, run
from jobledger.cli.text import moment
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.timer_upkeep import TimersStatus, rebuild_timers, timers_status

app = typer.Typer(help="See and rebuild the timers of jobs that wait for a moment.", no_args_is_help=True)


@app.command("status")
def status(
    *,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Show how many timers are set, when the next is due, and how far the workers are behind."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _status(output, target))


async def _status(output: Output, target: Target) -> None:
    async with opened(target) as ledger:
        found = await timers_status(ledger)
        now = ledger.clock.now()
    if output.as_json:
        body: dict[str, Any] = msgspec.structs.asdict(found)
        output.object(body)
        return
    unset = "no worker has set any" if found.unset_events is None else f"{found.unset_events:,} events"
    output.facts(
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


@app.command("rebuild")
def rebuild(
    *,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Set the timer of every waiting job again, from the ledger; safe while workers run."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _rebuild(output, target))


async def _rebuild(output: Output, target: Target) -> None:
    async with opened(target) as ledger:
        with output.progress("setting timers") as progress:
            done = await rebuild_timers(ledger, progress=progress)
    if output.as_json:
        output.object({"waits": done.waits, "set": done.set})
    else:
        output.say(
            f"{done.set:,} timers are set; {done.waits:,} waits are in the ledger, the others are over"
        )
