"""The Log in memory: the same contract as JetStream's, for tests of users and of our own.

Part of the package, so that an application's tests need no server. It holds everything until the process ends.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import (
    LedgerError,
    LedgerFullError,
    PayloadTooLargeError,
    SequenceGapError,
    WrongSequenceError,
)
from jobledger.ledger.model.log import (
    BATCH_MESSAGES_MAX,
    ChainEvents,
    Entry,
    Head,
    JobReads,
    readable,
    start_of,
)
from jobledger.ledger.model.subjects import Names, filter_pattern

_READ_BATCH: Final = 256
_ENTRY_BYTES_MAX: Final = 1 << 20
_ONE_CHAIN: Final = re.compile(r"[^.*]+\.[^.*]+\.[^.*]+\.[^.*]+\.>")  # as `Names.chain` writes it


class _KeptMessage(NamedTuple):
    """A message as a server would keep it: its reader finds out whether it is an event."""

    subject: str
    data: bytes
    stored_at: datetime


class MemoryLog(JobReads):
    """An in-process Log; `stored_bytes_max` makes it refuse when full, as the server does."""

    def __init__(
        self,
        *,
        names: Names | None = None,
        clock: Clock = SYSTEM_CLOCK,
        stored_bytes_max: int | None = None,
    ) -> None:
        self.names = names or Names()
        self._clock = clock
        self._stored_bytes_max = stored_bytes_max
        self._stored_bytes = 0
        self._kept: list[
            _KeptMessage
        ] = []  # index = stream sequence - 1; a purged message stays as an empty one
        self._purged = 0  # how many of them, from the beginning
        self._chains: dict[str, list[int]] = {}  # exact chain filter -> indexes
        self._arrived = asyncio.Event()

    def copy_from(self, other: MemoryLog, *, through: int | None = None) -> None:
        """Hold the messages of `other` up to stream sequence `through` (None: all), and go on alone.

        Earlier messages of this log are forgotten. Afterwards an append to one of both does not change the other.
        """
        end = len(other._kept) if through is None else min(through, len(other._kept))
        self._kept = other._kept[:end]
        self._purged = min(other._purged, end)
        self._chains = {
            chain: [index for index in indexes if index < end] for chain, indexes in other._chains.items()
        }
        self._stored_bytes = sum(len(kept.data) for kept in self._kept)
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def append(self, entries: Sequence[Entry]) -> int:
        """Store the entries as one; see `Log.append`."""
        return self._store(entries)

    def _store(self, entries: Sequence[Entry]) -> int:
        self._check(entries)
        first = self._sequence(len(self._kept))
        now = self._clock.now()
        for entry in entries:
            self._chains.setdefault(entry.chain, []).append(len(self._kept))
            self._kept.append(_KeptMessage(entry.subject, entry.data, now))
            self._stored_bytes += len(entry.data)
        self._wake_readers()
        return first

    def submit(self, entries: Sequence[Entry]) -> asyncio.Future[int]:
        """Append at once; see `Log.submit`."""
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            outcome.set_result(self._store(entries))
        except LedgerError as error:
            outcome.set_exception(error)
        return outcome

    def _check(self, entries: Sequence[Entry]) -> None:
        assert 0 < len(entries) <= BATCH_MESSAGES_MAX, "an append has 1 to 1,000 entries"
        conditioned: set[str] = set()
        for entry in entries:
            if len(entry.data) > _ENTRY_BYTES_MAX:
                raise PayloadTooLargeError("event", len(entry.data), _ENTRY_BYTES_MAX)
            assert (entry.expected is None) == (entry.chain in conditioned), (
                "a chain's first entry has its condition"
            )
            conditioned.add(entry.chain)
            if entry.expected is not None and self._last_of(entry.chain) != entry.expected:
                raise WrongSequenceError(entry.chain, entry.expected)
        size = sum(len(entry.data) for entry in entries)
        if self._stored_bytes_max is not None and self._stored_bytes + size > self._stored_bytes_max:
            message = f"the ledger holds its {self._stored_bytes_max:,} bytes: nothing more is stored"
            raise LedgerFullError(message)

    def _last_of(self, chain: str) -> int:
        indexes = self._chains.get(chain)
        return self._sequence(indexes[-1]) if indexes else 0

    def _sequence(self, index: int) -> int:
        """Return the stream sequence of what is kept at an index."""
        return index + 1

    async def read_chain(self, chain: str) -> ChainEvents:
        """Return the events of a chain; see `Log.read_chain`."""
        if _ONE_CHAIN.fullmatch(chain):
            return ChainEvents(self._message(index) for index in self._chains.get(chain, []))
        fits = filter_pattern(chain)
        found = (index for index in self._held() if fits.fullmatch(self._kept[index].subject))
        return ChainEvents(self._message(index) for index in found)

    async def last(self, chain: str) -> Message | None:
        """Return the newest message of a chain; see `Log.last`."""
        if _ONE_CHAIN.fullmatch(chain):
            indexes = self._chains.get(chain)
            return self._message(indexes[-1]) if indexes else None
        fits = filter_pattern(chain)
        newest_first = reversed(self._held())
        return next(
            (self._message(index) for index in newest_first if fits.fullmatch(self._kept[index].subject)),
            None,
        )

    def _held(self) -> range:
        """Return the indexes of what is held."""
        return range(self._purged, len(self._kept))

    def _message(self, index: int) -> Message:
        kept = self._kept[index]
        return read_message(kept.subject, kept.data, self._sequence(index), kept.stored_at)

    async def get(self, stream_sequence: int) -> Message | None:
        """Return one event; see `Log.get`."""
        return self._message(stream_sequence - 1) if stream_sequence - 1 in self._held() else None

    async def present(self, subjects: Sequence[str]) -> set[str]:
        """Return the subjects that are in use; see `Log.present`."""
        return set(subjects) & {self._kept[index].subject for index in self._held()}

    async def head(self) -> Head:
        """Return both ends; see `Log.head`."""
        return self._ends()

    def _ends(self) -> Head:
        first, last = self._purged + 1, len(self._kept)
        return Head(
            first_sequence=first,
            last_sequence=last,
            stored_bytes=self._stored_bytes,
            bytes_max=self._stored_bytes_max,
        )

    async def purge(self, through: int) -> None:
        """Take a prefix away; see `Log.purge`."""
        end = min(through, len(self._kept))
        for index in range(self._purged, end):
            kept = self._kept[index]
            self._stored_bytes -= len(kept.data)
            self._kept[index] = _KeptMessage("", b"", kept.stored_at)
        self._purged = max(self._purged, end)
        for chain, indexes in list(self._chains.items()):
            self._chains[chain] = [index for index in indexes if index >= self._purged]

    async def read_messages(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield everything in stream order; see `Log.read_messages`."""
        last = len(self._kept)
        position = start_of(self._ends(), from_sequence) - 1
        fits = filter_pattern(subject) if subject is not None else None
        while follow or position < last:
            if position >= len(self._kept):
                await self._arrived.wait()
                continue
            if position < self._purged:
                message = (
                    f"stream sequence {position + 1} was moved into an archive while the ledger was read"
                )
                raise SequenceGapError(message, stream_sequence=position + 1, next_sequence=self._purged + 1)
            end = min(position + _READ_BATCH, len(self._kept) if follow else last)
            wanted = range(position, end)
            if from_time is not None:
                wanted = self._since(from_time, wanted)
                from_time = (
                    None if wanted else from_time
                )  # after the first one all messages count, even with an earlier time
            fitting = [index for index in wanted if not fits or fits.fullmatch(self._kept[index].subject)]
            batch, problem = readable(fitting, self._message)
            position = end
            if batch:
                yield batch
            if problem is not None:
                raise problem

    def _since(self, moment: datetime, indexes: range) -> range:
        first = next((index for index in indexes if self._kept[index].stored_at >= moment), indexes.stop)
        return range(first, indexes.stop)
