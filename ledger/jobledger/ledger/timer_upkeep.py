"""A person's acts on timers: show how many are set and when the next is due, and set them all again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.errors import MalformedEventError
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.ledger.nats.timer_stream import PAGE
from jobledger.ledger.timers import AnyTimer, DeadlineTimer, KnownWaits, Timer, Timers, read_timer, timers_in

_AT_ONCE: Final = 128
#: If there are more timers than this, the next moment is searched among the oldest ones only.
LOOKED_AT_MAX: Final = 100_000


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `rebuild_timers`."""

    waits: int  #: events that name a moment
    set: int  #: the number of these whose job still waits: their timers are set again


class TimersStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the TIMERS stream, and how far the reactors are behind."""

    timers_set: int  #: waiting for their moment
    fired: int  #: due, and not yet handled by a worker
    next_due_at: datetime | None  #: None when no timer is set
    next_is_exact: bool  #: False when only some timers were looked at, because there are too many
    unset_events: (
        int | None
    )  #: events in the ledger whose timers are not set yet; None: no worker ever set any


async def rebuild_timers(ledger: Ledger, *, progress: Callable[[int, int], None] | None = None) -> Rebuilt:
    """Set the timer of every job and schedule that waits for a moment, whatever the TIMERS stream holds.

    Safe beside workers: a timer set twice is one timer. A moment that is past fires at once; a worker dispatches
    the job. `progress` gets (done, total) now and then.

    Raises: UnreachableError, LedgerFullError when the server has no room, CorruptLedgerError.
    """
    timers = Timers(ledger.connection, ledger.inbox, ledger.names, ledger.config)
    await timers.ensure()
    known = KnownWaits(ledger.log)
    head = (await ledger.log.head()).last_sequence
    filters = ledger.names.timed_waits
    newest: dict[str, AnyTimer | None] = {}  # of each schedule
    waits = done = 0
    for passed, subject in enumerate(filters):
        async with contextlib.aclosing(ledger.log.read_messages(subject=subject)) as batches:
            async for batch in batches:
                wanted = _timers_of(batch, newest)
                waits += len(wanted)
                done += await _set_all(ledger, timers, known, wanted)
                if progress is not None:
                    progress(passed * head + min(head, batch[-1].stream_sequence), len(filters) * head)
    last = [timer for timer in newest.values() if timer is not None]
    done += await _set_all(ledger, timers, known, last)
    return Rebuilt(waits=waits + len(last), set=done)


async def _set_all(ledger: Ledger, timers: Timers, known: KnownWaits, wanted: Sequence[AnyTimer]) -> int:
    """Set the timers of present waits; return how many."""
    done = 0
    for start in range(0, len(wanted), _AT_ONCE):
        part = wanted[start : start + _AT_ONCE]
        done += sum(await asyncio.gather(*(_set_again(ledger, timers, known, each) for each in part)))
    return done


def _timers_of(batch: Iterable[Message], newest: dict[str, AnyTimer | None]) -> list[AnyTimer]:
    """Return the timers of jobs that a batch asks for; note that of each schedule's newest event."""
    found: list[AnyTimer] = []
    for message in batch:
        timers = timers_in(message)
        if isinstance(message, StoredEvent):
            found += timers
        elif aggregate_of(message.subject) == SCHEDULE.name and not isinstance(message, Unreadable):
            (name,) = SCHEDULE.key_in(message.subject)
            newest[name] = next(iter(timers), None)
    return found


async def _set_again(ledger: Ledger, timers: Timers, known: KnownWaits, timer: AnyTimer) -> int:
    """Set a timer if its job still waits for it; return 1 if it does. A schedule's timer is always set."""
    if isinstance(timer, Timer):
        chain = await known.chain(timer)
        job = None if chain is None else chain.job
        if job is None or job.wait_sequence != timer.asked_by:
            return 0
    elif isinstance(timer, DeadlineTimer):
        job = (await load(ledger.log, timer.ref)).job
        if job is None or job.is_final:
            return 0
    await timers.set(timer, ledger.clock.now())
    return 1


async def timers_status(ledger: Ledger) -> TimersStatus:
    """Return what the TIMERS stream holds at this moment.

    Raises: UnreachableError.
    """
    timers = Timers(ledger.connection, ledger.inbox, ledger.names, ledger.config)
    timers_id = (
        await timers.find()
    )  # if the stream is gone, the next worker creates it, and sets all timers again
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
