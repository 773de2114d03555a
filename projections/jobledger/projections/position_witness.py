"""A projection's position as a witness of the ledger's check: what it has read must still be there.

It costs one look at the file. That the rows are what the events add up to is `witness.ProjectionWitness`'s business.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from jobledger.audit.verify import Checker
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.log import Log
from jobledger.projections.errors import ProjectionMissingError
from jobledger.projections.position import Position
from jobledger.projections.queries import Store
from jobledger.projections.witness import WHAT


class PositionWitness:
    """A witness of `audit.verify`: finds an end that was cut off, and a last event that is another one."""

    def __init__(self, path: Path, position: Position, log: Log) -> None:
        """Read the position before the check begins: then a sound ledger reaches it."""
        self._path = path
        self._log = log
        self._hash = position.event_hash
        self._found: str | None = None  # the hash of the event at the position, once it was read
        self.stream_sequence = position.stream_sequence  #: that the file has read up to

    @classmethod
    def beside(cls, path: Path, log: Log) -> Self | None:
        """Return the witness for the file at `path`; None where there is none that has read of this ledger.

        Raises: ProjectionError for a file that cannot be used.
        """
        try:
            with Store.open(path) as store:
                position = store.position()
        except ProjectionMissingError:
            return None
        if not position.event_hash or position.environment != log.names.environment:
            return None
        return cls(path, position, log)

    def feed(self, batch: Sequence[Message]) -> None:
        """Take what was read; see `audit.Witness`."""
        if batch and batch[0].stream_sequence <= self.stream_sequence <= batch[-1].stream_sequence:
            held = (each.hash for each in batch if each.stream_sequence == self.stream_sequence)
            self._found = next(held, None)

    async def finish(self, checker: Checker) -> None:
        """Tell the checker what does not agree; see `audit.Witness`."""
        at, head = self.stream_sequence, await self._log.head()
        if at > head.last_sequence:
            first = head.last_sequence + 1
            sentence = (
                f"the tail is missing: the ledger ends at {head.last_sequence}, and {self._path} has read up to {at}, "
                "so it was rewound, re-created or damaged since"
            )
            checker.note("", "projection", sentence, stream_sequence=first)
            checker.compared(
                WHAT, f"{self._path} has read beyond the ledger's end, up to {at:,}", agrees=False
            )
            return
        if self._found is None and at >= head.first_sequence:
            with contextlib.suppress(CorruptLedgerError):  # which the check tells where it is asked to
                stored = await self._log.get(at)
                self._found = None if stored is None else stored.hash
        if self._found is None:
            checker.compared(WHAT, f"{self._path} was not compared: no event is held at {at:,}", agrees=True)
        elif self._found != self._hash:
            sentence = f"{self._path} has read another event there than the ledger holds"
            checker.note("", "projection", sentence, stream_sequence=at)
            checker.compared(WHAT, f"{self._path} has read another event at {at:,}", agrees=False)
        else:
            checker.compared(
                WHAT, f"the event at {at:,}, the last one that {self._path} has read, is there", agrees=True
            )
