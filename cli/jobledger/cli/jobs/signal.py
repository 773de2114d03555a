"""`jobledger jobs signal`: send a run a signal."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.admin import run_acts
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import JOBS
from jobledger.cli.one_job import JobId, status_of
from jobledger.cli.session import operator
from jobledger.ledger import JobState
from jobledger.ledger.model.state_words import state_words

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.")]
_Value = Annotated[
    str, typer.Option("--value", metavar="JSON", help="What it says, as the run's code reads it.")
]
_SignalId = Annotated[
    str,
    typer.Option("--id", metavar="WORD", help="The same word twice is the same signal: it counts once."),
]


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
    elif job.state is JobState.WAITING:
        became = f"it waits for more: `jobledger jobs show {job.id} --why`"
    output.say(f"run {job.id} was sent signal {name}; {became}")
    if told.awaits and not is_awaited:
        output.note(
            f"the run waits for {' and '.join(told.awaits)} now (`jobledger jobs show {job.id} --why`)"
        )
