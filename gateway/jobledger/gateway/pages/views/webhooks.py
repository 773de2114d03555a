"""Traffic with other systems: routes with their deliveries, webhooks, and watches."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec

from jobledger.admin.hooks.webhooks import WebhookInfo, list_webhooks
from jobledger.admin.verbs.watches import WatchInfo, watches_now
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, opened
from jobledger.ledger.model.times import as_utc
from jobledger.projections.tables.routes import DeliveryRow, RouteRow, read_deliveries, read_routes

_DELIVERIES: Final = 50

Text = Annotated[str, msgspec.Meta(max_length=200)]


class Query(When, frozen=True, kw_only=True):
    """The filter of deliveries."""

    route: Text = ""
    unmatched: bool = False  #: only deliveries that no rule matched


class Webhooks(PageFacts, frozen=True, kw_only=True):
    """The page."""

    query: Query
    watches: list[WatchInfo]
    webhooks: list[WebhookInfo]
    routes: list[RouteRow]
    deliveries: list[DeliveryRow]
    repeatable: frozenset[int]  #: `last_sequence` of deliveries that can be processed again


async def webhooks(looked: Viewer, *, query: Query) -> Webhooks:
    """Return the present routes, webhooks and watches. Raises: ProblemError for a viewer who may not see all queues."""
    looked.principal.require_everywhere("view")
    ledger = looked.gateway.ledger
    async with opened(looked) as (view, shell):
        with view.store.one_moment():
            routes = read_routes(view.store.select)
            deliveries = read_deliveries(
                view.store.select,
                route=query.route,
                matched=False if query.unmatched else None,
                limit=_DELIVERIES,
            )
    return Webhooks(
        shell=shell,
        query=query,
        watches=await watches_now(ledger),
        webhooks=await list_webhooks(ledger),
        routes=routes,
        deliveries=deliveries,
        repeatable=_repeatable(deliveries, {each.name for each in routes}, ledger.clock.now()),
    )


def _repeatable(deliveries: list[DeliveryRow], routes: set[str], now: datetime) -> frozenset[int]:
    """Return the sequences of the deliveries that can be processed again, as their route and body still exist."""
    kept = (each for each in deliveries if each.route in routes and each.kept_until is not None)
    return frozenset(
        each.last_sequence for each in kept if as_utc(datetime.fromisoformat(each.kept_until or "")) > now
    )
