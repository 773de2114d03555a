"""What a check of the ledger puts aside on the disk, so that its memory has a bound. Knows names and bytes only."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from typing import Final

from jobledger.ledger.model.errors import ScratchSpaceError

_PROBES: Final = 4  # with 10 bits a name that is 1 % of false alarms, each of which costs a look at the disk
_ROWS_AT_ONCE: Final = 1_000
#: Of 4 KiB each: SQLite's own limit; the disk is full long before.
PAGES_MAX: Final = 4_294_967_294

_SELECT: Final = "SELECT name, live, record FROM disk.kept ORDER BY name"
_SELECT_LIVE: Final = "SELECT name, live, record FROM disk.kept WHERE live ORDER BY name"

Kept = tuple[str, bool, bytes]  #: name, whether its record is live, the record


class Filter:
    """A set of names in a fixed number of bytes: what it denies was never added, what it affirms may be."""

    def __init__(self, size_bytes: int) -> None:
        """Begin empty; `size_bytes` is rounded down to a power of two."""
        assert size_bytes > 0, "a filter has at least one byte"
        self._bits = bytearray(1 << (size_bytes.bit_length() - 1))
        self._mask = 8 * len(self._bits) - 1

    def add(self, name: str) -> None:
        """Add a name."""
        bits, mask = self._bits, self._mask
        place = hash(name)
        step = (place >> 32) | 1
        for _ in range(_PROBES):
            bits[(place & mask) >> 3] |= 1 << (place & 7)
            place += step

    def __contains__(self, name: str) -> bool:
        """Return False when the name was never added."""
        bits, mask = self._bits, self._mask
        place = hash(name)
        step = (place >> 32) | 1
        for _ in range(_PROBES):
            if not bits[(place & mask) >> 3] & 1 << (place & 7):
                return False
            place += step
        return True


def scratch(cache_bytes: int) -> sqlite3.Connection:
    """Open an empty database `disk` in a file without a name, for one thread at a time.

    Raises: ScratchSpaceError.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with translated():
        # Some builds keep temporary databases in memory unless told otherwise before one is opened.
        connection.execute("PRAGMA temp_store = FILE")
        connection.execute("ATTACH DATABASE '' AS disk")
        # Nothing here outlives the process, so nothing has to be safe against its end.
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{cache_bytes >> 10}"):
            connection.execute(f"PRAGMA disk.{setting}")
    return connection


class Spill:
    """Records by name in a file that nobody else can open; it is gone with the process, however that ends.

    SQLite's own temporary database: in the folder that TMPDIR names (else /var/tmp or /tmp), without a name there
    once it is open. What is put again replaces what was there.
    """

    def __init__(self, *, filter_bytes: int, cache_bytes: int) -> None:
        """Open."""
        self._filter = Filter(filter_bytes)
        self._connection = scratch(cache_bytes)
        with translated():
            self._connection.execute(
                "CREATE TABLE disk.kept (name TEXT PRIMARY KEY, live INTEGER NOT NULL, record BLOB NOT NULL) WITHOUT ROWID"
            )
            self._connection.execute(f"PRAGMA disk.max_page_count = {PAGES_MAX}")

    def put(self, records: Iterable[Kept]) -> None:
        """Keep these.

        Raises: ScratchSpaceError when the disk takes no more.
        """
        rows = sorted(records)  # in the table's order, so that its pages are visited once
        for name, _, _ in rows:
            self._filter.add(name)
        with translated():
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT OR REPLACE INTO disk.kept VALUES (?, ?, ?)", rows)
            self._connection.execute("COMMIT")

    def get(self, name: str) -> tuple[bool, bytes] | None:
        """Return whether a record is live, and the record; None without one. A name that is new rarely costs a look.

        Raises: ScratchSpaceError.
        """
        if name not in self._filter:
            return None
        with translated():
            row = self._connection.execute(
                "SELECT live, record FROM disk.kept WHERE name = ?", (name,)
            ).fetchone()
        return None if row is None else (bool(row[0]), row[1])

    def all(self, *, live_only: bool = False) -> Iterator[Kept]:
        """Yield what is kept, in the order of the names.

        Raises: ScratchSpaceError.
        """
        with translated():
            cursor = self._connection.execute(_SELECT_LIVE if live_only else _SELECT)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                for name, live, record in rows:
                    yield name, bool(live), record

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()


@contextlib.contextmanager
def translated() -> Generator[None, None, None]:
    """Raise ScratchSpaceError for what SQLite says."""
    try:
        yield
    except sqlite3.Error as error:
        raise ScratchSpaceError(
            f"the check cannot put records aside in the folder for temporary files: {error}; "
            "make room there, set TMPDIR to a folder that has it, or allow the check more memory"
        ) from error
