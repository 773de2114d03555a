"""`jobledger schedules next`: when the next ticks are due, worked out from the schedule alone."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.cli.command import Cli, command
from jobledger.cli.groups import SCHEDULES
from jobledger.cli.schedules import options
from jobledger.cli.text import age
from jobledger.ledger.model.schedules.events import Schedule
from jobledger.ledger.model.schedules.ticks import zone_of
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.schedules.verbs import next_due

_Count = Annotated[int, typer.Option("--count", min=1, max=1_000, metavar="N", help="How many.")]


@command(SCHEDULES, "next")
async def next_command(cli: Cli, *, name: options.Name, count: _Count = 1) -> None:
    """Say when the next ticks are due, also in the schedule's own time zone; none while it is paused."""
    async with cli.ledger() as ledger:
        schedule = await ledger.schedules.get(name)
        now = ledger.clock.now()
    found = next_due(name, schedule, count)
    if cli.output.as_json:
        for at in found:
            cli.output.object({"at": at})
        return
    if not found:
        cli.output.say(f"schedule {name} {_why_none(schedule)}: no run is to come")
    zone = schedule.definition.spec.timezone
    for at in found:
        there = "" if zone == "UTC" else f"   {at.astimezone(zone_of(zone)):%Y-%m-%d %H:%M:%S%z} {zone}"
        cli.output.say(f"{shown_time(at)}{there}   {age(at, now)}")


def _why_none(schedule: Schedule) -> str:
    if schedule.paused:
        return "is paused"
    return "makes jobs on demand only" if schedule.definition.spec.on_demand else "has ended"
