"""Acts on many jobs: planned first, then done by a job of the ledger's own, whose page shows its progress."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import anyio.to_thread
import msgspec

from jobledger.admin.bulk import ActResult, perform
from jobledger.admin.choice import ChosenJob, chosen_until
from jobledger.gateway.acts.bulk_input import JOBS_MAX, PERMISSIONS, ToDo, act_of
from jobledger.gateway.pages.page import Viewer
from jobledger.gateway.pages.shell import PageFacts, shell_of
from jobledger.gateway.pages.views.jobs import Query as JobsQuery
from jobledger.gateway.pages.views.jobs import filter_of
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.projections import search_text

Verb = Literal["requeue", "discard", "retry", "cancel"]
#: Outcomes that a plan names; all jobs are counted.
_SAMPLE: Final = 100
_CHOSEN_MAX: Final = 500

Name = Annotated[str, msgspec.Meta(max_length=600)]


class Query(JobsQuery, frozen=True, kw_only=True):
    """The act and its jobs: the chosen ones, else all that match the filter."""

    verb: Verb = "requeue"
    what: Literal["chosen", "filter"] = "filter"
    job: Annotated[tuple[Name, ...], msgspec.Meta(max_length=_CHOSEN_MAX)] = ()  #: `<queue>/<id>`
    before: int | None = None  #: with a filter, jobs that changed after this event are left out
    per_minute: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0  #: jobs a minute; 0: as fast as possible

    def said(self) -> list[tuple[str, str]]:
        """Return the fields as those of a form, without the last field."""
        jobs = [("job", each) for each in self.job] if self.what == "chosen" else []
        return [("verb", self.verb), ("what", self.what), *jobs, *self.asked()]


class Plan(PageFacts, frozen=True, kw_only=True):
    """The page."""

    query: Query
    said: list[tuple[str, str]]
    asked: list[tuple[str, str]]
    before: int
    count: int  #: number of jobs
    results: list[ActResult]  #: results for the first jobs
    planned: int  #: how many of the first jobs the act would be done to


async def plan(looked: Viewer, *, query: Query) -> Plan:
    """Return what an act would do now, and change nothing. Raises: ProblemError."""
    permission = PERMISSIONS[query.verb]
    looked.principal.require(permission)
    if query.as_of() is not None:
        raise ProblemError("ACTS_ON_PAST", "the past cannot be changed: go back to now")
    async with looked.gateway.projection.opened() as view:
        before = view.position().sequence
        if query.what == "filter" and query.text:  # `2h` and words must mean the same when the plan is done
            query = query.with_text(search_text(filter_of(query, looked, view)))
    chosen = await chosen_of(looked, query, before)
    act = act_of(ToDo(act=query.verb), looked.principal.name)
    results = await perform(looked.gateway.rows, act, chosen[:_SAMPLE], plan=True)
    shell = await shell_of(looked)
    return Plan(
        shell=shell,
        query=query,
        said=query.said(),
        asked=query.asked(),
        before=before,
        count=len(chosen),
        results=results,
        planned=sum(each.result == "planned" for each in results),
    )


async def chosen_of(looked: Viewer, query: Query, before: int) -> list[ChosenJob]:
    """Return the chosen jobs that the viewer may act on, unchanged since `before`. Raises: ProblemError."""
    permission = PERMISSIONS[query.verb]
    if query.what == "chosen":
        if not query.job:
            raise ProblemError("BAD_REQUEST", "no job was chosen: tick some rows of the list first")
        return [await _named(looked, permission, each) for each in query.job]
    if not query.asked():
        raise ProblemError(
            "BAD_REQUEST", "this would be about every job: choose by a filter, or tick some rows"
        )
    async with looked.gateway.projection.opened() as view:
        found = filter_of(query, looked, view)
        if not found.states:
            found = msgspec.structs.replace(found, states=act_of(ToDo(act=query.verb), "").states)
        jobs = await anyio.to_thread.run_sync(lambda: chosen_until(view, found, before, limit=JOBS_MAX + 1))
    if len(jobs) > JOBS_MAX:
        raise ProblemError(
            "BAD_REQUEST", f"more than {JOBS_MAX:,} jobs match: narrow the filter, and act in turns"
        )
    return jobs


async def _named(looked: Viewer, permission: Permission, text: str) -> ChosenJob:
    """Return a job that a form names as `<queue>/<id>`. Raises: ProblemError, InvalidTokenError."""
    queue, _, job_id = text.partition("/")
    ref = JobRef(queue=check_token("queue", queue), job_id=check_token("job id", job_id))
    looked.principal.require(permission, queue)
    job = (await load(looked.gateway.ledger.log, ref)).job
    task = "" if job is None else job.task
    looked.principal.require_about(permission, queue, task, JobNotFoundError(job_id))
    return ChosenJob(ref=ref, task=task, about="" if job is None else job.state.value.replace("_", " "))
