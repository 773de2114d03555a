"""`/v1/run`: a worker inside one request, for platforms that start work by a request or a clock; only with `--app`."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from jobledger.gateway.api.job_acts import no_app
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import endpoint_maker
from jobledger.gateway.http.headers import WAIT_MAX_S
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.model.subjects import check_token
from jobledger.workers.budget import BudgetResult, run_within

_LIMIT_MAX: Final = 1_000


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the work of one request."""

    queue: str | None = None  #: a queue; left out: the queues of the gateway's tasks
    limit: Annotated[int, msgspec.Meta(ge=1, le=_LIMIT_MAX)] = 100  #: the most attempts
    budget_s: Annotated[float, msgspec.Meta(gt=0, le=WAIT_MAX_S)] = (
        30.0  #: seconds; then running attempts get a moment to end, and are given back
    )


async def run_by_clock(asked: ApiRequest, *, query: Budget) -> BudgetResult:
    """Run jobs that are ready, for a cron service, which sends a GET with all parameters in its address."""
    return await _run(asked, query)


async def run_now(asked: ApiRequest, *, body: Budget) -> BudgetResult:
    """Run jobs that are ready, until none is, or the budget is used up."""
    return await _run(asked, body)


async def _run(asked: ApiRequest, budget: Budget) -> BudgetResult:
    tasks, principal = asked.gateway.tasks, asked.principal
    if tasks is None:
        raise no_app()
    if budget.queue is not None:
        principal.require("run", check_token("queue", budget.queue))
    # A named queue may hold jobs of any task. The refusal must not name a task that the caller may not see.
    places = [(None if budget.queue is not None else task.defaults.queue, task.name) for task in tasks]
    if not all(principal.may("run", *place) for place in places):
        raise ProblemError(
            "JOB_ACCESS_DENIED",
            f"{principal.name} may not run every task that this gateway has: ask for a key that may",
        )
    with acting_for(None):  # the gateway is the worker
        return await run_within(
            asked.gateway.ledger, tasks, queue=budget.queue, limit=budget.limit, budget_s=budget.budget_s
        )


_endpoint: Final = endpoint_maker("run", under="/v1/run", permission="run", problems=("NO_APP",))
_SUMMARY: Final = "Run jobs that are ready, within this request"

ENDPOINTS: Final = (
    _endpoint("GET", "", run_by_clock, _SUMMARY, BudgetResult, query=Budget, has_head=False),
    _endpoint("POST", "", run_now, _SUMMARY, BudgetResult, body=Budget),
)
