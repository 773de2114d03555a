"""The plan of a rerun: which steps would be copied and which executed, before anything is done."""

from __future__ import annotations

from typing import Annotated

import msgspec

from jobledger.admin import run_acts
from jobledger.admin.views import job_details
from jobledger.gateway.pages.page import Viewer, When, moment_of
from jobledger.gateway.pages.shell import PageFacts, shell_of
from jobledger.gateway.pages.views.job import digest_of, editable
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import STEP_KEY_MAX
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.events import RerunOf
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef, check_token, is_own_queue
from jobledger.ledger.reruns.groups import CopiedGroup
from jobledger.ledger.reruns.plans import RerunRequest


class Query(When, frozen=True, kw_only=True):
    """The first step to execute, and the moment of the run to begin from."""

    step: Annotated[str, msgspec.Meta(max_length=STEP_KEY_MAX)] = ""  #: "": copy all completed steps
    as_it_was: Annotated[str, msgspec.Meta(max_length=40)] = ""  #: a past moment; "": the present


def chosen(step: str) -> RerunRequest:
    """Return the choice of steps for a rerun: those before a step, or for "" all completed ones."""
    return {"from_step": step or None, "failed": not step}


class RerunPage(PageFacts, frozen=True, kw_only=True):
    """The page."""

    query: Query
    job: Job
    rerun_of: RerunOf
    copied: tuple[Step, ...]
    groups: tuple[CopiedGroup, ...]
    again: tuple[Step, ...]
    editable: str | None  #: its input as text of a form; None: hidden, deleted, or too long
    editable_hash: str
    hidden: bool
    planned: str  #: id of this plan: sent twice, it is done once


async def rerun(looked: Viewer, queue: str, id: str, *, query: Query) -> RerunPage:  # noqa: A002 - as in the address
    """Return what a rerun would do now, and change nothing. Raises: ProblemError, and as `run_acts.rerun_planned`."""
    gateway, principal = looked.gateway, looked.principal
    principal.require("review", check_token("queue", queue))
    ref = JobRef(queue=queue, job_id=check_token("job id", id))
    known = (await load(gateway.ledger.log, ref)).job
    if known is not None:  # before anything is said of its steps
        principal.require_about("review", queue, known.task, JobNotFoundError(id))
    at = moment_of("as_it_was", query.as_it_was) if query.as_it_was else None
    how: RerunRequest = {**chosen(query.step), "at": at}
    plan = await run_acts.rerun_planned(gateway.rows, id, queue, **how)
    job = plan.source
    hidden = not principal.may("payloads", job.queue, job.task)
    history = await gateway.ledger.handle_of(ref).history()
    may_change = principal.may("queue", job.queue, job.task) and not (hidden or is_own_queue(job.queue))
    text = None if not may_change else editable(await job_details(gateway.ledger, job, history))
    shell = await shell_of(looked)
    return RerunPage(
        shell=shell,
        query=query,
        job=job,
        rerun_of=plan.rerun_of,
        copied=plan.copied,
        groups=plan.groups,
        again=plan.again,
        editable=text,
        editable_hash=digest_of(text),
        hidden=hidden,
        planned=shell.today.isoformat(),
    )
