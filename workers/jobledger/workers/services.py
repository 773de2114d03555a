"""Services: loops that run beside the work of a process as long as it lives, and never end it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from jobledger.ledger.nats.connection import Connection
from jobledger.workers.processes.restarts import Restarts

logger = logging.getLogger("jobledger.workers.services")

_RESTART_S_FIRST: Final = 1.0
_RESTART_S_MAX: Final = 60.0
_CANCEL_AGAIN_S: Final = 5.0


async def outlive(
    connection: Connection,
    name: str,
    run: Callable[[], Awaitable[None]],
    *,
    fatal: tuple[type[Exception], ...] = (),
) -> None:
    """Run a service until cancelled; if it ends for any reason, run it again after a pause, each time a longer one.

    Errors of the ledger or of a library are logged and not raised, and so is the cancellation of
    something that it waited for. Returns only when the connection is closed for good.

    Raises: the `fatal` errors.
    """
    restarts = Restarts(first_s=_RESTART_S_FIRST, max_s=_RESTART_S_MAX, healthy_s=_RESTART_S_MAX)
    while True:
        began_at = connection.loop.time()
        try:
            await run()
            logger.error("%s ended by itself", name)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            logger.error("%s: something that it waited for was cancelled", name)  # noqa: TRY400 - no error of ours
        except fatal:
            raise
        except Exception as error:  # noqa: BLE001 - whatever ended it, it is told and begun again
            if connection.is_closed:
                return
            _tell(connection, name, error)
        await asyncio.sleep(restarts.pause_s(connection.loop.time() - began_at))


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they are gone; one that goes on is cancelled again, every few seconds."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # marks their errors as seen


def _is_cancelled() -> bool:
    """Return whether this task itself was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _tell(connection: Connection, name: str, error: Exception) -> None:
    """Log an error of ours as its sentence, and any other with its traceback.

    An error while the server is away is only logged as debug: the lost connection has its own line.
    """
    if connection.outage.level(error) == logging.DEBUG:
        logger.debug("%s begins again: %s", name, error)
        return
    is_ours = type(error).__module__.startswith("jobledger.")
    sentence = str(error) or type(error).__name__
    logger.error("%s failed and begins again: %s", name, sentence, exc_info=None if is_ours else error)
