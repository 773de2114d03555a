"""The declaration of the routes in a process's code; routes that a person set stay."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.declared_route import Route
from jobledger.ledger.model.errors import LedgerError, UnreachableError

logger = logging.getLogger("jobledger.workers.routes")

_RETRY_EVERY_S: Final = 30.0


async def declare_routes(ledger: Ledger, routes: Iterable[Route]) -> None:
    """Declare each route once, then wait until cancelled; what the ledger refuses is logged, and tried again later.

    Where the code of several processes differs, the last one to start wins. Raises: UnreachableError, after which it is
    worth another try.
    """
    waiting = list(routes)
    told: dict[str, str] = {}
    while waiting:
        waiting = [each for each in waiting if not await _declared(ledger, each, told)]
        if waiting:
            await asyncio.sleep(_RETRY_EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311 - not all at once
    await asyncio.Event().wait()


async def _declared(ledger: Ledger, route: Route, told: dict[str, str]) -> bool:
    try:
        now = (await ledger.routes.declare(route.name, route.definition)).state
    except UnreachableError:
        raise
    except LedgerError as error:
        sentence = f"route {route.name} is not declared, it is tried again: {error}"
        if told.get(route.name) != sentence:
            told[route.name] = sentence
            logger.warning("%s", sentence)
        return False
    if now.definition != route.definition:
        logger.warning(
            "route %s is as %s set it, not as the code says: `jobledger routes remove %s` lets the code of the next "
            "start count",
            route.name,
            now.by,
            route.name,
        )
    return True
