"""One look of a keeper, and what it moved."""

from __future__ import annotations

import msgspec


class MoveOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one look led to."""

    events: int = 0  #: events that were moved
    jobs_archived: int = 0
    jobs_carried: int = 0
    exports: tuple[str, ...] = ()
    first_sequence: int = 0  #: that of the ledger after the look
    values: int = 0  #: large values that were deleted, since no event named them any more
    values_bytes: int = 0  #: the bytes of these values
    forgotten: tuple[str, ...] = ()  #: the oldest exports of the archive, which were removed
    forgotten_events: int = 0  #: the events in these exports
    held_back_by: str = ""  #: why the next export stays, though it is old enough
    is_due: bool = False  #: there was something to move
    trouble: str = ""  #: why not as much was moved as should have been; "": it was
    unwritten: bool = False  #: the trouble is that the folder of the archive takes nothing

    @property
    def goes_on(self) -> bool:
        """Whether another run may move more at once."""
        return bool(self.events) and not self.trouble
