"""The delay of a timer whose wait is not in the ledger: a replica may lag, or the timer is from another ledger."""

from __future__ import annotations

import logging
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.nats.streams import subject_at
from jobledger.ledger.timers import AnyTimer
from jobledger.workers.reactors.reactor import Later

logger = logging.getLogger("jobledger.workers.reactors.timers")

_LAG_S: Final = 0.25
_LAG_S_MAX: Final = 30.0
LAGGING_DELIVERIES_MAX: Final = 8


async def lagging(ledger: Ledger, timer: AnyTimer, delivery: Delivery) -> Later | None:
    """Return a delay while a replica may lack the timer's wait; None if the stream's leader lacks it, too.

    Raises: UnreachableError, LedgerError.
    """
    delay_s = min(_LAG_S * delivery.delivered, _LAG_S_MAX)
    if delivery.delivered <= LAGGING_DELIVERIES_MAX:
        return Later(delay_s)
    names = ledger.names
    subject = await subject_at(ledger.inbox, names.ledger_stream, timer.asked_by)
    if subject is None or not subject.startswith(f"{names.ledger_root}.{timer.chain}."):
        logger.error("%s dropped: the ledger has no such wait", timer)
        return None
    return Later(delay_s)
