"""What a person does to one job: each act is stored with who did it and why, or changes nothing."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from jobledger.admin import acts, run_acts
from jobledger.admin.objects.jobs import JobNow
from jobledger.gateway.api.asking import Reasoned, aware
from jobledger.gateway.api.one_job import PROBLEMS, act
from jobledger.gateway.http.asked import Asked
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.acting import acting_for
from jobledger.ledger.client import Ledger
from jobledger.ledger.dead_letters import Changes
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.outcome import DELAY_S_LIMIT

_ASKED: Final = 202  #: of a running job: its worker was asked to, and does so a moment later


class Requeue(Reasoned, frozen=True, kw_only=True):
    """How a dead letter is given new attempts."""

    input: dict[str, Any] | None = None  #: the whole new input; left out: as before
    edit: dict[str, Any] | None = None  #: arguments to replace; the others stay as they are
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1  #: how many more it may have
    priority: Priority | None = None  #: left out: as before


class Remark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says of a job."""

    text: str  #: kept in the ledger with who said it


class Reschedule(Reasoned, frozen=True, kw_only=True):
    """When a job is to be due; one of the two is given."""

    run_at: datetime | None = None
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=DELAY_S_LIMIT)] | None = None  #: seconds from now


async def cancel_job(asked: Asked, queue: str, id: str, *, body: Reasoned) -> Answer:  # noqa: A002
    """End a waiting job at once, ask a running one to end."""
    by = asked.principal.name

    async def do(ledger: Ledger, ref: JobRef) -> Job:
        return await ledger.cancel(ref, reason=body.reason, by=by)

    return await act(asked, queue, id, "cancel", do, asked_status=_ASKED)


async def retry_job(asked: Asked, queue: str, id: str, *, body: Reasoned) -> Answer:  # noqa: A002
    """Queue a job that waits for a time at once, give a dead letter one more attempt."""
    by = asked.principal.name

    async def do(ledger: Ledger, ref: JobRef) -> Job:
        return await ledger.retry(ref, reason=body.reason, by=by)

    return await act(asked, queue, id, "cancel", do)


async def reschedule_job(asked: Asked, queue: str, id: str, *, body: Reschedule) -> Answer:  # noqa: A002
    """Give a job that waits for a time another one."""
    if (body.run_at is None) == (body.delay_s is None):
        raise ProblemError(
            "BAD_REQUEST", "say when the job is to be due: give run_at or delay_s, one of the two"
        )
    run_at, by = aware("run_at", body.run_at), asked.principal.name

    async def do(ledger: Ledger, ref: JobRef) -> Job:
        return await ledger.reschedule(ref, run_at=run_at, delay_s=body.delay_s, reason=body.reason, by=by)

    return await act(asked, queue, id, "cancel", do)


async def requeue_job(asked: Asked, queue: str, id: str, *, body: Requeue) -> Answer:  # noqa: A002
    """Give a dead letter new attempts; the old input stays in the ledger.

    Another input asks for another job, so it needs the permission `queue` as well.
    """
    if body.input is not None or body.edit is not None:
        asked.principal.require("queue", check_token("queue", queue))
    changes: Changes = {
        "input": body.input,
        "edit": body.edit,
        "attempts": body.attempts,
        "priority": body.priority,
        "reason": body.reason,
    }
    by = asked.principal.name

    async def do(ledger: Ledger, ref: JobRef) -> Job:
        return await ledger.requeue(ref, by=by, **changes)

    return await act(asked, queue, id, "review", do)


async def discard_job(asked: Asked, queue: str, id: str, *, body: Reasoned) -> Answer:  # noqa: A002
    """Close a dead letter for good; every event of it is kept."""
    by = asked.principal.name

    async def do(ledger: Ledger, ref: JobRef) -> Job:
        return await ledger.discard(ref, reason=body.reason, by=by)

    return await act(asked, queue, id, "review", do)


async def note_job(asked: Asked, queue: str, id: str, *, body: Remark) -> Answer:  # noqa: A002
    """Keep a note about a job, whatever its state; it changes nothing."""
    by = asked.principal.name

    async def do(ledger: Ledger, ref: JobRef) -> Job:
        return await ledger.note(ref, body.text, by=by)

    return await act(asked, queue, id, "review", do)


async def pause_job(asked: Asked, queue: str, id: str, *, body: Reasoned) -> Answer:  # noqa: A002
    """Pause a job until it is resumed: a waiting one at once, a running one at its next step or checkpoint."""
    by = asked.principal.name

    async def do(ledger: Ledger, ref: JobRef) -> Job:
        return await run_acts.pause_ref(ledger, ref, reason=body.reason, by=by)

    return await act(asked, queue, id, "cancel", do, asked_status=_ASKED)


async def resume_job(asked: Asked, queue: str, id: str, *, body: Reasoned) -> Answer:  # noqa: A002
    """Let a job go on that a person paused, and the children that were paused with it."""
    by = asked.principal.name

    async def do(ledger: Ledger, ref: JobRef) -> Job:
        return await run_acts.resume_ref(ledger, ref, reason=body.reason, by=by)

    return await act(asked, queue, id, "cancel", do)


class JobRan(JobNow, frozen=True, kw_only=True):
    """A job after an attempt that ran in the gateway."""

    #: What its task returned, of one that completed; left out for who may not see payloads, and where it is large.
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


async def run_job(asked: Asked, queue: str, id: str, *, body: Reasoned) -> Answer:  # noqa: A002
    """Run one attempt of a waiting job in the gateway itself, past its queue; only with `--app`."""
    del body
    tasks, rows, by = asked.gateway.tasks, asked.gateway.rows, asked.principal.name
    ended: list[Job] = []

    async def do(_ledger: Ledger, ref: JobRef) -> Job:
        if tasks is None:
            raise no_app()
        with acting_for(None):  # the gateway is the worker
            ended.append((await acts.run(rows, tasks, ref.job_id, ref.queue, by=by)).job)
        return ended[0]

    answer = await act(asked, queue, id, "run", do)
    (job,) = ended
    shown = job.state is JobState.COMPLETED and job.result_ref is None
    may_see = asked.principal.may("payloads", job.queue, job.task)
    fields = {name: getattr(answer.value, name) for name in JobNow.__struct_fields__}
    value = JobRan(**fields, result=job.result if shown and may_see else msgspec.UNSET)
    return msgspec.structs.replace(answer, value=value)


def no_app() -> ProblemError:
    """Return why this gateway runs no job."""
    return ProblemError(
        "NO_APP", "this gateway has no code of tasks: start it with --app MODULE, or let a worker run the job"
    )


def _act(verb: str, handler: Any, permission: Permission, summary: str, **more: Any) -> Endpoint:
    given: dict[str, Any] = {
        "body": Reasoned,
        "problems": (*PROBLEMS, *_PROBLEMS),
        "returns": JobNow,
        **more,
    }
    return Endpoint(
        method="POST",
        path=f"/v1/jobs/{{queue}}/{{id}}/{verb}",
        permission=permission,
        handler=handler,
        summary=summary,
        tag="jobs",
        heeds=("If-Match",),
        **given,
    )


_PROBLEMS: Final = ("ILLEGAL_TRANSITION", "PRECONDITION_FAILED", "LEDGER_FULL", "LEDGER_BUSY")
_REQUEUE: Final = (
    "JOB_INVALID_INPUT",
    "PAYLOAD_TOO_LARGE",
    "PAYLOAD_GONE",
    "UNIQUE_KEY_TAKEN",
)
_CANCEL: Final = "End a waiting job at once, ask a running one to end"
_REQUEUE_SAYS: Final = "Give a dead letter new attempts, perhaps with another input"

ENDPOINTS: Final = (
    _act("cancel", cancel_job, "cancel", _CANCEL, also=(_ASKED,)),
    _act(
        "retry",
        retry_job,
        "cancel",
        "Queue a waiting job at once, or a dead letter for one more attempt",
        problems=(*PROBLEMS, *_PROBLEMS, "UNIQUE_KEY_TAKEN"),
    ),
    _act("reschedule", reschedule_job, "cancel", "Give a waiting job another time", body=Reschedule),
    _act("pause", pause_job, "cancel", "Pause a job until it is resumed", also=(_ASKED,)),
    _act("resume", resume_job, "cancel", "Let a paused job go on"),
    _act(
        "requeue",
        requeue_job,
        "review",
        _REQUEUE_SAYS,
        body=Requeue,
        problems=(*PROBLEMS, *_PROBLEMS, *_REQUEUE),
    ),
    _act(
        "note",
        note_job,
        "review",
        "Keep a note about a job",
        body=Remark,
        problems=(*PROBLEMS, "PRECONDITION_FAILED", "JOB_INVALID_INPUT", "LEDGER_FULL", "LEDGER_BUSY"),
    ),
    _act("discard", discard_job, "review", "Close a dead letter for good"),
    _act(
        "run",
        run_job,
        "run",
        "Run one attempt of a waiting job in the gateway",
        returns=JobRan,
        problems=(*PROBLEMS, *_PROBLEMS, "NO_APP"),
    ),
)
