"""Routes, to which other systems send webhooks: definitions, deliveries, and refused requests."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from jobledger.admin.hooks.routes import (
    ChangedRoute,
    ShownDelivery,
    definition_of,
    set_route,
    show_delivery,
)
from jobledger.admin.rows import AnswerPosition
from jobledger.gateway.api.pagination import READ, looking
from jobledger.gateway.api.parameters import Limit, Look, Text
from jobledger.gateway.hooks.references import require_route
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, endpoint_maker
from jobledger.gateway.refused_requests import RefusedRequest
from jobledger.ledger.model.hooks.errors import RouteNotFoundError
from jobledger.ledger.model.hooks.route import RouteDefinition
from jobledger.projections.tables.routes import DeliveryRow, RouteRow, read_deliveries, read_routes


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """The routes that are set, by name."""

    items: list[RouteRow]
    position: AnswerPosition


class ReceivedQuery(Look, frozen=True, kw_only=True):
    """A filter of deliveries."""

    limit: Limit = 50
    before: Annotated[int, msgspec.Meta(ge=0)] | None = (
        None  #: only deliveries stored before this stream sequence
    )
    matched: bool | None = None  #: true: only deliveries that made jobs; false: only those that made none


class ReceivedDeliveries(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries to a route, the newest first."""

    items: list[DeliveryRow]
    next: int | None  #: `before` of the next page; null: there is no more
    position: AnswerPosition


class ChangingRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A choice between a plan and the change itself, and a reason."""

    plan: bool = False  #: show the change, and do nothing
    reason: Text = ""  #: stored in the ledger with the actor


class RefusedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to a route that this process refused, the newest first, out of the newest 200 of all routes."""

    items: list[RefusedRequest]


async def list_routes(asked: ApiRequest, *, query: Look) -> Routes:
    """List the routes that are set."""
    asked.principal.require_everywhere("view")
    async with looking(asked, query) as (view, place):
        return Routes(items=read_routes(view.store.select), position=place)


async def put_route(
    asked: ApiRequest, route: str, *, query: ChangingRoute, body: RouteDefinition
) -> ChangedRoute:
    """Set the definition of a route, in place of any earlier one; secrets are references."""
    asked.principal.require_everywhere("manage")
    # Decoded again, so that unknown fields are refused at every depth.
    definition = definition_of(msgspec.json.decode(asked.sent))
    del body
    before = await _definition(asked, route)
    require_route(asked.principal, asked.gateway.secrets, before, definition)
    by = asked.principal.name
    done = await set_route(
        asked.gateway.ledger, route, definition, reason=query.reason, by=by, plan=query.plan
    )
    asked.gateway.route_names.add(route)  # requests to a new route are accepted at once
    return done


async def _definition(asked: ApiRequest, route: str) -> RouteDefinition | None:
    try:
        return (await asked.gateway.ledger.routes.get(route)).definition
    except RouteNotFoundError:
        return None


async def list_deliveries(asked: ApiRequest, route: str, *, query: ReceivedQuery) -> ReceivedDeliveries:
    """List the deliveries to a route."""
    asked.principal.require_everywhere("view")
    async with looking(asked, query) as (view, place):
        items = read_deliveries(
            view.store.select,
            route=route,
            matched=query.matched,
            before=query.before,
            limit=query.limit + 1,
        )
    more = len(items) > query.limit
    items = items[: query.limit]
    return ReceivedDeliveries(items=items, next=items[-1].last_sequence if more else None, position=place)


async def show_one_delivery(asked: ApiRequest, route: str, delivery: str) -> Answer:
    """Show a delivery, each time it was processed, and the jobs that it made."""
    asked.principal.require_everywhere("view")
    found: ShownDelivery = await show_delivery(asked.gateway.ledger, route, delivery)
    return Answer(value=found, etag=str(found.history[-1].stream_sequence))


async def list_refused(asked: ApiRequest, route: str) -> RefusedRequests:
    """List the newest requests to a route that this process refused."""
    asked.principal.require_everywhere("view")
    await asked.gateway.ledger.routes.get(route)
    return RefusedRequests(items=[each for each in asked.gateway.refused.newest if each.route == route])


_ROUTE: Final = "/v1/routes/{route}"
_DELIVERY: Final = f"{_ROUTE}/deliveries/{{delivery}}"
_WRITES: Final = ("LEDGER_BUSY", "LEDGER_FULL")


_endpoint: Final = endpoint_maker("routes", permission="view")

ENDPOINTS: Final = (
    _endpoint("GET", "/v1/routes", list_routes, "List the routes", Routes, query=Look, problems=READ),
    _endpoint(
        "PUT",
        _ROUTE,
        put_route,
        "Have a route do something",
        ChangedRoute,
        permission="manage",
        query=ChangingRoute,
        body=RouteDefinition,
        problems=("JOB_INVALID_INPUT", "NOT_FOUND", *_WRITES),
    ),
    _endpoint(
        "GET",
        f"{_ROUTE}/deliveries",
        list_deliveries,
        "List what came in to a route",
        ReceivedDeliveries,
        query=ReceivedQuery,
        problems=READ,
    ),
    _endpoint(
        "GET",
        _DELIVERY,
        show_one_delivery,
        "Show a delivery",
        ShownDelivery,
        heeds=("If-None-Match",),
        problems=("NOT_FOUND",),
    ),
    _endpoint(
        "GET",
        f"{_ROUTE}/refused",
        list_refused,
        "List what this process refused to a route",
        RefusedRequests,
        problems=("NOT_FOUND",),
    ),
)
