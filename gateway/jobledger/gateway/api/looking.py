"""Lists that are read from the projection: which moment they show, and what of them the asker may see."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from datetime import datetime

import msgspec

from jobledger.admin.rows import View
from jobledger.gateway.api.asking import Looked
from jobledger.gateway.http.asked import Asked


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which moment a list shows."""

    sequence: int  #: of the newest event that is in it
    at: datetime | None  #: when the list was brought there; None before the first event
    behind_events: int  #: how many events came since; 0 for a list of the past
    begins_at: int  #: the first sequence that is in it; above 1 an archive holds what was before


@contextlib.asynccontextmanager
async def looking(asked: Asked, query: Looked) -> AsyncGenerator[tuple[View, Place], None]:
    """Open the rows for the length of a block, as they are or were.

    Raises: ProblemError, ProjectionError, UnreachableError.
    """
    past = query.as_of()
    async with asked.gateway.projection.opened(past, min_sequence=query.min_sequence) as view:
        position = view.store.position()
        newest = position.stream_sequence if past is not None else asked.gateway.feed.head
        yield (
            view,
            Place(
                sequence=position.stream_sequence,
                at=None if position.updated_at is None else datetime.fromisoformat(position.updated_at),
                behind_events=max(0, newest - position.stream_sequence),
                begins_at=position.begins_at,
            ),
        )
