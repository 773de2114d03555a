"""Acts on many jobs: planned first, each job with its own outcome; what was planned is what is done."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from jobledger.admin.bulk import (
    Act,
    ActResult,
    cancel_act,
    discard_act,
    perform,
    requeue_act,
    retry_act,
)
from jobledger.admin.choice import Chosen
from jobledger.gateway.access.permissions import Permission
from jobledger.gateway.pages.page import Looked
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.gateway.pages.views.jobs import Query as JobsQuery
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.dead_letters import Requeuing
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.subjects import JobRef, check_token

Verb = Literal["requeue", "discard", "retry", "cancel"]
NEEDS: Final[dict[str, Permission]] = {
    "requeue": "review",
    "discard": "review",
    "retry": "cancel",
    "cancel": "cancel",
}
#: As many jobs as one plan takes: the page that does it answers within seconds.
JOBS_MAX: Final = 500

Name = Annotated[str, msgspec.Meta(max_length=600)]


class Query(JobsQuery, frozen=True, kw_only=True):
    """What to do to which jobs: those that were chosen, else all that fit the filters."""

    verb: Verb = "requeue"
    what: Literal["chosen", "filter"] = "filter"
    job: tuple[Name, ...] = ()  #: `<queue>/<id>`


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The page, before and after."""

    shell: Shell
    verb: Verb
    results: list[ActResult]
    fitting: int  #: results that can be done, or were
    more: int  #: jobs that fit beyond these
    asked: list[tuple[str, str]]
    done: bool
    by: str = ""  #: who did it
    reason: str = ""


def act_of(verb: str, reason: str, by: str) -> Act:
    """Return an act in words that somebody chose from a list. Raises: ProblemError."""
    match verb:
        case "requeue":
            return requeue_act(lambda _chosen: Requeuing(reason=reason), by=by)
        case "discard":
            return discard_act(reason, by=by)
        case "retry":
            return retry_act(reason, by=by)
        case "cancel":
            return cancel_act(reason, by=by)
        case _:
            raise ProblemError("BAD_REQUEST", f"nobody can {verb[:40]!r} many jobs")


async def plan(looked: Looked, *, query: Query) -> Plan:
    """Return what an act would do now; nothing is changed. Raises: ProblemError."""
    looked.principal.require(NEEDS[query.verb])
    if query.as_of() is not None:
        raise ProblemError("ACTS_ON_PAST", "the past cannot be changed: go back to now")
    act = act_of(query.verb, "", looked.principal.name)
    chosen, more = await _chosen(looked, query, act)
    results = await perform(looked.gateway.rows, act, chosen, plan=True)
    async with looked.gateway.projection.opened() as view:
        shell = await surround(looked, view, None, fleet=False)
    return told(shell, query.verb, results, more=more, asked=query.asked())


def told(  # noqa: PLR0917 - what is known of one act
    shell: Shell,
    verb: Verb,
    results: list[ActResult],
    more: int = 0,
    asked: list[tuple[str, str]] | None = None,
    by: str = "",
    reason: str = "",
) -> Plan:
    """Return the page of some outcomes; `by`: who did it, "" where it is only planned."""
    wanted = "done" if by else "planned"
    return Plan(
        shell=shell,
        verb=verb,
        results=results,
        fitting=sum(each.result == wanted for each in results),
        more=more,
        asked=asked or [],
        done=bool(by),
        by=by,
        reason=reason,
    )


async def _chosen(looked: Looked, query: Query, act: Act) -> tuple[list[Chosen], int]:
    """Return the jobs that somebody means and may act on, and how many fit beyond."""
    if query.what == "chosen":
        if not query.job:
            raise ProblemError("BAD_REQUEST", "no job was chosen: tick some rows of the list first")
        chosen = [Chosen(ref=ref_of(each), task="", about="chosen") for each in query.job[:JOBS_MAX]]
        await check_scope(looked, NEEDS[query.verb], [each.ref for each in chosen])
        return chosen, 0
    if not query.asked():
        raise ProblemError(
            "BAD_REQUEST", "this would be about every job: choose by a filter, or tick some rows"
        )
    found = query.chosen(looked.principal)
    if not found.states:
        found = msgspec.structs.replace(found, states=act.states)
    async with looked.gateway.projection.opened() as view:
        rows = view.store.chosen_jobs(found, JOBS_MAX)
        left = sum(view.store.job_counts(found).by_state[state] for state in found.states) - len(rows)
    return [
        Chosen(
            ref=JobRef(queue=row.queue, job_id=row.job_id), task=row.task, about=row.status.replace("_", " ")
        )
        for row in rows
        if looked.principal.may(NEEDS[query.verb], row.queue, row.task)
    ], max(0, left)


async def check_scope(looked: Looked, permission: Permission, refs: list[JobRef]) -> None:
    """Refuse all jobs where one is out of the scope of who asks: no list shows that one. Raises: ProblemError."""
    if looked.principal.is_everywhere:
        return
    for ref in refs:
        job = (await load(looked.gateway.ledger.log, ref)).job
        looked.principal.require(permission, ref.queue, None if job is None else job.task)


def ref_of(text: str) -> JobRef:
    """Return the job that a form names as `<queue>/<id>`. Raises: InvalidTokenError."""
    queue, _, job_id = text.partition("/")
    return JobRef(queue=check_token("queue", queue), job_id=check_token("job id", job_id))
