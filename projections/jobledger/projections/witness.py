"""A projection as a witness in the ledger's check: its newest event must still exist, and its rows must agree.

`PositionWitness` reads only the position in the file; `RowsWitness` uses `compare.verify`, which reads the ledger
again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from jobledger.audit.verify import Checker, CrossCheck
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.log import Log
from jobledger.projections.compare import verify
from jobledger.projections.errors import DamagedProjectionError, ProjectionError, ProjectionMissingError
from jobledger.projections.position import Position
from jobledger.projections.queries.store import Store

WHAT: Final = "projection"


class PositionWitness:
    """A witness of `audit.verify`: finds that the ledger's end is missing, or that the last event read has changed."""

    def __init__(self, path: Path, position: Position, log: Log) -> None:
        """Call it before the check reads the ledger, so that a sound ledger reaches the position."""
        self._path = path
        self._log = log
        self._hash = position.event_hash
        self._found: str | None = None  # the hash of the event at the position, once it was read
        self.stream_sequence = position.stream_sequence  #: position of the file

    @classmethod
    def beside(cls, path: Path, log: Log) -> Self | None:
        """Return the witness for the file at `path`; None if no file there has read this ledger.

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
        """Take an event of the ledger; see `audit.Witness`."""
        if batch and batch[0].stream_sequence <= self.stream_sequence <= batch[-1].stream_sequence:
            held = (each.hash for each in batch if each.stream_sequence == self.stream_sequence)
            self._found = next(held, None)

    async def finish(self, checker: Checker) -> None:
        """Report disagreements to the checker; see `audit.Witness`."""
        at, head = self.stream_sequence, await self._log.head()
        if at > head.last_sequence:
            first = head.last_sequence + 1
            sentence = (
                f"the tail is missing: the ledger ends at {head.last_sequence}, and {self._path} has read up to {at}, "
                "so it was rewound, re-created or damaged since"
            )
            checker.note("", "projection", sentence, stream_sequence=first)
            self._say(checker, f"{self._path} has read beyond the ledger's end, up to {at:,}", agrees=False)
            return
        if self._found is None and at >= head.first_sequence:
            with contextlib.suppress(CorruptLedgerError):  # the check reports it, if it covers that event
                stored = await self._log.get(at)
                self._found = None if stored is None else stored.hash
        if self._found is None:
            self._say(checker, f"{self._path} was not compared: no event is held at {at:,}", agrees=None)
        elif self._found != self._hash:
            sentence = f"{self._path} has read another event there than the ledger holds"
            checker.note("", "projection", sentence, stream_sequence=at)
            self._say(checker, f"{self._path} has read another event at {at:,}", agrees=False)
        else:
            sentence = f"the event at {at:,}, the last one that {self._path} has read, is there"
            self._say(checker, sentence, agrees=True)

    def _say(self, checker: Checker, sentence: str, *, agrees: bool | None) -> None:
        through = 0 if agrees is None else self.stream_sequence
        checker.compared(CrossCheck(what=WHAT, sentence=sentence, agrees=agrees, through=through))


class FormerWitness:
    """A witness of `audit.verify` that has read only a former ledger, which was at the same place."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def feed(self, batch: Sequence[Message]) -> None:
        """Ignore the event; see `audit.Witness`."""

    async def finish(self, checker: Checker) -> None:
        """Report to the checker that nothing was compared; see `audit.Witness`."""
        checker.compared(CrossCheck(what=WHAT, sentence=self._sentence, agrees=None))


class RowsWitness:
    """A witness of `audit.verify`: finds rows that differ from those of the events, as `projection verify` does."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._log = log

    def feed(self, batch: Sequence[Message]) -> None:
        """Ignore the event; see `audit.Witness`."""

    async def finish(self, checker: Checker) -> None:
        """Report disagreements to the checker; see `audit.Witness`."""
        try:
            position, found = await verify(self._log, self._path)
        except DamagedProjectionError as error:
            checker.note("", "projection", str(error))
            checker.compared(
                CrossCheck(what=WHAT, sentence=f"{self._path} was not compared: {error}", agrees=False)
            )
        except (ProjectionError, CorruptLedgerError) as error:  # the check reports the ledger's faults
            checker.compared(
                CrossCheck(what=WHAT, sentence=f"{self._path} was not compared: {error}", agrees=None)
            )
        else:
            at = position.stream_sequence
            if found is None:
                sentence = f"{self._path} is what the events up to stream sequence {at:,} add up to"
            else:
                sentence = f"{self._path} differs: {found.sentence}"
                checker.note("", "projection", sentence, stream_sequence=at)
            checker.compared(CrossCheck(what=WHAT, sentence=sentence, agrees=found is None))
