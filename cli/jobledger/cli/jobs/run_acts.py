"""`jobledger jobs signal`, `pause`, `resume` and `note`: what a person tells a run, or any job, or says of it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from jobledger.admin import run_acts
from jobledger.cli import bulk, options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import JOBS
from jobledger.cli.one_job import JobId, status_of
from jobledger.cli.session import operator
from jobledger.cli.text import state_words
from jobledger.ledger import JobState

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.")]
_Value = Annotated[
    str, typer.Option("--value", metavar="JSON", help="What it says, as the run's code reads it.")
]
_SignalId = Annotated[
    str,
    typer.Option("--id", metavar="WORD", help="The same word twice is the same signal: it counts once."),
]
_GOES_ON: Final = (JobState.QUEUED, JobState.HELD)


@command(JOBS, "signal", takes=ROWS)
async def signal(
    cli: Cli,
    *,
    job_id: JobId,
    name: _Name,
    value: _Value = "null",
    signal_id: _SignalId = "",
    queue: options.Queue = None,
) -> None:
    """Send a run a signal; it is kept until the run waits for it."""
    async with cli.ledger() as ledger:
        told = await run_acts.signal(
            cli.rows(ledger), job_id, name, value.encode(), signal_id=signal_id, queue=queue, by=operator()
        )
    job, output = told.job, cli.output
    if output.as_json:
        output.object({**status_of(job), "signal": name, "signal_id": signal_id, "is_new": told.is_new})
        return
    if not told.is_new:
        output.say(f"run {job.id} was sent signal {signal_id!r} before: nothing was changed")
        return
    is_awaited = name in told.awaits
    became = f"it is {state_words(job.state.value)}"
    if not is_awaited:
        became = "it is kept until the run waits for that"
    elif told.refused:
        became = f"its wait refused that: {told.refused}; it waits on"
    elif job.state is JobState.PAUSED and not job.paused_by_operator:
        became = f"it waits for more: `jobledger jobs why {job.id}`"
    output.say(f"run {job.id} was sent signal {name}; {became}")
    if told.awaits and not is_awaited:
        output.note(f"the run waits for {' and '.join(told.awaits)} now (`jobledger jobs why {job.id}`)")


@command(JOBS, "pause", takes=ROWS)
async def pause(cli: Cli, *, job_id: JobId, reason: bulk.Why = "", queue: options.Queue = None) -> None:
    """Pause a job until it is resumed: a waiting one at once, a running one at its next step or checkpoint.

    A task that makes neither steps nor checkpoints and runs already goes on to its end.
    """
    async with cli.ledger() as ledger:
        job = await run_acts.pause(cli.rows(ledger), job_id, queue, reason=reason, by=operator())
    if cli.output.as_json:
        cli.output.object({**status_of(job), "pause_requested": job.pause_requested})
    elif job.state is JobState.PAUSED:
        cli.output.say(f"job {job.id} is paused; `jobledger jobs resume {job.id}` lets it go on")
    else:
        cli.output.say(
            f"job {job.id} runs on {job.attempts[-1].worker}, which was asked to pause it at its next step or "
            f"checkpoint; without any it goes on to its end: `jobledger jobs why {job.id}`"
        )


@command(JOBS, "resume", takes=ROWS)
async def resume(cli: Cli, *, job_id: JobId, reason: bulk.Why = "", queue: options.Queue = None) -> None:
    """Let a job go on that a person paused, and the children that were paused with it."""
    async with cli.ledger() as ledger:
        job = await run_acts.resume(cli.rows(ledger), job_id, queue, reason=reason, by=operator())
    if cli.output.as_json:
        cli.output.object(status_of(job))
    elif job.state in _GOES_ON:
        cli.output.say(f"job {job.id} is {state_words(job.state.value)} in {job.queue}")
    else:
        cli.output.say(f"job {job.id} waits as before it was paused: `jobledger jobs why {job.id}`")


@command(JOBS, "note", takes=ROWS)
async def note(
    cli: Cli,
    *,
    job_id: JobId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note, at most 4,000 characters.")],
    queue: options.Queue = None,
) -> None:
    """Keep a note about a job, in whatever state it is; it changes nothing, and stays with the job's events."""
    async with cli.ledger() as ledger:
        job = await run_acts.note(cli.rows(ledger), job_id, text, queue, by=operator())
    if cli.output.as_json:
        cli.output.object({**status_of(job), "last_sequence": job.last_sequence})
    else:
        cli.output.say(f"kept with job {job.id}; `jobledger jobs show {job.id}` shows it")
