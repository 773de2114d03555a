"""`jobledger jobs cancel`, `retry`, `run`, `why`: acts on one job, and what it waits for."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from jobledger.audit.why import explain, find_facts
from jobledger.cli import options
from jobledger.cli.errors import JobNotCompletedError
from jobledger.cli.events.events import show_event
from jobledger.cli.jobs.fork import fork
from jobledger.cli.jobs.view import job_object
from jobledger.cli.one_job import JobId, OneJob, found_job, one_job
from jobledger.cli.session import load_tasks, operator, run
from jobledger.cli.text import colored, moment, state_words
from jobledger.ledger import Job, JobState, TaskRegistry
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.model.events import Carried
from jobledger.workers.process import tune_collector
from jobledger.workers.single import run_one


def add_to(app: typer.Typer) -> typer.Typer:
    """Add these commands to `jobledger jobs`."""
    for name, act in (("cancel", cancel), ("retry", retry), ("run", run_now), ("fork", fork), ("why", why)):
        app.command(name)(act)
    return app


Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")]


def cancel(
    *,
    job_id: JobId,
    reason: Reason = "",
    queue: options.Queue = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """End a job: a waiting one at once, a running one as soon as its worker hears of it."""
    which = one_job(
        job_id, queue=queue, projection=projection, url=url, environment=environment, as_json=as_json
    )
    run(lambda: _cancel(which, reason))


async def _cancel(which: OneJob, reason: str) -> None:
    output = which.output
    async with found_job(which) as (ledger, handle):
        job = await ledger.cancel(handle.ref, reason=reason, by=operator())
    if output.as_json:
        output.object({**_status(job), "cancel_requested": job.cancel_requested})
    elif job.state is JobState.CANCELLED:
        output.say(f"job {job.id} is cancelled")
    else:
        worker = job.attempts[-1].worker
        output.say(f"job {job.id} runs on {worker}, which is asked to end it: `jobledger jobs show {job.id}`")


def retry(
    *,
    job_id: JobId,
    reason: Reason = "",
    queue: options.Queue = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Queue a job that waits for its time at once; give a dead letter one more attempt."""
    which = one_job(
        job_id, queue=queue, projection=projection, url=url, environment=environment, as_json=as_json
    )
    run(lambda: _retry(which, reason))


async def _retry(which: OneJob, reason: str) -> None:
    output = which.output
    async with found_job(which) as (ledger, handle):
        job = await ledger.retry(handle.ref, reason=reason, by=operator())
    if output.as_json:
        output.object({**_status(job), "attempts_left": job.attempts_left})
    else:
        left = f"{job.attempts_left} attempt{'s' if job.attempts_left > 1 else ''}"
        output.say(f"job {job.id} is queued in {job.queue} with {left} left")


def run_now(
    *,
    job_id: JobId,
    modules: options.App = None,
    queue: options.Queue = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Run one attempt of a waiting job here and now, past its queue; needs the module with its task (--app)."""
    which = one_job(
        job_id, queue=queue, projection=projection, url=url, environment=environment, as_json=as_json
    )
    tasks = load_tasks(modules)
    run(lambda: _run(which, tasks))


async def _run(which: OneJob, tasks: TaskRegistry) -> None:
    output = which.output
    tune_collector()
    async with found_job(which) as (ledger, handle):
        seen = (await handle.history())[-1].stream_sequence
        job = await run_one(ledger, tasks, handle.ref, by=operator())
        history = await handle.history()
        if output.as_json:
            output.object(await job_object(ledger, job, history))
        else:
            for stored in history:
                if stored.stream_sequence > seen:
                    show_event(output, stored)
    if job.state is not JobState.COMPLETED:
        ended = state_words(job.state.value)
        raise JobNotCompletedError(f"job {job.id} is {ended} after it (`jobledger jobs why {job.id}`)")


def why(
    *,
    job_id: JobId,
    queue: options.Queue = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Say what a job waits for, since when, and the event that says so."""
    which = one_job(
        job_id, queue=queue, projection=projection, url=url, environment=environment, as_json=as_json
    )
    run(lambda: _why(which))


async def _why(which: OneJob) -> None:
    output = which.output
    async with found_job(which) as (ledger, handle):
        history = await handle.history()
        job = await handle.snapshot()
        facts = await find_facts(ledger, job)
    found = explain(job, facts)
    if output.as_json:
        output.object({"id": job.id, **msgspec.structs.asdict(found)})
        return
    output.say(f"job {job.id}", style="bold")
    output.facts(
        [
            ("status", colored(found.status)),
            ("why", found.sentence),
            ("since", moment(found.since, facts.now)),
            ("try", found.hint or None),
        ]
    )
    output.say()
    output.say("the event that says so", style="bold")
    says_so = [stored for stored in history if stored.stream_sequence == found.event_sequence]
    carried = [stored for stored in history if isinstance(stored.event, Carried)]
    for stored in says_so or carried[-1:]:  # that one stands for those that are in an archive
        show_event(output, stored)


def _status(job: Job) -> dict[str, str]:
    return {"id": job.id, "queue": job.queue, "status": job.state.value}
