"""What a person can do about timers: see how many are set and when the next is due, and set them all again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import MalformedEventError
from jobledger.ledger.nats.timer_stream import PAGE
from jobledger.ledger.timers import KnownWaits, Timer, Timers, read_timer, timer_of

_AT_ONCE: Final = 128
#: Beyond so many timers the next moment is looked for among the oldest of them only.
LOOKED_AT_MAX: Final = 100_000


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What `rebuild_timers` did."""

    waits: int  #: events that name a moment
    set: int  #: of them, those whose job still waits: their timers are set again


class TimersStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the TIMERS stream holds, and how far the reactors are behind."""

    timers_set: int  #: waiting for their moment
    fired: int  #: due, and not yet dealt with by a worker
    next_due_at: datetime | None  #: None when no timer is set
    next_is_exact: bool  #: False when there are so many timers that only some were looked at
    unset_events: (
        int | None
    )  #: events in the ledger whose timers are still to be set; None when no worker ever set any


async def rebuild_timers(ledger: Ledger, *, progress: Callable[[int, int], None] | None = None) -> Rebuilt:
    """Set the timer of every job that waits for a moment, whatever the TIMERS stream holds.

    Safe beside workers: a timer set twice is one timer. A moment that is past fires at once; a worker dispatches
    the job. `progress` gets (done, total) now and then.

    Raises: UnreachableError, LedgerFullError when the server has no room, CorruptLedgerError.
    """
    timers = Timers(ledger.connection, ledger.inbox, ledger.names, ledger.config)
    await timers.ensure()
    known = KnownWaits(ledger.log)
    head = (await ledger.log.head()).last_sequence
    filters = ledger.names.timed_waits
    waits = done = 0
    for passed, subject in enumerate(filters):
        async with contextlib.aclosing(ledger.log.read(subject=subject)) as batches:
            async for batch in batches:
                wanted = _timers_of(batch)
                waits += len(wanted)
                for start in range(0, len(wanted), _AT_ONCE):
                    part = wanted[start : start + _AT_ONCE]
                    done += sum(
                        await asyncio.gather(*(_set_again(ledger, timers, known, each) for each in part))
                    )
                if progress is not None:
                    progress(passed * head + min(head, batch[-1].stream_sequence), len(filters) * head)
    return Rebuilt(waits=waits, set=done)


def _timers_of(batch: Iterable[StoredEvent]) -> list[Timer]:
    found = (timer_of(stored.event, stored.stream_sequence) for stored in batch)
    return [timer for timer in found if timer is not None]


async def _set_again(ledger: Ledger, timers: Timers, known: KnownWaits, timer: Timer) -> int:
    """Set a timer if its job still waits for it; return 1 if it does."""
    chain = await known.chain(timer)
    job = None if chain is None else chain.job
    if job is None or job.wait_sequence != timer.asked_by:
        return 0
    await timers.set(timer, ledger.clock.now())
    return 1


async def timers_status(ledger: Ledger) -> TimersStatus:
    """Return what the TIMERS stream holds at this moment.

    Raises: UnreachableError.
    """
    timers = Timers(ledger.connection, ledger.inbox, ledger.names, ledger.config)
    timers_id = await timers.find()  # where it is gone the next worker makes it, and sets all timers again
    count, fired = await timers.count(), await timers.fired()
    timers_set = max(0, count - fired)
    return TimersStatus(
        timers_set=timers_set,
        fired=fired,
        next_due_at=await _next_due(timers) if timers_set else None,
        next_is_exact=timers_set <= LOOKED_AT_MAX,
        unset_events=None if timers_id is None else await timers.unset_events(timers_id),
    )


async def _next_due(timers: Timers) -> datetime | None:
    """Return the earliest moment among the timers, looking at a bounded number of them."""
    found: datetime | None = None
    async with contextlib.aclosing(timers.pages(LOOKED_AT_MAX // PAGE)) as pages:
        async for page in pages:
            for data in page:
                with contextlib.suppress(MalformedEventError):
                    due_at = read_timer(data).due_at
                    found = due_at if found is None else min(found, due_at)
    return found
