"""How far a run may go so that what it must carry fits: a slice of what may be moved. Reads only.

A run appends to the ledger before it takes anything away. So it goes only as far as that is at most half of the free
room, and at most a quarter of what goes away: many waiting jobs would eat up the gain. Source: ADR 062.
"""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

from jobledger.audit.archive.plan import Prefix, Progress
from jobledger.ledger.model.log import Head, Log

#: The part of the free room that a run may take for what it carries, and the part of what it frees.
ROOM_SHARE: Final = 0.5
GAIN_SHARE: Final = 0.25
#: What a run appends besides: counters, what is in force, and the record of the run itself.
_FIXED_BYTES: Final = 4 << 10


class Slice(NamedTuple):
    """A part of a ledger's beginning that a run can move."""

    through: int  #: the last stream sequence of it; 0: not even the first part can be moved
    frees: int  #: bytes that go away, less those that are carried
    waits: int  #: jobs that would be carried at the end of what was read


async def find_slice(
    log: Log, head: Head, last: int, *, wanted: int | None, on_progress: Progress | None = None
) -> Slice:
    """Return the longest slice up to `last` that can be moved, or the shortest that frees `wanted` bytes (None: all).

    Raises: CorruptLedgerError, UnreachableError.
    """
    found, best = Prefix(), Slice(0, 0, 0)
    events = head.last_sequence - head.first_sequence + 1
    per_event = head.stored_bytes / events if events else 0.0
    room = None if head.bytes_max is None else (head.bytes_max - head.stored_bytes) * ROOM_SHARE
    if last < head.first_sequence:
        return best
    async with contextlib.aclosing(log.read_messages(from_sequence=head.first_sequence)) as batches:
        async for batch in batches:
            part = [message for message in batch if message.stream_sequence <= last]
            found.feed(part)
            if not part:
                break
            gone, carried = found.events * per_event, found.carried_bytes + _FIXED_BYTES
            if on_progress is not None:
                on_progress(found.events, last - head.first_sequence + 1)
            if carried <= gone * GAIN_SHARE and (room is None or carried <= room):
                best = Slice(part[-1].stream_sequence, round(gone - carried), len(found.jobs))
                if wanted is not None and best.frees >= wanted:
                    break
            if part[-1].stream_sequence >= last:
                break
    return best._replace(waits=len(found.jobs))
