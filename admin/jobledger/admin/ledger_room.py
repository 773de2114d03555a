"""How full the ledger's stream is, how long its room lasts, and since when that is too little."""

from __future__ import annotations

import functools
import math
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.log import Head
from jobledger.ledger.model.times import as_utc
from jobledger.ledger.nats.infos import StreamInfo
from jobledger.ledger.throttle import ENQUEUE_UP_TO, counted_load, needed_by_job, waiting_jobs
from jobledger.projections import moment_of

#: Above this part of its room a person should see to a ledger.
FULL_WARN: Final = 0.8
#: Below this share of its room no forecast says when a ledger will be full.
_FORECAST_FROM: Final = 0.1
_FORECAST_WARN: Final = timedelta(days=7)
_FORECAST_OVER: Final = timedelta(hours=24)
_FORECAST_OVER_MIN: Final = timedelta(minutes=10)


class Room(NamedTuple):
    """How full the ledger is."""

    used: int  #: bytes in use
    committed: int  #: bytes in use, and those that waiting jobs still need
    size: int  #: bytes that it may take
    lasts: (
        timedelta | None
    )  #: time until it is full, by the growth of the last day; None: not known, or no growth
    is_short: bool  #: it is nearly full, or will be soon
    #: Estimated time since which it is short, by event sizes and the growth of the last day; None: it is not short.
    short_since: datetime | None


class _Growth(NamedTuple):
    """How a ledger grew lately."""

    begin: datetime
    bytes_s: float


async def room_of(ledger: Ledger, stream: StreamInfo, now: datetime) -> Room | None:
    """Return how full the ledger is, and will be if it goes on growing as in the last day; None: no limit of size.

    Raises: UnreachableError.
    """
    size, used = int(stream.config.get("max_bytes", -1)), stream.state.bytes
    if size <= 0:
        return None
    growth = await _growth(ledger, stream, now) if used >= _FORECAST_FROM * size else None
    lasts = None if growth is None else timedelta(seconds=(size - used) / growth.bytes_s)
    head = Head(
        first_sequence=stream.state.first_sequence,
        last_sequence=stream.state.last_sequence,
        stored_bytes=used,
        bytes_max=size,
    )
    waiting = functools.partial(waiting_jobs, ledger.inbox, ledger.names)
    committed = (await counted_load(head, waiting, await needed_by_job(ledger.log))).committed_bytes
    since: list[datetime | None] = []
    if used > FULL_WARN * size:
        since.append(await _passed(ledger, stream, FULL_WARN * size))
    if growth is not None and lasts is not None and lasts < _FORECAST_WARN:
        soon = size - growth.bytes_s * _FORECAST_WARN.total_seconds()
        passed = await _passed(ledger, stream, max(soon, _FORECAST_FROM * size))
        since.append(None if passed is None else max(passed, growth.begin))
    known = [each for each in since if each is not None]
    is_short = bool(since) or committed > ENQUEUE_UP_TO * size
    return Room(used, committed, size, lasts, is_short, min(known, default=None))


async def _growth(ledger: Ledger, stream: StreamInfo, now: datetime) -> _Growth | None:
    """Return how the ledger grew in the last day, or since its first event; None: that is too short, or it did not."""
    state = stream.state
    if not state.messages:
        return None
    first = await ledger.log.get(state.first_sequence)
    begin = now - _FORECAST_OVER if first is None else max(now - _FORECAST_OVER, as_utc(first.stored_at))
    if now - begin < _FORECAST_OVER_MIN:
        return None
    then = (await moment_of(ledger.log, at=begin, clock=ledger.clock)).stream_sequence
    grown = (state.last_sequence - then) * state.bytes / state.messages
    return _Growth(begin, grown / (now - begin).total_seconds()) if grown > 0 else None


async def _passed(ledger: Ledger, stream: StreamInfo, line: float) -> datetime | None:
    """Return when the ledger passed `line` bytes, taking all events to be of the same size."""
    state = stream.state
    newer = math.ceil((state.bytes - line) * state.messages / state.bytes) - 1
    message = await ledger.log.get(max(state.first_sequence, state.last_sequence - newer))
    return None if message is None else as_utc(message.stored_at)
