"""`jobledger schedules pause`, `resume`, `trigger`, `backfill`, `reset` and `remove`: acts on one schedule."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.admin.objects.schedules import schedule_now
from jobledger.cli.bulk import Why
from jobledger.cli.command import Cli, command
from jobledger.cli.groups import SCHEDULES
from jobledger.cli.schedules import options
from jobledger.cli.schedules.words import next_words
from jobledger.cli.session import operator
from jobledger.cli.times import parse_time
from jobledger.ledger.model.schedules.events import Schedule

_From = Annotated[str, typer.Option("--from", metavar="TIME", help="First moment of the range (UTC).")]
_To = Annotated[str, typer.Option("--to", metavar="TIME", help="Last moment of the range (UTC).")]


@command(SCHEDULES, "pause")
async def pause(cli: Cli, *, name: options.Name, reason: Why = "") -> None:
    """Stop the ticks until they are resumed, also across deploys; jobs that exist go on."""
    async with cli.ledger() as ledger:
        schedule = await ledger.schedules.pause(name, reason=reason, by=operator())
    _tell(cli, name, schedule, f"schedule {name} is paused: `jobledger schedules resume {name}`")


@command(SCHEDULES, "resume")
async def resume(cli: Cli, *, name: options.Name, reason: Why = "") -> None:
    """Let a paused schedule tick again, from now on: what it did not tick meanwhile is not caught up."""
    async with cli.ledger() as ledger:
        schedule = await ledger.schedules.resume(name, reason=reason, by=operator())
        now = ledger.clock.now()
    _tell(cli, name, schedule, f"schedule {name} is resumed; {next_words(schedule.next_at, now)}")


@command(SCHEDULES, "reset")
async def reset(cli: Cli, *, name: options.Name) -> None:
    """Let the code's declaration count again, after an operator's, or one of a newer version."""
    async with cli.ledger() as ledger:
        schedule = await ledger.schedules.reset(name, by=operator())
    _tell(cli, name, schedule, f"schedule {name} is as it was, until a worker whose code has it declares it")


@command(SCHEDULES, "remove")
async def remove(cli: Cli, *, name: options.Name, reason: Why = "") -> None:
    """End a schedule; its jobs stay. A worker whose code still has it declares it again when it starts."""
    async with cli.ledger() as ledger:
        schedule = await ledger.schedules.remove(name, reason=reason, by=operator())
    _tell(cli, name, schedule, f"schedule {name} is removed; its jobs stay as they are")


@command(SCHEDULES, "trigger")
async def trigger(cli: Cli, *, name: options.Name, reason: Why = "") -> None:
    """Make a job of the schedule now, beside its ticks, also while it is paused; each call makes one."""
    async with cli.ledger() as ledger:
        job = await ledger.schedules.trigger(name, reason=reason, by=operator())
    # The same line for people and programs, as of `enqueue`: it is what gets pasted into the next command.
    cli.output.object({"id": job.job_id, "queue": job.queue})


@command(SCHEDULES, "backfill")
async def backfill(
    cli: Cli, *, name: options.Name, from_text: _From, to_text: _To = "now", reason: Why = ""
) -> None:
    """Make the jobs of past ticks, at most 1,000; one that exists stays as it is, so that a repeat does no harm."""
    from_at, to_at = parse_time("--from", from_text), parse_time("--to", to_text)
    async with cli.ledger() as ledger:
        jobs = await ledger.schedules.backfill(name, from_at, to_at, reason=reason, by=operator())
    if cli.output.as_json:
        for job in jobs:
            cli.output.object({"id": job.job_id, "queue": job.queue})
    else:
        count = "1 tick has its job" if len(jobs) == 1 else f"{len(jobs):,} ticks have their jobs"
        cli.output.say(f"{count}: {jobs[0].job_id}" + (f" to {jobs[-1].job_id}" if len(jobs) > 1 else ""))


def _tell(cli: Cli, name: str, schedule: Schedule, sentence: str) -> None:
    if cli.output.as_json:
        cli.output.object(schedule_now(name, schedule))
    else:
        cli.output.say(sentence)
