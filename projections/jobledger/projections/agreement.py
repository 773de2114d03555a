"""The check that a file and a ledger share their past: one definition for writers and for readers of the file.

A ledger that was rewound, re-created or silently damaged may end before the file's position, or hold another
event there. A projector that went on from there would add to rows of another past.
"""

from __future__ import annotations

from pathlib import Path

from jobledger.ledger.model.archive_record import newest_archived
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.log import Head, Log
from jobledger.ledger.model.times import time_text
from jobledger.projections.errors import EventGapError, PositionArchivedError, PositionMismatchError
from jobledger.projections.position import Position


async def refuse_disagreement(log: Log, path: Path, position: Position) -> None:
    """Return when a projector could go on from `position` in this ledger; the file is not touched.

    Raises: PositionMismatchError, PositionArchivedError, EventGapError, as `Projector.prepare` does, and what
        reading the ledger raises.
    """
    refuse_other_environment(log, path, position)
    head = await log.head()
    await refuse_lost_beginning(log, position.stream_sequence, head)
    if position.event_hash:
        refuse_archived_position(path, position, head)
    await refuse_other_past(log, path, position)


def refuse_other_environment(log: Log, path: Path, position: Position) -> None:
    """Refuse a file that was made from another environment's ledger.

    Raises: PositionMismatchError.
    """
    environment = log.names.environment
    if position.environment != environment:
        what = f"it was made from environment {position.environment!r} and this ledger is {environment!r}"
        advice = "name that environment with --environment, or another file with --projection"
        raise PositionMismatchError(path, position.stream_sequence, what, advice)


async def refuse_lost_beginning(log: Log, stream_sequence: int, head: Head) -> None:
    """Refuse a ledger that lost events after `stream_sequence`; it may only lack archived ones.

    Raises: EventGapError when it was lost.
    """
    if head.first_sequence <= max(1, stream_sequence) or head.is_part:
        return
    archived = await newest_archived(log)
    through = archived.through_sequence if archived is not None else 0
    if through < head.first_sequence - 1:
        raise EventGapError(through + 1, head.first_sequence)


def refuse_archived_position(path: Path, position: Position, head: Head) -> None:
    """Refuse a file that has not read events which are archived now.

    Raises: PositionArchivedError.
    """
    if position.stream_sequence < head.first_sequence - 1:
        raise PositionArchivedError(path, position.stream_sequence, head.first_sequence)


async def refuse_other_past(log: Log, path: Path, position: Position) -> None:
    """Compare the newest event in the rows with the ledger's event at that position.

    Raises: PositionMismatchError.
    """
    sequence = position.stream_sequence
    if not position.event_hash:
        return
    try:
        stored = await log.get(sequence)
    except CorruptLedgerError as error:
        what = "the event there can no longer be read"
        raise PositionMismatchError(path, sequence, what) from error
    if stored is not None and stored.hash == position.event_hash:
        return
    head = await log.head()
    if stored is None and sequence == head.first_sequence - 1:
        return  # an archive run removed the event after the projection read it
    what = f"the ledger has {'no' if stored is None else 'another'} event there"
    if head.made_at is not None and time_text(head.made_at) > (position.updated_at or ""):
        what += f", and was made at {time_text(head.made_at)}, after the projection last read: the older one is gone"
    raise PositionMismatchError(path, sequence, what)
