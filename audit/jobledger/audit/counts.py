"""What was counted before the ledger's beginning was archived: stored in parts beside `archived`, and found again.

What is counted, and how, is a projection's business: here are only names and numbers. Source: ADR 012.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Final

import msgspec

from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.log import Log, end_of_chain, events_among
from jobledger.ledger.model.reactor import (
    ARCHIVE,
    REACTOR,
    Archived,
    Counted,
    CountedFailure,
    CountedJob,
    CountedTask,
    ReactorEvent,
)

#: The most bytes of a part's rows: its event must fit into a message, whatever the server's limit is.
_PART_BYTES_MAX: Final = 128 << 10

_size: Final = msgspec.json.Encoder().encode
_Row = CountedTask | CountedFailure | CountedJob


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was counted up to an event; see `reactor_events.Counted` for the fields."""

    through_sequence: int
    begins_at: int
    columns: tuple[str, ...]
    spread_columns: tuple[str, ...] = ()
    totals: tuple[CountedTask, ...]
    failure_columns: tuple[str, ...]
    failures: tuple[CountedFailure, ...]
    jobs: tuple[CountedJob, ...]


#: Counts everything up to the ledger's end as it is; reports events done and events wanted.
CountEverything = Callable[[Callable[[int, int], None]], Awaitable[Counts]]


def counted_parts(counts: Counts, archive_through: int, stamp: Stamp) -> list[Counted]:
    """Return the parts to append, in this order; at least one."""
    cuts = list(_cut((*counts.totals, *counts.failures, *counts.jobs)))
    return [
        Counted(
            reactor=ARCHIVE,
            at=stamp.at,
            by=stamp.by,
            archive_through=archive_through,
            through_sequence=counts.through_sequence,
            begins_at=counts.begins_at,
            part=number,
            parts=len(cuts),
            columns=counts.columns,
            spread_columns=counts.spread_columns,
            totals=tuple(row for row in cut if isinstance(row, CountedTask)),
            failure_columns=counts.failure_columns,
            failures=tuple(row for row in cut if isinstance(row, CountedFailure)),
            jobs=tuple(row for row in cut if isinstance(row, CountedJob)),
        )
        for number, cut in enumerate(cuts, start=1)
    ]


def _cut(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    part: list[_Row] = []
    size = 0
    for row in rows:
        row_bytes = len(_size(row))
        if part and size + row_bytes > _PART_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(row)
        size += row_bytes
    yield part


async def append_counts(log: Log, parts: Sequence[Counted]) -> None:
    """Append the parts of a count, each on condition that it follows the one before.

    Raises: WrongSequenceError when another run appends its own, LedgerFullError, PayloadTooLargeError,
        UnreachableError.
    """
    for part in parts:
        chain = REACTOR.chain(log.names, ARCHIVE)
        last = await end_of_chain(log, chain)
        if part.part > 1 and (last.event is None or not _precedes(REACTOR.decode(last.event), part)):
            raise WrongSequenceError(chain, last.last_sequence)
        await log.append(REACTOR.link(log.names, [part], REACTOR.view(*last)))


def _precedes(event: ReactorEvent, part: Counted) -> bool:
    return (
        isinstance(event, Counted)
        and event.part == part.part - 1
        and (event.parts, event.archive_through, event.through_sequence)
        == (part.parts, part.archive_through, part.through_sequence)
    )


async def counts_before(log: Log, first_sequence: int) -> Counts | None:
    """Return what had been counted when a ledger that begins at `first_sequence` lost its beginning to the archive.

    None if nothing was counted then. It counts more than the archived events: all up to `through_sequence`, also those
    that the ledger still holds.

    Raises: CorruptLedgerError, UnreachableError.
    """
    parts: list[Counted] = []
    begins = 0  # the stream sequence of the first part
    async with contextlib.aclosing(_chain(log, first_sequence)) as events:
        async for sequence, event in events:
            if isinstance(event, Counted):
                if event.part == 1:
                    parts, begins = [], sequence
                parts.append(event)
            elif isinstance(event, Archived):
                if event.through_sequence == first_sequence - 1:
                    return _joined(parts, event, begins)
                parts = []
    return None


async def _chain(log: Log, first_sequence: int) -> AsyncGenerator[tuple[int, ReactorEvent], None]:
    batches = log.read_messages(from_sequence=first_sequence, subject=REACTOR.chain(log.names, ARCHIVE))
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in events_among(batch):
                yield message.stream_sequence, REACTOR.decode(message)


def _joined(parts: Sequence[Counted], archived: Archived, begins: int) -> Counts | None:
    """Return a count put together again; None if parts are missing, of another run, or do not fit."""
    if not parts or parts[0].archive_through != archived.through_sequence:
        return None
    first = parts[0]
    said = [(each.part, each.parts, each.through_sequence) for each in parts]
    if said != [(number, len(parts), first.through_sequence) for number in range(1, len(parts) + 1)]:
        return None
    if not archived.through_sequence <= first.through_sequence < begins:
        return None
    widths = {len(row.counts) - len(first.columns) for part in parts for row in part.totals}
    widths |= {len(row.spreads) - len(first.spread_columns) for part in parts for row in part.totals}
    widths |= {len(row.counts) - len(first.failure_columns) for part in parts for row in part.failures}
    if widths - {0}:
        return None
    return Counts(
        through_sequence=first.through_sequence,
        begins_at=first.begins_at,
        columns=first.columns,
        spread_columns=first.spread_columns,
        totals=tuple(row for part in parts for row in part.totals),
        failure_columns=first.failure_columns,
        failures=tuple(row for part in parts for row in part.failures),
        jobs=tuple(row for part in parts for row in part.jobs),
    )
