"""An act on many jobs: as a plan, and as the input of the job that does it."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from jobledger.admin.bulk import (
    Act,
    Result,
    cancel_act,
    discard_act,
    requeue_act,
    reschedule_act,
    retry_act,
)
from jobledger.admin.verbs.jobs import CancelJob, DiscardJob, RequeueJob, RescheduleJob, RetryJob
from jobledger.ledger.client import Ledger
from jobledger.ledger.dead_letters import RequeueOptions
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.subjects import ACTS_QUEUE, JobRef

#: The queue of the jobs that do acts; users cannot add jobs to it.
QUEUE: Final = ACTS_QUEUE
TASK: Final = "bulk_act"
#: The most jobs of one act: so many names fit into one input.
JOBS_MAX: Final = 50_000
#: Outcomes that the result of an act lists; successful ones are only counted.
NAMED_MAX: Final = 1_000

Verb = Literal["cancel", "retry", "reschedule", "requeue", "discard"]
PERMISSIONS: Final[dict[Verb, Permission]] = {
    "cancel": CancelJob.declaration.permission,
    "retry": RetryJob.declaration.permission,
    "reschedule": RescheduleJob.declaration.permission,
    "requeue": RequeueJob.declaration.permission,
    "discard": DiscardJob.declaration.permission,
}


class ToDo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The act to do to each job."""

    act: Verb
    reason: Annotated[str, msgspec.Meta(max_length=2_000)] = ""
    run_at: datetime | None = None  #: for a reschedule: the new time
    edit: dict[str, Any] | None = None  #: for a requeue: arguments to replace
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1  #: for a requeue: further attempts of each job
    priority: Priority | None = None  #: for a requeue: the new priority; left out: as before
    per_minute: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0  #: jobs a minute; 0: as fast as possible


class ActRights(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rights of the caller who asked for an act; for a key they are read again, so these count for people alone."""

    permissions: tuple[Permission, ...] = ()
    queues: tuple[str, ...] = ()  #: patterns; none: every queue
    tasks: tuple[str, ...] = ()  #: patterns; none: every task


class Job(msgspec.Struct, frozen=True, array_like=True):
    """One of the jobs."""

    queue: str
    id: str
    task: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the act for one job."""

    queue: str
    id: str
    result: Result  #: refused: the job's state does not allow the act; invalid: the act's values are wrong
    message: str


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an act."""

    next: int = 0  #: place of the first job that the act has not reached
    done: int = 0
    refused: int = 0
    invalid: int = 0
    others: tuple[Outcome, ...] = ()  #: the first jobs that the act was not done to


def act_of(to_do: ToDo, by: str) -> Act:
    """Return the act. Raises: InvalidInputError."""
    match to_do.act:
        case "cancel":
            return cancel_act(to_do.reason, by=by)
        case "retry":
            return retry_act(to_do.reason, by=by)
        case "reschedule":
            assert to_do.run_at is not None, "it was checked"
            return reschedule_act(to_do.run_at, to_do.reason, by=by)
        case "requeue":
            how = RequeueOptions(
                edit=to_do.edit, attempts=to_do.attempts, priority=to_do.priority, reason=to_do.reason
            )
            return requeue_act(lambda _chosen: how, by=by)
        case "discard":
            return discard_act(to_do.reason, by=by)


def job_id_of(plan: str) -> str:
    """Return the id of the job that does a plan: the same plan gets the same id, so it is done once."""
    return f"act-{hashlib.sha256(plan.encode()).hexdigest()[:40]}"


async def asker_of(ledger: Ledger, job_id: str) -> str:
    """Return the principal who asked for a job of this queue, from its first event. Raises: UnreachableError."""
    ref = JobRef(queue=QUEUE, job_id=job_id)
    job = fold(await ledger.log.read_chain(ledger.names.chain(ref))).job
    assert job is not None, "it runs"
    return job.created_by
