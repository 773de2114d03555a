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
from jobledger.ledger.model.errors import MalformedEventError, ServerUnreachableError
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.inbox import header, settle, status_of
from jobledger.ledger.nats.streams import api
from jobledger.ledger.timers import DUE_CONSUMER, KnownWaits, Timer, Timers, read_timer, timer_of

_AT_ONCE: Final = 128
#: Beyond so many timers the next moment is looked for among the oldest of them only.
LOOKED_AT_MAX: Final = 100_000
_LOOK_AT_ONCE: Final = 500
_LOOK_TIMEOUT_S: Final = 5.0


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
    names = ledger.names
    timers = Timers(ledger.connection, ledger.inbox, names, ledger.config)
    timers_id = await timers.ensure()
    state = (await api(ledger.inbox, f"STREAM.INFO.{names.timers_stream}", {})).get("state", {})
    due = await _behind(ledger, names.timers_stream, DUE_CONSUMER)
    fired = await _fired(ledger) if due is None else due
    timers_set = max(0, int(state.get("messages", 0)) - fired)
    next_due_at = await _next_due(ledger, int(state.get("first_seq", 1))) if timers_set else None
    return TimersStatus(
        timers_set=timers_set,
        fired=fired,
        next_due_at=next_due_at,
        next_is_exact=timers_set <= LOOKED_AT_MAX,
        unset_events=await _behind(ledger, names.ledger_stream, names.timers_consumer(timers_id)),
    )


async def _behind(ledger: Ledger, stream: str, consumer: str) -> int | None:
    """Return how many messages a consumer has not settled, None when there is none of that name."""
    info = await api(ledger.inbox, f"CONSUMER.INFO.{stream}.{consumer}", {})
    if "error" in info:
        return None
    return int(info.get("num_pending", 0)) + int(info.get("num_ack_pending", 0))


async def _fired(ledger: Ledger) -> int:
    """Count the timers that fired while no worker has ever listened."""
    request = {"subjects_filter": ledger.names.timers_due}
    info = await api(ledger.inbox, f"STREAM.INFO.{ledger.names.timers_stream}", request)
    subjects: dict[str, int] = info.get("state", {}).get("subjects") or {}
    return sum(subjects.values())


async def _next_due(ledger: Ledger, first_sequence: int) -> datetime | None:
    """Return the earliest moment among the timers, looking at a bounded number of them."""
    found: datetime | None = None
    sequence = first_sequence
    for _ in range(LOOKED_AT_MAX // _LOOK_AT_ONCE):
        page = await _set_from(ledger, sequence)
        for data, headers in page:
            sequence = int(header(headers, b"Nats-Sequence")) + 1
            with contextlib.suppress(MalformedEventError):
                due_at = read_timer(data).due_at
                found = due_at if found is None else min(found, due_at)
        if len(page) < _LOOK_AT_ONCE:
            break
    return found


async def _set_from(ledger: Ledger, sequence: int) -> list[tuple[bytes, bytes]]:
    """Return data and headers of the timers that are set, from a sequence of their stream on.

    Raises: ServerUnreachableError.
    """
    found: list[tuple[bytes, bytes]] = []
    done: asyncio.Future[None] = ledger.connection.loop.create_future()

    def on_reply(data: bytes | Exception, headers: bytes) -> None:
        if isinstance(data, Exception):
            settle(done, data)
        elif status_of(headers):
            settle(done, None)
        else:
            found.append((data, headers))

    subject = f"$JS.API.DIRECT.GET.{ledger.names.timers_stream}"
    request = {"seq": sequence, "next_by_subj": ledger.names.timers_set, "batch": _LOOK_AT_ONCE}
    reply = ledger.inbox.expect(subject, on_reply)
    try:
        ledger.connection.send(subject, reply, b"", msgspec.json.encode(request))
        async with asyncio.timeout(_LOOK_TIMEOUT_S):
            await done
    except (TimeoutError, ConnectionLostError) as error:
        raise ServerUnreachableError("the server gave no answer about the timers that are set") from error
    finally:
        ledger.inbox.forget(reply)
    return found
