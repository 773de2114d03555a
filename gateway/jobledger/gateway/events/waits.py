"""Waits for the end of a job: one feed wakes all of them, so that a wait costs the server almost nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from jobledger.gateway.events.feed import Feed
from jobledger.ledger import Ledger
from jobledger.ledger.model.chain import EMPTY_CHAIN, fold
from jobledger.ledger.model.subjects import JobRef

#: A job is looked at again after these times, as the feed may have paused, or a replica may have lagged.
_LOOK_AGAIN_FIRST_S: Final = 5.0
_LOOK_AGAIN_MAX_S: Final = 30.0
_ENDED_LOOK_S: Final = 0.02  #: the first of these times after the feed has seen an end


async def wait_for_end(feed: Feed, ledger: Ledger, ref: JobRef) -> None:
    """Return once a job exists and is final. A caller cancels this to wait no longer.

    Raises: UnreachableError.
    """
    chain, view, pause_s = ledger.log.names.chain(ref), EMPTY_CHAIN, _LOOK_AGAIN_FIRST_S
    async with feed.ends_of(ref) as ended:
        while True:
            ended.clear()
            seen = view.last_sequence
            newer = await (ledger.log.read_on(chain, seen) if seen else ledger.log.read_chain(chain))
            view = fold(newer, view)
            if view.job is not None and view.job.is_final:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await ended.wait()
            pause_s = _ENDED_LOOK_S if ended.is_set() else min(2 * pause_s, _LOOK_AGAIN_MAX_S)
