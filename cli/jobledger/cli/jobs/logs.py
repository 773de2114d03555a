"""`jobledger jobs logs`: what the attempts of a job logged, as far as it is kept."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer

from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import JOBS
from jobledger.cli.one_job import JobId, found_history
from jobledger.cli.output import Output
from jobledger.ledger import JobHandle, JobRef
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.nats.attempt_logs import JobLogs, LogLine

_COMMAND: Final = "jobledger jobs logs"
_NOTHING: Final = (
    "nothing that it logged is kept: a worker keeps INFO of `context.logger` and of loggers named as the application's "
    "modules, and warnings of all others"
)
_LOOK_EVERY_S: Final = 0.5
_LOOKS_AFTER_END: Final = 3  #: the worker stores the last lines a moment after the job has ended

_Attempt = Annotated[
    int | None, typer.Option("--attempt", min=1, metavar="N", help="Only of this attempt, from 1.")
]
_Step = Annotated[
    str | None,
    typer.Option("--step", metavar="NAME", help="Only of this step of a run, in all of its tries."),
]
_Follow = Annotated[
    bool, typer.Option("--follow", "-f", metavar="", help="Continue with new lines until the job has ended.")
]


@command(JOBS, "logs", takes=ROWS)
async def logs(
    cli: Cli,
    *,
    job_id: JobId,
    queue: options.Queue = None,
    attempt: _Attempt = None,
    step: _Step = None,
    follow: _Follow = False,
) -> None:
    """Show what the attempts of a job logged: the newest 64 KiB of each, kept for 7 days."""
    async with found_history(cli, job_id, queue, None, _COMMAND) as found:
        event = found.history[-1].event
        job: JobHandle[Any] = found.ledger.handle_of(JobRef(queue=event.queue, job_id=event.job))
        kept = await job.logs(attempt=attempt, step=step)
        seen = _show(cli.output, kept, {})
        if follow:
            await _follow(cli.output, job, seen, attempt, step)
        elif not kept.items:
            cli.output.say(_NOTHING)


async def _follow(
    output: Output, job: JobHandle[Any], seen: dict[int, int], attempt: int | None, step: str | None
) -> None:
    looks = 0
    while looks < _LOOKS_AFTER_END:
        await asyncio.sleep(_LOOK_EVERY_S)
        looks += (await job.snapshot()).is_final
        seen = _show(output, await job.logs(attempt=attempt, step=step), seen)


def _show(output: Output, kept: JobLogs, seen: dict[int, int]) -> dict[int, int]:
    """Show the lines after those already shown; return attempt -> number of its newest line."""
    newest = dict(seen)
    for line in kept.items:
        before = newest.get(line.attempt, 0)
        if line.number <= before:
            continue
        if line.attempt not in seen and before == 0 and line.number > 1 and line.attempt in kept.cut:
            output.say(
                f"{kept.cut[line.attempt]:,} older lines of attempt {line.attempt} are not kept", style="dim"
            )
        newest[line.attempt] = line.number
        _tell(output, line)
    return newest


def _tell(output: Output, line: LogLine) -> None:
    if output.as_json:
        output.object(line)
        return
    step = f" step={line.step}" if line.step else ""
    output.say(
        f"{shown_time(line.at)} {line.level.upper()} attempt={line.attempt}{step} {line.logger}: {line.text}"
    )
