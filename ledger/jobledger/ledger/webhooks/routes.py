"""Routes as they are set now: one of them by its name."""

from __future__ import annotations

from jobledger.ledger.model.hooks.errors import RouteNotFoundError
from jobledger.ledger.model.hooks.route import ROUTE, Route, RouteDefinition
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.named_chain import look


async def route_named(log: Log, name: str) -> tuple[Route, RouteDefinition]:
    """Return a route that is set, and what it does. Raises: as `look`; RouteNotFoundError."""
    route = (await look(log, ROUTE, name)).state
    if route is None or route.definition is None:
        raise RouteNotFoundError(name)
    return route, route.definition
