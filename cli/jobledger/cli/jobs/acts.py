"""`jobledger jobs run` and `why`: run a job here, and explain a job's wait."""

from __future__ import annotations

from collections.abc import Awaitable

from jobledger.admin import acts
from jobledger.admin.objects.jobs import why_shown
from jobledger.admin.views import job_details
from jobledger.audit.why import Why
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import JobNotCompletedError
from jobledger.cli.events.lines import show_event
from jobledger.cli.groups import JOBS
from jobledger.cli.one_job import JobId
from jobledger.cli.past import asked
from jobledger.cli.session import load_tasks, operator
from jobledger.cli.text import colored, moment
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
            f"job {job.id} is {ended} after the attempt (`jobledger jobs why {job.id}`)"
        )


@command(JOBS, "why", takes=ROWS)
async def why(
    cli: Cli,
    *,
    job_id: JobId,
    queue: options.Queue = None,
    at: options.At = None,
    sequence: options.Sequence = None,
) -> None:
    """Say what a job waits for, since when, and which event says so."""
    past, output = asked(at, sequence), cli.output
    async with cli.ledger() as ledger:
        job, found, facts, proof = await acts.why(cli.rows(ledger), job_id, queue, past=past)
    if output.as_json:
        output.object(why_shown(job, found))
        return
    output.say(f"job {job.id}", style="bold")
    output.facts(
        [
            ("status", colored(found.status)),
            ("why", found.sentence),
            ("since", moment(found.since, facts.now)),
            ("unique", found.unique or None),
            *(("try", hint) for hint in _hints(found)),
        ]
    )
    output.say()
    output.say("the event that says so" if len(proof) < 2 else "the events that say so", style="bold")  # noqa: PLR2004
    for stored in proof:
        show_event(output, stored)


def _hints(found: Why) -> list[str]:
    """Return commands for a person: the best first, then one for each other wait of a run."""
    hints = (found.hint, *(wait.hint for wait in found.waits)) if found.hint else ()
    return list(dict.fromkeys(hints))
