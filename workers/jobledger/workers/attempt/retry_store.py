"""Repeated tries to store the result of an attempt, since another run of the task would cost more than waiting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from jobledger.ledger.model.errors import LedgerFullError, UnreachableError
from jobledger.ledger.nats.outage import Outage

logger = logging.getLogger("jobledger.workers.attempt")

T = TypeVar("T")

#: How long an outcome or a claim is tried while the server is away or full; then the job is left to a redelivery.
LIMIT_S: Final = 300.0
_PAUSE_FIRST_S: Final = 0.5
_PAUSE_MAX_S: Final = 5.0
#: Pause between two tries at a full ledger, which may get room at any moment, and refuses at little cost.
FULL_PAUSE_S: Final = 1.0


async def retry_store(
    what: str, store: Callable[[], Awaitable[T]], *, outage: Outage, limit_s: float = LIMIT_S
) -> T:
    """Call `store` until it succeeds; safe for conditional appends, which cannot be stored twice.

    The first failure is logged as a warning, or at a lower level if `outage` has logged the cause already.

    Raises: LedgerFullError, UnreachableError after `limit_s`; any other error at once.
    """
    try:
        return await store()
    except (LedgerFullError, UnreachableError) as error:
        logger.log(outage.level(error), "%s is held back, for up to %g s: %s", what, limit_s, error)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    pause = _PAUSE_FIRST_S
    while True:
        await asyncio.sleep(pause)
        try:
            return await store()
        except (LedgerFullError, UnreachableError) as error:
            if loop.time() + pause > deadline:
                raise
            longest = FULL_PAUSE_S if isinstance(error, LedgerFullError) else _PAUSE_MAX_S
        pause = min(2 * pause, longest)
