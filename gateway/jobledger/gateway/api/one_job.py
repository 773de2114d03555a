"""Finding one job for a request: read from its own chain, within what the asker may see."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec

from jobledger.admin.objects.jobs import JobShown, checked
from jobledger.admin.past import events_until
from jobledger.admin.views import details_as
from jobledger.audit.verify.links import check_history
from jobledger.gateway.api.parameters import Past
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.visibility import names_cleared
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import AmbiguousIdError, JobNotFoundError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.rights.marks import hidden_from
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.opened_jobs import opened_history
from jobledger.projections import Moment

#: Problem codes of every endpoint about one job.
PROBLEMS = ("JOB_NOT_FOUND", "ARCHIVED", "LEDGER_DAMAGED")
NOW = Past()


class JobAtMoment(NamedTuple):
    """A job with its events, without the names of jobs that the asker may not see.

    Words of a job that has an owner are unsealed for an asker who may see payloads.
    """

    job: Job
    history: list[StoredEvent]
    then: Moment | None  #: the past moment that was asked for

    @property
    def ref(self) -> JobRef:
        """The reference of the job."""
        return JobRef(queue=self.job.queue, job_id=self.job.id)


class Asker(Protocol):
    """The caller of a gateway: a request, or a form that was sent."""

    @property
    def gateway(self) -> Gateway:
        """The gateway that handles the request."""
        ...

    @property
    def principal(self) -> Principal:
        """The caller."""
        ...


async def read_job(
    asked: Asker, queue: str | None, job_id: str, query: Past = NOW, permission: Permission = "view"
) -> JobAtMoment:
    """Read a job, as it is or was.

    Raises: JobNotFoundError, AmbiguousIdError; ProblemError for one that is archived or that the asker may not see;
        MomentAheadError, MomentArchivedError, UnreachableError.
    """
    ledger = asked.gateway.ledger
    check_token("job id", job_id)
    if queue is not None:
        asked.principal.require(permission, check_token("queue", queue))
    past, names = query.as_of(), ledger.names
    history: list[StoredEvent] = await ledger.patience.read(
        lambda: ledger.log.read_chain(names.chains(job_id, queue))
    )
    history = _seen(asked, history) if queue is None else history
    if not history:
        raise await missing_job(asked, queue, job_id)
    queues = {stored.event.queue for stored in history}
    if len(queues) > 1:
        raise AmbiguousIdError(job_id, sorted(f"{each}/{job_id}" for each in queues))
    first = history[0].event  # before the moment's errors, which would reveal the job
    asked.principal.require_about(permission, first.queue, first.task, JobNotFoundError(job_id))
    then = None if past is None else await past.moment(ledger.log, ledger.clock)
    if then is not None:
        history = events_until(history, then)
    seen = names_cleared(asked.principal, history)
    if asked.principal.may("payloads"):
        seen = await opened_history(ledger.keys, seen)
    job = fold(seen).job
    assert job is not None, "a history is not empty"
    return JobAtMoment(job, seen, then)


def _seen(asked: Asker, history: list[StoredEvent]) -> list[StoredEvent]:
    """Return the events of jobs that the asker may see; queue and task of other jobs stay unknown."""
    may = asked.principal.may
    return [stored for stored in history if may("view", stored.event.queue, stored.event.task)]


async def missing_job(asked: Asker, queue: str | None, job_id: str) -> Exception:
    """Return why there is no such job: it never was, or its events are in an archive."""
    first = (await asked.gateway.ledger.log.head()).first_sequence
    if first > 1:
        async with asked.gateway.projection.opened() as view:
            known = [
                ref
                for ref in view.store.find(job_id, queue=queue)
                if ref.job_id == job_id
                and (row := view.store.job(ref.queue, ref.job_id)) is not None
                and asked.principal.may("view", row.queue, row.task)
            ]
        if known:
            return ProblemError(
                "ARCHIVED",
                f"the events of job {known[0].queue}/{job_id} were moved into an archive, and the ledger begins at "
                f"sequence {first:,}: GET /v1/jobs?id={job_id} tells how it ended",
            )
    return JobNotFoundError(job_id)


async def shown(asked: Asker, held: JobAtMoment) -> JobShown:
    """Return a job whole; what its asker may not see is hidden."""
    ledger = asked.gateway.ledger
    check = await check_history(ledger.log, held.history)
    hidden = hidden_from(asked.principal)
    more: dict[str, Any] = {"as_of": held.then or msgspec.UNSET, "chain": checked(check)}
    return await details_as(JobShown, ledger, held.job, held.history, hidden=hidden, **more)
