"""Exports behind the Log protocol, to be read by whatever reads a ledger: one alone, or as the past of a live one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn

import anyio.to_thread

from jobledger.audit.errors import NotAnExportError
from jobledger.audit.export.files import Damage, EventFile, Row, as_message, next_rows
from jobledger.audit.export.manifest import (
    Manifest,
    Previous,
    export_folder,
    named_sha256,
    read_manifest,
)
from jobledger.audit.export.reader import check_file, event_file
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import InvalidInputError, RefusedError, SequenceGapError
from jobledger.ledger.model.log import ChainEvents, Entry, Head, JobReads, Log, readable
from jobledger.ledger.model.subjects import Names, filter_pattern

_READ_BATCH: Final = 256
_Fits = Callable[[str], object]


class _ReadOnly(JobReads):
    """Refuses what would change something."""

    async def append(self, entries: Sequence[Entry]) -> int:
        """Refuse.

        Raises: RefusedError.
        """
        self._refuse(entries)

    def submit(self, entries: Sequence[Entry]) -> asyncio.Future[int]:
        """Refuse.

        Raises: RefusedError.
        """
        self._refuse(entries)

    async def purge(self, through: int) -> None:
        """Refuse.

        Raises: RefusedError.
        """
        raise RefusedError(f"an export is read only: nothing up to {through:,} was taken away")

    def _refuse(self, entries: Sequence[Entry]) -> NoReturn:
        raise RefusedError(f"an export is read only: {len(entries):,} events were not stored")


class ExportLog(_ReadOnly):
    """One export as a log: events are read from its files, each of which is checked before its first use.

    Memory does not grow with the export. A read of one chain reads every event, since there is no index of chains.
    An export of a selection has holes in its sequence; they are not reported.
    """

    def __init__(self, folder: Path, names: Names | None = None) -> None:
        """Open the export in `folder`; `names` is the environment it has to be of.

        Raises: as `read_manifest`; NotAnExportError for an export of another environment.
        """
        self.folder = export_folder(folder)
        self.manifest: Manifest = read_manifest(folder)
        self.names = Names(self.manifest.environment) if names is None else names
        if self.names.environment != self.manifest.environment:
            raise NotAnExportError(
                f"{folder} is of environment {self.manifest.environment!r}, not of {self.names.environment!r}"
            )
        self._files: list[EventFile] = [event_file(self.folder, entry) for entry in self.manifest.files]
        self._checked: set[str] = set()

    @property
    def previous(self) -> Previous:
        """How the export that continues this one names it."""
        return Previous(
            manifest_sha256=named_sha256(self.folder, self.manifest),
            last_sequence=self.manifest.last_sequence,
            head_hash=self.manifest.head_hash,
        )

    async def head(self) -> Head:
        """Return both ends of the range; see `Log.head`."""
        return Head(
            first_sequence=self.manifest.first_sequence,
            last_sequence=self.manifest.last_sequence,
            stored_bytes=sum(entry.bytes for entry in self.manifest.files),
            is_part=self.manifest.first_sequence > 1,
        )

    async def get(self, stream_sequence: int) -> Message | None:
        """Return one event; see `Log.get`."""
        async with contextlib.aclosing(self._batches(stream_sequence, None, None, limit=1)) as batches:
            async for batch in batches:
                return batch[0] if batch[0].stream_sequence == stream_sequence else None
        return None

    async def read_chain(self, chain: str) -> ChainEvents:
        """Return the events that fit a filter, by reading every event; see `Log.read_chain`."""
        found: list[Message] = []
        async with contextlib.aclosing(self._batches(1, None, chain)) as batches:
            async for batch in batches:
                found += batch
        return ChainEvents(found)

    async def last(self, chain: str) -> Message | None:
        """Return the newest that fits a filter, by reading every event; see `Log.last`."""
        found: Message | None = None
        async with contextlib.aclosing(self._batches(1, None, chain)) as batches:
            async for batch in batches:
                found = batch[-1]
        return found

    async def present(self, subjects: Sequence[str]) -> set[str]:
        """Return which subjects are in use, by reading every event; see `Log.present`."""
        wanted, found = set(subjects), set[str]()
        async with contextlib.aclosing(self._batches(1, None, None)) as batches:
            async for batch in batches:
                found.update(wanted.intersection(message.subject for message in batch))
        return found

    async def read_messages(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield everything in stream order; see `Log.read_messages`.

        Raises: InvalidInputError with `follow`; SequenceGapError for a beginning outside of the range;
            ExportDamagedError, UnknownEventError, MalformedEventError.
        """
        if follow:
            raise InvalidInputError(
                f"{self.folder} is an export: nothing is added to it, so it cannot be followed"
            )
        first, last = self.manifest.first_sequence, self.manifest.last_sequence
        if from_sequence > last + 1:
            raise SequenceGapError(
                f"the export ends at stream sequence {last}, before {from_sequence}: it is another one"
            )
        if 1 < from_sequence < first and self.manifest.complete and subject is None and from_time is None:
            message = f"the export begins at stream sequence {first}: {from_sequence} is not in it"
            raise SequenceGapError(message, stream_sequence=from_sequence, next_sequence=first)
        async with contextlib.aclosing(self._batches(from_sequence, from_time, subject)) as batches:
            async for batch in batches:
                yield batch

    async def _batches(
        self, from_sequence: int, from_time: datetime | None, subject: str | None, limit: int = _READ_BATCH
    ) -> AsyncGenerator[list[Message], None]:
        fits: _Fits | None = None if subject is None else filter_pattern(subject).fullmatch
        for file in self._files:
            if file.entry.last_sequence < from_sequence:
                continue
            await self._check(file)
            with contextlib.closing(file.rows(from_sequence)) as rows:
                while taken := await anyio.to_thread.run_sync(next_rows, rows, limit):
                    if from_time is not None:
                        taken = _since(from_time, taken)
                        if taken:
                            from_time = None  # all events after the first are wanted, whatever their times
                    wanted = taken if fits is None else [row for row in taken if _fitting(row, fits)]
                    batch, problem = readable(wanted, functools.partial(as_message, file))
                    if batch:
                        yield batch
                    if problem is not None:
                        raise problem

    async def _check(self, file: EventFile) -> None:
        """Check a file's bytes when it is first read; one that is damaged is damaged every time."""
        if file.entry.name not in self._checked:
            await anyio.to_thread.run_sync(check_file, file)
            self._checked.add(file.entry.name)


def _fitting(row: Row | Damage, fits: _Fits) -> bool:
    return isinstance(row, Damage) or fits(row.subject) is not None


def _since(moment: datetime, rows: list[Row | Damage]) -> list[Row | Damage]:
    at = next((at for at, row in enumerate(rows) if isinstance(row, Row) and row.stored_at >= moment), None)
    return [] if at is None else rows[at:]


class JoinedLog(_ReadOnly):
    """Exports of a ledger's past, and the ledger for what came after: read as if nothing had ever been taken out.

    The live log may still hold what the exports hold; it is then read from them.
    """

    def __init__(self, archives: Sequence[ExportLog], live: Log, *, linked: bool = True) -> None:
        """Join exports, the oldest first, each naming the one before it, and the log that goes on behind the last.

        With `linked` False they may name others, but still begin where the one before ends: for a check that
        compares them with the ledger.

        Raises: NotAnExportError where they do not follow each other.
        """
        self.names = live.names
        self._archives = list(archives)
        self._live = live
        for export in self._archives:
            if export.names.environment != self.names.environment:
                raise NotAnExportError(
                    f"{export.folder} is of environment {export.names.environment!r}, "
                    f"the ledger is {self.names.environment!r}"
                )
            if not export.manifest.complete:
                raise NotAnExportError(
                    f"{export.folder} holds a selection of the events: it is no past of a ledger"
                )
        for older, newer in pairwise(self._archives):
            if linked and newer.manifest.previous != older.previous:
                raise NotAnExportError(
                    f"{newer.folder} does not continue {older.folder}: its manifest names another one"
                )
            if newer.manifest.first_sequence != older.manifest.last_sequence + 1:
                raise NotAnExportError(f"{newer.folder} does not begin where {older.folder} ends")

    @property
    def archived_through(self) -> int:
        """The last sequence that comes from an export; 0 without any."""
        return self._archives[-1].manifest.last_sequence if self._archives else 0

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where the exports lie, the oldest first."""
        return tuple(export.folder for export in self._archives)

    async def head(self) -> Head:
        """Return the first export's beginning and the live log's end; see `Log.head`."""
        live = await self._live.head()
        if not self._archives:
            return live
        exported = [await export.head() for export in self._archives]
        return Head(
            first_sequence=exported[0].first_sequence,
            last_sequence=max(live.last_sequence, self.archived_through),
            stored_bytes=live.stored_bytes + sum(each.stored_bytes for each in exported),
            is_part=exported[0].is_part,
        )

    async def get(self, stream_sequence: int) -> Message | None:
        """Return one event; see `Log.get`."""
        for export in self._archives:
            if stream_sequence <= export.manifest.last_sequence:
                return await export.get(stream_sequence)
        return await self._live.get(stream_sequence)

    async def read_chain(self, chain: str) -> ChainEvents:
        """Return a whole chain, by reading every export; see `Log.read_chain`."""
        parts = [await export.read_chain(chain) for export in self._archives]
        live = await self._live.read_chain(chain)
        found = ChainEvents(stored for part in parts for stored in part)
        found += [stored for stored in live if stored.stream_sequence > self.archived_through]
        found.last_sequence = max(part.last_sequence for part in (*parts, live))
        return found

    async def last(self, chain: str) -> Message | None:
        """Return the newest that fits a filter; see `Log.last`."""
        found = await self._live.last(chain)
        for export in reversed(self._archives):
            if found is not None:
                break
            found = await export.last(chain)
        return found

    async def present(self, subjects: Sequence[str]) -> set[str]:
        """Return which subjects are in use; see `Log.present`."""
        found = await self._live.present(subjects)
        for export in self._archives:
            found |= await export.present(subjects)
        return found

    async def read_messages(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield everything in stream order, first from the exports; see `Log.read_messages`."""
        for export in self._archives:
            if from_sequence > export.manifest.last_sequence:
                continue
            found = export.read_messages(from_sequence=from_sequence, from_time=from_time, subject=subject)
            async with contextlib.aclosing(found) as batches:
                async for batch in batches:
                    from_time = None
                    yield batch
            from_sequence = export.manifest.last_sequence + 1
        if self._archives:
            live = await self._live.head()
            if live.last_sequence < self.archived_through:
                raise SequenceGapError(
                    f"the ledger ends at stream sequence {live.last_sequence}, and the exports go up to "
                    f"{self.archived_through}: it was rewound or replaced"
                )
            if live.last_sequence + 1 == from_sequence and not follow:
                return  # nothing came after the exports, and the live log may have no events left to begin at
        behind = max(from_sequence, self.archived_through + 1)
        found = self._live.read_messages(
            from_sequence=behind, from_time=from_time, subject=subject, follow=follow
        )
        async with contextlib.aclosing(found) as batches:
            async for batch in batches:
                yield batch
