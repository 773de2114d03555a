"""A task for the faults of limits, in workers that now and then end between `granted` and the `queued` that follow it.

`LIMITS_CRASH` is the probability of that for each granted job, `LIMITS_STALL` that of standing still for two seconds after a
decision and before its `granted` is sent; `LIMITS_REFUSED` the file that gets a line for each grant that came second.
"""

from __future__ import annotations

import asyncio
import os
import random
import time

from jobledger.ledger import Context, task
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.limits.flow import FlowEvent, Granted, GrantedJob
from jobledger.workers.reactors.flow.admission import Admitter
from jobledger.workers.reactors.flow.chain import Chain

_CRASH = float(os.environ.get("LIMITS_CRASH", "0"))
_STALL = float(os.environ.get("LIMITS_STALL", "0"))
_STALL_S = 2.0
_REFUSED = os.open(
    os.environ.get("LIMITS_REFUSED", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
)
_chance = random.Random()

_admit, _append = Admitter.admit, Chain.append


def _crash_or_admit(self: Admitter, granted: GrantedJob, grant: int) -> None:
    if _chance.random() < _CRASH:
        os._exit(9)  # granted, and nobody queued it
    _admit(self, granted, grant)


async def _append_and_tell(self: Chain, event: FlowEvent) -> int:
    if isinstance(event, Granted) and _chance.random() < _STALL:
        time.sleep(_STALL_S)  # noqa: ASYNC251 - as a process that is frozen
    try:
        return await _append(self, event)
    except WrongSequenceError:
        if isinstance(event, Granted):
            os.write(_REFUSED, f"{os.getpid()}\n".encode())
        raise


Admitter.admit = _crash_or_admit  # type: ignore[method-assign]
Chain.append = _append_and_tell  # type: ignore[method-assign]


@task(queue="work", max_attempts=50)
async def limited(context: Context, seconds: float = 0.0, number: int = 0) -> int:
    """Sleep on the loop."""
    await asyncio.sleep(seconds)
    return context.attempt
