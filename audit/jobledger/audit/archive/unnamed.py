"""Large values that no event names any more: marked first, and deleted half a day later if still nothing names them.

Whoever refers to a marked value writes it again, and who read it before it was marked has half a day to append the event
that names it. An event names a value wherever in it the value's digest stands, whatever the event is about. Nothing is
deleted after a look during which events were moved out of the ledger. A pass that is cut off has deleted nothing that a
whole one would not delete; the next one begins again. Source: ADR 069.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from jobledger.audit.archive.chain import archive_chain
from jobledger.audit.export import ExportLog, Manifest
from jobledger.audit.verify.store import scratch, translated
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import SequenceGapError
from jobledger.ledger.model.forms import MARKED_FORM
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import is_token
from jobledger.ledger.nats.stored_values import StoredValue, StoredValues

#: A value is marked when its info is older, and deleted when its mark is.
GRACE: Final = timedelta(hours=12)
#: What no info names, and infos of values that somebody removed, go when they are older. Nobody stores a value for so long.
LEFT: Final = timedelta(hours=24)

#: How a reference to a value stands in any event: also in text within text, where quotes are escaped.
_REFERENCE: Final = re.compile(rb'sha256\\*"\s*:\s*\\*"([0-9a-f]{64})')
_CACHE_BYTES: Final = 4 << 20
_ROWS_AT_ONCE: Final = 500
_WHAT: Final = "the keeper cannot put aside which large values there are"
_ADVICE: Final = "make room there, or set TMPDIR to a folder that has it"


class ClearedValues(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass did."""

    marked: int = 0  #: that no event names
    kept: int = 0  #: whose mark was taken away, since an event names them again
    deleted: int = 0
    bytes: int = 0  #: of those that were deleted
    places: int = 0  #: where chunks of values were that nothing names
    is_late: bool = False  #: events were moved meanwhile, so nothing was done


class _BucketValues:
    """The values in the bucket, put aside on the disk; call `close`, also after an error."""

    def __init__(self) -> None:
        self._connection = scratch(_CACHE_BYTES)
        with translated(_WHAT, _ADVICE):
            self._connection.execute(
                "CREATE TEMP TABLE found (name TEXT PRIMARY KEY, value BLOB NOT NULL, place TEXT NOT NULL, "
                "is_named INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID"
            )
            self._connection.execute("CREATE INDEX temp.place_of ON found (place)")

    def add(self, value: StoredValue) -> None:
        """Take a value; one that was written meanwhile comes once more. Raises: ScratchSpaceError."""
        name = value.name if value.is_ours else f"message {value.sequence}"
        with translated(_WHAT, _ADVICE):
            self._connection.execute(
                "INSERT OR REPLACE INTO found (name, value, place) VALUES (?, ?, ?)",
                (name, msgspec.msgpack.encode(value), value.place),
            )

    def name(self, messages: Iterable[Message]) -> None:
        """Note which values these events name. Raises: ScratchSpaceError."""
        names = {match.decode() for message in messages for match in _REFERENCE.findall(message.data)}
        if names:
            with translated(_WHAT, _ADVICE):
                self._connection.executemany(
                    "UPDATE found SET is_named = 1 WHERE name = ?", [(each,) for each in names]
                )

    def values(self) -> Iterator[tuple[StoredValue, bool]]:
        """Yield each value, and whether an event names it; those that are not ours are left out."""
        after = ""
        while rows := self._after(after):
            for _, data, is_named in rows:
                value = msgspec.msgpack.decode(data, type=StoredValue)
                if value.is_ours:
                    yield value, bool(is_named)
            after = rows[-1][0]

    def _after(self, name: str) -> list[tuple[str, bytes, int]]:
        with translated(_WHAT, _ADVICE):
            return self._connection.execute(
                "SELECT name, value, is_named FROM found WHERE name > ? ORDER BY name LIMIT ?",
                (name, _ROWS_AT_ONCE),
            ).fetchall()

    def forget(self, value: StoredValue) -> None:
        """Its info is gone. Raises: ScratchSpaceError."""
        with translated(_WHAT, _ADVICE):
            self._connection.execute("DELETE FROM found WHERE name = ?", (value.name,))

    def is_used(self, place: str) -> bool:
        """Return whether an info names a place. Raises: ScratchSpaceError."""
        with translated(_WHAT, _ADVICE):
            row = self._connection.execute("SELECT 1 FROM found WHERE place = ?", (place,)).fetchone()
        return row is not None

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()


async def exports_without_values(log: Log, folder: Path) -> list[ExportLog]:
    """Return the exports of an archive whose large values were left in the bucket; none where nothing was archived.

    Raises: ArchiveIncompleteError, NotFoundError, NotAnExportError, ExportDamagedError, UnreachableError.
    """
    return [
        each
        for each in await archive_chain(log, folder)
        if each.manifest.count and not _has_values(each.manifest)
    ]


def _has_values(manifest: Manifest) -> bool:
    payloads = manifest.payloads
    return not isinstance(payloads, msgspec.UnsetType) and (payloads.included or not payloads.count)


async def clear_values(log: Log, stored: StoredValues, folder: Path, now: datetime) -> ClearedValues:
    """Mark large values that no event names, delete those that were marked before, and what is left of others.

    An event names a value if it is in the ledger, or in an export in `folder`, the archive's, that has no copy of it. `now`:
    by the server's clock.

    Raises: UnreachableError, ScratchSpaceError, CorruptLedgerError, what `exports_without_values` raises, LedgerError.
    """
    head = await log.head()
    if head.form < MARKED_FORM:  # a program of an earlier release may refer to a value though it is marked
        return ClearedValues()
    with contextlib.closing(_BucketValues()) as found:
        is_any_old = False
        async for value in stored.all():
            found.add(value)
            is_any_old |= value.written_at <= now - GRACE
        done = ClearedValues()
        if is_any_old:
            if not await _names_all(log, folder, head.first_sequence, found):
                return ClearedValues(is_late=True)
            done = await _clear(found, stored, now)
        places = await _clear_places(found, stored, now)
    return msgspec.structs.replace(done, places=places)


async def _names_all(log: Log, folder: Path, first: int, found: _BucketValues) -> bool:
    """Note what every event names; return False where the ledger does not begin at `first` any more.

    Then an archive run moved events meanwhile: the look may have come to a job's old place too late, and to its new one,
    in `carried`, too early.
    """
    try:
        for source in (log, *await exports_without_values(log, folder)):
            async with contextlib.aclosing(source.read_messages()) as batches:
                async for batch in batches:
                    found.name(batch)
    except SequenceGapError:
        if (await log.head()).first_sequence == first:
            raise
        return False
    return (await log.head()).first_sequence == first


async def _clear(found: _BucketValues, stored: StoredValues, now: datetime) -> ClearedValues:
    """Do to each value what follows from whether an event names it; see `clear_values`."""
    marked = kept = deleted = size = 0
    for value, is_named in found.values():
        age = now - value.written_at
        if value.is_removed:
            if age >= LEFT and await stored.delete(value):
                found.forget(value)
        elif is_named:
            kept += value.is_marked and await stored.mark(value, is_unnamed=False)
        elif age < GRACE:
            continue
        elif not value.is_marked:
            marked += await stored.mark(value, is_unnamed=True)
        elif await stored.delete(value):
            found.forget(value)
            deleted += 1
            size += value.size_bytes
    return ClearedValues(marked=marked, kept=kept, deleted=deleted, bytes=size)


async def _clear_places(found: _BucketValues, stored: StoredValues, now: datetime) -> int:
    """Delete the chunks that no info names, once they are old; return at how many places."""
    count = 0
    async with contextlib.aclosing(stored.places()) as pages:
        async for page in pages:
            for place in page:
                if not is_token(place) or found.is_used(place):
                    continue
                stored_at = await stored.chunks_stored_at(place)
                if stored_at is not None and now - stored_at >= LEFT:
                    await stored.delete_chunks(place)
                    count += 1
    return count
