"""The projection as it was at a past moment: the same fold, stopped early.

An answer is always exact: a snapshot, or the present projection, is only the place where the reading begins, and is not
used unless the event at its position is still in the ledger. Nothing of the present projection is changed.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncGenerator
from datetime import datetime
from pathlib import Path

import msgspec

from jobledger.ledger.model.archive_record import forgotten_past
from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.errors import SequenceGapError
from jobledger.ledger.model.log import Log, events_among
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived
from jobledger.ledger.model.times import time_text
from jobledger.projections.agreement import refuse_lost_beginning
from jobledger.projections.errors import MomentAheadError, MomentArchivedError
from jobledger.projections.past_files import PastFiles
from jobledger.projections.projector import ProgressCallback, ProjectorConfig
from jobledger.projections.queries.store import Store
from jobledger.projections.snapshots import SnapshotConfig, Snapshots


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the ledger's past."""

    stream_sequence: int  #: stream sequence of the newest event by then; 0 for the empty ledger
    at: datetime | None  #: the given time, else the time that event was stored; None before the first event


async def moment_of(
    log: Log, *, at: datetime | None = None, stream_sequence: int | None = None, clock: Clock = SYSTEM_CLOCK
) -> Moment:
    """Return the moment of a time or of a stream sequence; exactly one is given.

    A time is by the server's clock: the last event of the moment is the newest one stored at that microsecond or
    before.

    Raises: MomentAheadError for a future moment, MomentArchivedError for one that the ledger no longer holds,
        EventGapError if its events were lost, SequenceGapError, UnreachableError.
    """
    assert (at is None) != (stream_sequence is None), "a moment is a time or a sequence"
    head = await log.head()
    oldest = head.first_sequence - 1
    if at is not None:
        found = await _stored_until(log, at, oldest, head.last_sequence)
        if found == head.last_sequence and at > clock.now():
            raise MomentAheadError(f"{at.isoformat()} is still to come: ask for a past time")
    else:
        assert stream_sequence is not None, "one of the two is given"
        found = stream_sequence
        if found < 0:
            raise MomentAheadError(f"stream sequence {found} cannot be: sequences begin at 1")
        if found > head.last_sequence:
            sentence = f"stream sequence {found} is still to come: the ledger ends at {head.last_sequence}"
            raise MomentAheadError(sentence)
    if oldest and found <= oldest:
        await refuse_lost_beginning(log, found, head)
        what = f"the ledger begins at stream sequence {head.first_sequence}, and the moment asked for lies before that"
        to = str(found) if at is None else time_text(at)
        forgotten = await forgotten_past(log)
        if forgotten is not None and found <= forgotten.through_sequence:
            raise MomentArchivedError(what, to, f"{forgotten.words}, are gone for good")
        raise MomentArchivedError(f"{what}, in the archive", to)
    if at is None and found:
        last = await log.get(found)
        at = last.stored_at if last is not None else None
    return Moment(stream_sequence=found, at=at)


async def _stored_until(log: Log, at: datetime, low: int, high: int) -> int:
    """Return the newest sequence in (low, high] that was stored at `at` or before, `low` when there is none."""
    while low < high:
        middle = (low + high + 1) // 2
        message = await log.get(middle)
        if message is None:
            raise SequenceGapError(f"stream sequence {middle} is missing: see what `jobledger doctor` finds")
        if message.stored_at <= at:
            low = middle
        else:
            high = middle - 1
    return low


async def whole_from(log: Log) -> int:
    """Return the first stream sequence at which the ledger's own events give its whole state; 0: at every one.

    After an archive run it is the sequence of the run's last event: until then the run carries live jobs over, and the
    events that remain before it begin in the middle of jobs.

    Raises: CorruptLedgerError, UnreachableError.
    """
    first = (await log.head()).first_sequence
    if first == 1:
        return 0
    found = first
    chain = REACTOR.chain(log.names, ARCHIVE)
    async with contextlib.aclosing(log.read_messages(from_sequence=first, subject=chain)) as batches:
        async for batch in batches:
            for message in events_among(batch):
                event = REACTOR.decode(message)
                if isinstance(event, Archived) and event.through_sequence < first:  # else not purged yet
                    found = message.stream_sequence
    return found


async def refuse_archived(log: Log, stream_sequence: int) -> None:
    """Refuse a moment whose state does not follow from the ledger's own events any more.

    Raises: MomentArchivedError, and as `whole_from`.
    """
    begins = await whole_from(log)
    if stream_sequence < begins:
        what = (
            f"what jobs were at stream sequence {stream_sequence} is in the archive, and from the ledger alone "
            f"its state can be told from stream sequence {begins} on"
        )
        raise MomentArchivedError(what, str(stream_sequence))


@contextlib.asynccontextmanager
async def as_of(
    log: Log,
    path: Path | str,
    stream_sequence: int,
    *,
    progress: ProgressCallback | None = None,
    config: ProjectorConfig | None = None,
    snapshots: SnapshotConfig | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncGenerator[Store, None]:
    """Open the projection as the ledger's first `stream_sequence` events make it, for the length of the block.

    `path` is the present projection, whose snapshots are used and added to; it need not exist. The rows are in a
    temporary file, which is removed at the end.

    Raises: MomentArchivedError, ProjectionError in all its other kinds, and what `Log.read` raises.
    """
    await refuse_archived(log, stream_sequence)
    kept = Snapshots(path, config=snapshots, clock=clock)
    with tempfile.TemporaryDirectory(prefix="jobledger-", ignore_cleanup_errors=True) as folder:
        past = PastFiles(log, Path(path), Path(folder), snapshots=kept, config=config, clock=clock)
        with Store.open(await past.lend(stream_sequence, progress)) as store:
            yield store
