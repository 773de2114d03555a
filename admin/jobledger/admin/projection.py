"""How far a projection is, and whether it can go on in its ledger."""

from __future__ import annotations

from pathlib import Path

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.projections import (
    EventGapError,
    Position,
    PositionArchivedError,
    PositionMismatchError,
    ProjectionError,
    ProjectionMissingError,
    Store,
)
from jobledger.projections.agreement import refuse_disagreement


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A projection beside its ledger."""

    projection: str  #: the file
    exists: bool
    position: int  #: stream sequence of the last event in the rows; 0 without a file
    head: int  #: the ledger's last stream sequence
    begins_at: int  #: first stream sequence that the rows know of
    counts_begin_at: int | None  #: first stream sequence that the counts include
    missing: str  #: a sentence on what the rows lack, "" if they have all
    problem: str  #: why it cannot go on in this ledger, "" if it can
    lag_events: int | None  #: None when it cannot go on: its rows may come from a ledger with another history
    lag_s: float | None  #: age of the oldest event that is not in the rows, by this machine's clock
    updated_at: str | None
    schema_version: int | None
    size_bytes: int


async def projection_status(ledger: Ledger, path: Path) -> tuple[ProjectionStatus, ProjectionError | None]:
    """Return what is known of a projection beside its ledger, and why it cannot go on there, None if it can.

    Raises: UnreachableError, and ProjectionError for a file that cannot be read.
    """
    try:
        with Store.open(path) as store:
            position: Position | None = store.position()
        size_bytes = _size_bytes(path)
    except ProjectionMissingError:
        position, size_bytes = None, 0
    # Read after the position: else a sound ledger could look shorter than the projection.
    head = await ledger.log.head()
    problem = None if position is None else await _disagreement(ledger, path, position)
    at = position.stream_sequence if position is not None else 0
    unread = None
    if problem is None and at < head.last_sequence:
        unread = await ledger.log.get(max(at + 1, head.first_sequence))
    lag_s = max(0.0, (ledger.clock.now() - unread.stored_at).total_seconds()) if unread else 0.0
    status = ProjectionStatus(
        projection=str(path),
        exists=position is not None,
        position=at,
        head=head.last_sequence,
        begins_at=position.begins_at if position is not None else head.first_sequence,
        counts_begin_at=position.counts_begin_at if position is not None else None,
        missing=position.missing if position is not None else "",
        problem="" if problem is None else str(problem),
        lag_events=max(0, head.last_sequence - max(at, head.first_sequence - 1)) if problem is None else None,
        lag_s=lag_s if problem is None else None,
        updated_at=position.updated_at if position is not None else None,
        schema_version=position.schema_version if position is not None else None,
        size_bytes=size_bytes,
    )
    return status, problem


async def _disagreement(ledger: Ledger, path: Path, position: Position) -> ProjectionError | None:
    try:
        await refuse_disagreement(ledger.log, path, position)
    except (PositionMismatchError, PositionArchivedError, EventGapError) as error:
        return error
    return None


def _size_bytes(path: Path) -> int:
    return path.stat().st_size
