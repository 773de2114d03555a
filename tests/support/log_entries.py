"""Entries and chains that tests of logs append, and their reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import msgspec
from tests.support import limits

from jobledger.ledger.model.codec import StoredEvent, digest, encode
from jobledger.ledger.model.events import Cancelled, JobEvent, Queued
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.subjects import JobRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LIMIT_S = limits.LIMIT_S


def event(
    job_id: str = "j1", *, queue: str = "email", by: str = "w", text: str = "", last: bool = False
) -> JobEvent:
    """Any event will do: a log looks only at its link. `text` makes its bytes what the test wants."""
    kind = Cancelled if last else Queued
    made: JobEvent = kind(job=job_id, queue=queue, task="t", at=NOW, by=by, trace=text)
    return made


def entry(log: Log, expected: int | None, job_event: JobEvent | None = None) -> Entry:
    job_event = job_event or event()
    chain = log.names.chain(JobRef(queue=job_event.queue, job_id=job_event.job))
    return Entry(log.names.event(job_event), encode(job_event), chain, expected)


def link(log: Log, before: Entry, expected: int | None, job_event: JobEvent) -> Entry:
    """Go on after `before` as every writer does: with its hash."""
    return entry(log, expected, msgspec.structs.replace(job_event, prev=digest(before.data)))


def links(log: Log, count: int, *, after: Entry | None = None, expected: int = 0) -> list[Entry]:
    """Return `count` entries of one chain, to be appended as one."""
    made: list[Entry] = []
    for number in range(count):
        one, before = event(by=f"w{number}"), (made[-1] if made else after)
        given = None if made else expected
        made.append(entry(log, given, one) if before is None else link(log, before, given, one))
    return made


def chain_of(log: Log, job_id: str = "j1", queue: str = "email") -> str:
    return log.names.chain(JobRef(queue=queue, job_id=job_id))


async def fill(log: Log, count: int) -> list[bytes]:
    """Append `count` events, each the first of a chain of its own; return their bytes in order."""
    entries = [entry(log, 0, event(f"fill-{number}")) for number in range(count)]
    for start in range(0, count, 500):
        await log.append(entries[start : start + 500])
    return [each.data for each in entries]


def reading(
    batches: AsyncIterator[list[StoredEvent]],
) -> AbstractAsyncContextManager[AsyncGenerator[list[StoredEvent], None]]:
    return aclosing(cast("AsyncGenerator[list[StoredEvent], None]", batches))


async def collect(
    batches: AsyncIterator[list[StoredEvent]], *, into: list[StoredEvent] | None = None
) -> list[StoredEvent]:
    async with reading(batches) as reader, asyncio.timeout(LIMIT_S):
        found: list[StoredEvent] = [] if into is None else into
        async for batch in reader:
            assert 1 <= len(batch) <= 1_000
            found.extend(batch)
        return found


def sequences(events: Sequence[StoredEvent]) -> list[int]:
    return [stored.stream_sequence for stored in events]
