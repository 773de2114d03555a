"""Limits and unique keys: lists of them, their holders, and a simulation of other limits."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from jobledger.admin.grants_again import SimulatedWaits, simulate_limits
from jobledger.admin.held import limit_now
from jobledger.admin.limits import show_limit
from jobledger.admin.objects.fleet import (
    KeyShown,
    LimitListed,
    LimitMissing,
    LimitShown,
    key_shown,
    limit_shown,
    limits_listed,
)
from jobledger.admin.rows import AnswerPosition
from jobledger.gateway.api.pagination import READ, looking
from jobledger.gateway.api.parameters import Limit, Look, aware
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import endpoint_maker
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.visibility import limits_for
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.unique.queries import find_key, find_keys

#: A longer span would keep the gateway busy for too long.
_SIMULATED_MAX: Final = timedelta(days=1)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits, and a line for each key with terms of its own."""

    items: list[LimitListed]
    missing: list[LimitMissing]  #: limits that jobs name and nobody defined: these jobs wait
    position: AnswerPosition


class Simulation(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"begin": "from", "end": "to"},
):
    """The span of time to simulate, and the limits to try."""

    begin: datetime
    end: datetime
    limits: Annotated[dict[str, int | float | str | None], msgspec.Meta(max_length=100)]
    """Slots by limit or `name:key`, and other fields by `limit.field`, such as `{"api.rate": 5}`."""


class UniqueKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The unique keys of a task, those that were taken last first."""

    items: list[KeyShown]


class KeysQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The number of keys to list."""

    limit: Limit = 50


async def list_limits(asked: ApiRequest, *, query: Look) -> Limits:
    """List the limits that are defined, and those that jobs wait for and nobody defined."""
    async with looking(asked, query) as (view, place):
        workers = [] if query.as_of() else await asked.gateway.ledger.leases.all()
        items, missing = limits_for(asked.principal, limits_listed(view.store, workers))
    return Limits(items=items, missing=missing, position=place)


async def show_one_limit(asked: ApiRequest, limit: str) -> LimitShown:
    """Show a limit, or one key of it: its terms, who set them, which jobs hold it and which wait for it."""
    asked.principal.require_everywhere("view")  # the answer names jobs of any queue
    ledger = asked.gateway.ledger
    held = await limit_now(ledger, limit)
    if not asked.principal.is_everywhere:  # jobs of any queue and task hold it
        hidden = msgspec.structs.replace(held.state, holders=())
        held = msgspec.structs.replace(held, state=hidden, waits=(), keys=())
    return limit_shown(await show_limit(ledger, limit), held)


async def simulate(asked: ApiRequest, *, body: Simulation) -> SimulatedWaits:
    """Tell how long the jobs of a span of time would have waited with other limits; change nothing."""
    asked.principal.require_everywhere("view")
    ledger = asked.gateway.ledger
    begin, end = aware("from", body.begin), aware("to", body.end)
    assert begin is not None, "it is required"
    assert end is not None, "it is required"
    if end - begin > _SIMULATED_MAX:
        raise ProblemError(
            "BAD_REQUEST", "the span is longer than a day: `jobledger limits simulate` takes any"
        )
    return await simulate_limits(ledger, begin, min(end, ledger.clock.now()), body.limits)


async def list_unique_keys(asked: ApiRequest, task: str, *, query: KeysQuery) -> UniqueKeys:
    """List the unique keys of a task: which job took each, and whether it still holds it."""
    ledger = asked.gateway.ledger
    asked.principal.require("view", None, check_token("task name", task))
    found = await find_keys(ledger.log, task, now=ledger.clock.now(), limit=query.limit)
    seen = [each for each in found if asked.principal.may("view", each.taken.queue)]
    return UniqueKeys(items=list(map(key_shown, seen)))


async def show_unique_key(asked: ApiRequest, task: str, key: str) -> KeyShown:
    """Show the job that holds one unique key."""
    ledger = asked.gateway.ledger
    asked.principal.require("view", None, check_token("task name", task))
    found = await find_key(ledger.log, task, check_token("key", key), now=ledger.clock.now())
    missing = ProblemError(
        "NOT_FOUND", f"no job of task {task} has taken key {key}: GET /v1/unique/{task} lists those"
    )
    if found is None:
        raise missing
    asked.principal.require_about("view", found.taken.queue, task, missing)
    return key_shown(found)


_endpoint: Final = endpoint_maker("limits", permission="view")

_SIMULATE: Final = {"body": Simulation, "problems": ("JOB_INVALID_INPUT", "LEDGER_DAMAGED")}
_FOUND: Final = {"problems": ("NOT_FOUND", "LEDGER_DAMAGED")}

ENDPOINTS: Final = (
    _endpoint("GET", "/v1/limits", list_limits, "List the limits", Limits, query=Look, problems=READ),
    _endpoint(
        "POST",
        "/v1/limits/simulate",
        simulate,
        "Tell how jobs would have waited with other limits",
        SimulatedWaits,
        **_SIMULATE,
    ),
    _endpoint(
        "GET",
        "/v1/limits/{limit}",
        show_one_limit,
        "Show a limit",
        LimitShown,
        problems=("NOT_FOUND", "JOB_INVALID_INPUT", "LEDGER_DAMAGED"),
    ),
    _endpoint(
        "GET",
        "/v1/unique/{task}",
        list_unique_keys,
        "List the unique keys of a task",
        UniqueKeys,
        query=KeysQuery,
        problems=("LEDGER_DAMAGED",),
    ),
    _endpoint(
        "GET", "/v1/unique/{task}/{key}", show_unique_key, "Show who holds a unique key", KeyShown, **_FOUND
    ),
)
