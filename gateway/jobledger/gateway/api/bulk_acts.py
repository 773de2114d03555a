"""Acts on many jobs over HTTP: a request makes a plan; a second one sends its id, and a job of the ledger does it."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import anyio.to_thread
import msgspec

from jobledger.admin.bulk import perform
from jobledger.admin.choice import ChosenJob, chosen_until
from jobledger.admin.objects.acts import ActDone, act_done
from jobledger.gateway.acts.bulk_act import begin_act
from jobledger.gateway.acts.bulk_input import (
    JOBS_MAX,
    PERMISSIONS,
    QUEUE,
    TASK,
    Done,
    Job,
    ToDo,
    Verb,
    act_of,
    job_id_of,
)
from jobledger.gateway.api.lists import Which
from jobledger.gateway.api.pagination import looking
from jobledger.gateway.api.parameters import Look, Text, aware
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.job import Job as LedgerJob
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.projections import search_text

_GOOD_FOR: Final = timedelta(minutes=15)
_SAMPLE: Final = 20
_IDS_MAX: Final = 500


class JobNamed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The name of a job."""

    queue: str
    id: str


class ManyActs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An act to plan, or the id of a plan to do."""

    plan: str | None = None  #: id of a plan to do; nothing else is given then
    act: Verb | None = None
    filter: Which | None = None  #: the jobs to act on, as `GET /v1/jobs` lists them
    jobs: Annotated[tuple[JobNamed, ...], msgspec.Meta(max_length=_IDS_MAX)] = ()  #: or the names of the jobs
    reason: Text = ""  #: stored in the ledger with the actor
    run_at: datetime | None = None  #: for a reschedule: the new time
    edit: dict[str, Any] | None = None  #: for a requeue: arguments to replace
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1  #: for a requeue: further attempts of each job
    priority: Priority | None = None  #: for a requeue: the new priority; left out: as before


class ActPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """A preview of an act, or the job that does it."""

    plan: str  #: id of the plan; send it to do the act
    count: int  #: number of jobs
    sample: list[ActDone]  #: outcomes that the first jobs would have
    expires_at: datetime
    id: str | None = None  #: id of the job that does the act; null: it is only planned


class ActProgress(msgspec.Struct, frozen=True, kw_only=True):
    """An act under way."""

    id: str
    status: str  #: state of the job that does the act
    by: str  #: who asked for it
    act: Verb
    reason: str
    count: int  #: how many jobs it is about
    so_far: Done


class _Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a plan's id: all that any gateway needs to do the act. The caller's rights are checked again then.

    The id is not signed: its values are checked again, as in a new request.
    """

    by: str
    to_do: ToDo
    filter: Which | None = None
    jobs: Annotated[tuple[JobNamed, ...], msgspec.Meta(max_length=_IDS_MAX)] = ()
    until: Annotated[
        int, msgspec.Meta(ge=0)
    ]  #: for a filter: jobs that changed after this sequence are left out
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)]


async def act_on_many(asked: ApiRequest, *, body: ManyActs) -> Answer:
    """Plan an act on many jobs, and change nothing; or do a plan."""
    if body.plan is None:
        return Answer(value=await _planned(asked, body), status=200)
    if msgspec.structs.replace(body, plan=None) != ManyActs():
        raise ProblemError("BAD_REQUEST", "a plan has its act and its jobs: leave all other fields out")
    return await _begun(asked, body.plan)


async def _planned(asked: ApiRequest, body: ManyActs) -> ActPlanned:
    to_do = _to_do(asked, body)
    if (body.filter is None) == (not body.jobs):
        raise ProblemError(
            "BAD_REQUEST", "choose the jobs by a filter, {} for all of them, or by their ids in jobs"
        )
    if body.filter is not None and body.filter.as_of() is not None:
        raise ProblemError(
            "ACTS_ON_PAST", "a filter with at or sequence means the past, which cannot be changed"
        )
    ledger = asked.gateway.ledger
    which = body.filter
    async with looking(asked, which or Look()) as (view, position):
        until = position.sequence
        if which is not None and which.q is not None:  # `2h` must mean the same when the plan is done
            which = msgspec.structs.replace(which, q=search_text(await Which(q=which.q).filter(asked, view)))
    expires_at = ledger.clock.now() + _GOOD_FOR
    plan = _Plan(
        by=asked.principal.name,
        to_do=to_do,
        filter=which,
        jobs=body.jobs,
        until=until,
        expires_at=expires_at,
    )
    chosen = await _chosen(asked, plan)
    act = act_of(to_do, asked.principal.name)
    outcomes = await perform(asked.gateway.rows, act, chosen[:_SAMPLE], plan=True)
    return ActPlanned(
        plan=_encode(plan),
        count=len(chosen),
        sample=[act_done(act.verb, each) for each in outcomes],
        expires_at=expires_at,
    )


def _to_do(asked: ApiRequest, body: ManyActs | ToDo) -> ToDo:
    if body.act is None:
        raise ProblemError("BAD_REQUEST", "say which act is planned, or give the id of a plan")
    asked.principal.require(PERMISSIONS[body.act])
    if body.edit is not None:  # another input needs the rights of a new job
        asked.principal.require("queue")
    run_at = aware("run_at", body.run_at)
    if (body.act == "reschedule") == (run_at is None):
        raise ProblemError(
            "BAD_REQUEST", "run_at says when jobs are to be due: it belongs to reschedule alone"
        )
    if body.act != "requeue" and (body.edit is not None or body.attempts != 1 or body.priority is not None):
        raise ProblemError("BAD_REQUEST", "edit, attempts and priority belong to requeue alone")
    return ToDo(
        act=body.act,
        reason=body.reason,
        run_at=run_at,
        edit=body.edit,
        attempts=body.attempts,
        priority=body.priority,
    )


async def _chosen(asked: ApiRequest, plan: _Plan) -> list[ChosenJob]:
    """Return the jobs of a plan that the asker may act on, of a filter only unchanged ones. Raises: ProblemError."""
    if plan.jobs:
        return [await _by_name(asked, each, plan.to_do.act) for each in plan.jobs]
    act = act_of(plan.to_do, plan.by)
    which = plan.filter or Which()
    async with looking(asked, Look(min_sequence=which.min_sequence)) as (view, _):
        chosen = await which.filter(asked, view)
        if not chosen.states:
            chosen = msgspec.structs.replace(chosen, states=act.states)
        found = await anyio.to_thread.run_sync(
            lambda: chosen_until(view, chosen, plan.until, limit=JOBS_MAX + 1)
        )
    if len(found) > JOBS_MAX:
        raise ProblemError(
            "BAD_REQUEST", f"more than {JOBS_MAX:,} jobs match: narrow the filter, and act in turns"
        )
    return found


async def _by_name(asked: ApiRequest, each: JobNamed, act: Verb) -> ChosenJob:
    ref = JobRef(queue=check_token("queue", each.queue), job_id=check_token("job id", each.id))
    asked.principal.require(PERMISSIONS[act], ref.queue)
    job = await asked.gateway.ledger.handle_of(ref).snapshot()
    missing = JobNotFoundError(ref.job_id)
    asked.principal.require_about(PERMISSIONS[act], ref.queue, job.task, missing)
    return ChosenJob(ref=ref, task=job.task, about=job.state.value)


async def _begun(asked: ApiRequest, token: str) -> Answer:
    plan = _decode(token)
    ledger, principal = asked.gateway.ledger, asked.principal
    to_do = _to_do(asked, plan.to_do)
    job_id = job_id_of(f"{principal.name} {token}")
    job = await _job(asked, job_id)
    if job is None:  # else the plan was begun before, and its jobs may have changed
        if plan.expires_at < ledger.clock.now():
            raise ProblemError("PLAN_EXPIRED", "the plan is older than 15 minutes: plan the act again")
        chosen = await _chosen(asked, plan)
        jobs = [Job(each.ref.queue, each.ref.job_id, each.task) for each in chosen]
        await begin_act(ledger, principal, job_id, to_do, jobs)
        count = len(jobs)
    else:
        count = (await _progress(asked, job)).count
    value = ActPlanned(plan=token, count=count, sample=[], expires_at=plan.expires_at, id=job_id)
    return Answer(value=value, status=202, headers={"location": f"/v1/acts/{job_id}"})


async def show_act(asked: ApiRequest, id: str) -> ActProgress:  # noqa: A002 - as in the address
    """Show the progress of an act on many jobs, to its asker and to callers who may see every queue."""
    job = await _job(asked, check_token("job id", id))
    if job is None:
        raise JobNotFoundError(id)
    if job.created_by != asked.principal.name:
        asked.principal.require_everywhere("view")
    return await _progress(asked, job)


async def _job(asked: ApiRequest, job_id: str) -> LedgerJob | None:
    ledger = asked.gateway.ledger
    chain = ledger.names.chain(JobRef(queue=QUEUE, job_id=job_id))
    job = fold(await ledger.patience.read(lambda: ledger.log.read_chain(chain))).job
    return job if job is not None and job.task == TASK else None  # checks of the ledger are in the same queue


class _Input(msgspec.Struct):
    to_do: ToDo
    jobs: list[Job]


async def _progress(asked: ApiRequest, job: LedgerJob) -> ActProgress:
    ledger = asked.gateway.ledger
    text = await ledger.inputs.get(job.order.input, job.order.input_ref, key=job.order.key)
    given = msgspec.json.decode(text, type=_Input)
    so_far = Done()
    if job.state is JobState.COMPLETED:
        so_far = msgspec.json.decode(
            await ledger.results.get(job.result, job.result_ref, key=job.order.key), type=Done
        )
    elif bytes(job.checkpoint) or job.checkpoint_ref is not None:
        kept = await ledger.inputs.get(job.checkpoint, job.checkpoint_ref, key=job.order.key)
        so_far = msgspec.json.decode(kept, type=Done)
    return ActProgress(
        id=job.id,
        status=job.state.value,
        by=job.created_by,
        act=given.to_do.act,
        reason=given.to_do.reason,
        count=len(given.jobs),
        so_far=so_far,
    )


def _encode(plan: _Plan) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(plan)).decode().rstrip("=")


def _decode(token: str) -> _Plan:
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(text, type=_Plan)
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ProblemError(
            "BAD_REQUEST", "plan is no id of a plan: give it as the plan was answered"
        ) from error


_PROBLEMS: Final = (
    "ACTS_ON_PAST",
    "JOB_NOT_FOUND",
    "PLAN_EXPIRED",
    "PAYLOAD_TOO_LARGE",
    "PROJECTION_BEHIND",
    "LEDGER_FULL",
)

ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/v1/acts",
        permission="view",
        handler=act_on_many,
        summary="Plan an act on many jobs, or do what was planned",
        tag="acts",
        body=ManyActs,
        returns=ActPlanned,
        also=(202,),
        problems=_PROBLEMS,
    ),
    Endpoint(
        method="GET",
        path="/v1/acts/{id}",
        permission="view",
        handler=show_act,
        summary="Show how far an act on many jobs is",
        tag="acts",
        returns=ActProgress,
        problems=("JOB_NOT_FOUND",),
    ),
)
