"""The act that runs one attempt of a job in the gateway itself; for others see `runs` and `jobledger.admin.verbs`."""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.admin import acts
from jobledger.admin.objects.jobs import JobNow, job_now
from jobledger.gateway.api.one_job import PROBLEMS
from jobledger.gateway.api.parameters import WithReason
from jobledger.gateway.api.place import GatewayPlace
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef


class JobRan(JobNow, frozen=True, kw_only=True):
    """A job after an attempt that ran in the gateway."""

    #: Value that its task returned, if it completed; left out if it is large, or if the caller may not see payloads.
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


async def run_job(asked: ApiRequest, queue: str, id: str, *, body: WithReason) -> Answer:  # noqa: A002 - as in the address
    """Run one attempt of a waiting job in the gateway itself, past its queue; only with `--app`."""
    del body
    tasks, rows, by = asked.gateway.tasks, asked.gateway.rows, asked.principal.name

    async def run(_ledger: Ledger, ref: JobRef) -> Job:
        if tasks is None:
            raise no_app()
        with acting_for(None):  # the gateway is the worker
            return (await acts.run(rows, tasks, ref.job_id, ref.queue, by=by)).job

    job = await GatewayPlace(asked, if_match=asked.if_match).act_on_job(id, queue, "run", run)
    shown = job.state is JobState.COMPLETED and job.result_ref is None
    may_see = asked.principal.may("payloads", job.queue, job.task)
    now = msgspec.structs.asdict(job_now(job))
    value = JobRan(**now, result=job.result if shown and may_see else msgspec.UNSET)
    return Answer(value=value, etag=str(job.last_sequence))


def no_app() -> ProblemError:
    """Return the refusal of a gateway that runs no jobs."""
    return ProblemError(
        "NO_APP", "this gateway has no code of tasks: start it with --app MODULE, or let a worker run the job"
    )


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/v1/jobs/{queue}/{id}/run",
        permission="run",
        handler=run_job,
        summary="Run one attempt of a waiting job in the gateway",
        tag="jobs",
        returns=JobRan,
        body=WithReason,
        heeds=("If-Match",),
        problems=(
            *PROBLEMS,
            "ILLEGAL_TRANSITION",
            "PRECONDITION_FAILED",
            "LEDGER_FULL",
            "LEDGER_BUSY",
            "NO_APP",
        ),
    ),
)
