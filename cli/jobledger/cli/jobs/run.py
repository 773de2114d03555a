"""`jobledger jobs run`: run one attempt of a job here."""

from __future__ import annotations

from collections.abc import Awaitable

from jobledger.admin import acts
from jobledger.admin.views import job_details
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import JobNotCompletedError
from jobledger.cli.events.lines import show_event
from jobledger.cli.groups import JOBS
from jobledger.cli.one_job import JobId
from jobledger.cli.session import load_tasks, operator
from jobledger.ledger import JobState, TaskRegistry
from jobledger.ledger.model.state_words import state_words
from jobledger.workers.process import tune_collector


@command(JOBS, "run", takes=ROWS)
def run_now(
    cli: Cli, *, job_id: JobId, modules: options.App = None, queue: options.Queue = None
) -> Awaitable[None]:
    """Run one attempt of a waiting job in this process, past its queue; needs its task's module (--app)."""
    return _run(cli, load_tasks(modules), job_id, queue)


async def _run(cli: Cli, tasks: TaskRegistry, job_id: str, queue: str | None) -> None:
    output = cli.output
    tune_collector()
    async with cli.ledger() as ledger:
        ran = await acts.run(cli.rows(ledger), tasks, job_id, queue, by=operator())
        if output.as_json:
            output.object(await job_details(ledger, ran.job, ran.history))
        else:
            for stored in ran.new:
                show_event(output, stored)
    job = ran.job
    if job.state is not JobState.COMPLETED:
        ended = state_words(job.state.value)
        raise JobNotCompletedError(
            f"job {job.id} is {ended} after the attempt (`jobledger jobs show {job.id} --why`)"
        )
