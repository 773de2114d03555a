"""What a person does to routes: set one, remove one, look at one. Each append is conditional on the newest event."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.hooks.errors import RouteNotFoundError
from jobledger.ledger.model.hooks.route import ROUTE, Route, RouteCommand, RouteDefinition, decide
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.subjects import check_token


class SetRouteDone(NamedTuple):
    """A route after a command."""

    route: Route
    changed: bool  #: False: it was as the command asks already


async def look(log: Log, name: str) -> View[Route]:
    """Return a route as it is now; without a state where it was never set.

    Raises: InvalidTokenError, UnreachableError, UnknownEventError.
    """
    check_token("route", name)
    return ROUTE.view(*await end_of_chain(log, ROUTE.chain(log.names, name)))


async def change(
    log: Log, name: str, command: RouteCommand, stamp: Callable[[], Stamp], *, plan: bool = False
) -> SetRouteDone:
    """Append what follows from a command; `plan`: append nothing, and say what would come of it.

    Raises: InvalidTokenError, RouteNotFoundError, WrongSequenceError after too many lost races, and what `Log` raises.
    """

    async def attempt() -> SetRouteDone:
        view = await look(log, name)
        event = decide(name, view.state, command, stamp())
        if event is None:
            assert view.state is not None, "it is as it was asked to be"
            return SetRouteDone(view.state, changed=False)
        if plan:
            return SetRouteDone(ROUTE.evolve(view.state, event, 0), changed=True)
        (entry,) = ROUTE.link(log.names, [event], view)
        after = ROUTE.advance(entry, event, await log.append([entry])).state
        assert after is not None, "an event leaves a state"
        return SetRouteDone(after, changed=True)

    return await retry_raced(attempt)


async def route_named(log: Log, name: str) -> tuple[Route, RouteDefinition]:
    """Return a route that is set, and what it does. Raises: as `look`; RouteNotFoundError."""
    route = (await look(log, name)).state
    if route is None or route.definition is None:
        raise RouteNotFoundError(name)
    return route, route.definition
