"""Records that a check keeps by name in bounded memory; the least recently used move to a temporary SQLite table."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Generator, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from jobledger.audit.errors import ScratchSpaceError

R = TypeVar("R")

#: SQLite's page cache gets the memory for records divided by this.
_CACHE_PART: Final = 8
_CACHE_BYTES_MIN: Final = 256 << 10
#: Bytes of an entry beside its record and the letters of its name: the slot in the dict, the string object.
_ENTRY_BYTES: Final = 120
#: Records moved to disk in one transaction; their encoded form takes memory until it is written.
_AT_ONCE: Final = 4_096
_ROWS_AT_ONCE: Final = 1_000
#: SQLite's own limit, in pages of 4 KiB; the disk is full long before.
PAGES_MAX: Final = 4_294_967_294

_CHECK: Final = "the check cannot put records aside"
_CHECK_ADVICE: Final = "make room there, set TMPDIR to a folder that has it, or allow the check more memory"

_CREATE: Final = "CREATE TEMP TABLE kept (name TEXT PRIMARY KEY, live INTEGER NOT NULL, record BLOB NOT NULL) WITHOUT ROWID"
_INSERT: Final = "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)"
_SELECT_ONE: Final = "SELECT live, record FROM kept WHERE name = ?"
_SELECT: Final = "SELECT name, live, record FROM kept WHERE live >= ? ORDER BY name"


class Form(msgspec.Struct, Generic[R], frozen=True):
    """The facts that a store needs about its records."""

    weigh: Callable[[R], int]  #: bytes it takes in memory, about
    is_live: Callable[[R], bool]
    encode: Callable[[R], bytes]
    decode: Callable[[bool, bytes], R]  #: takes whether the record is live, and its bytes


class RecordStore(Generic[R]):
    """Records by name, in about `memory_bytes_max` of memory and as much of the disk as they need.

    The file has no name, so nobody else can open it, and it is gone with the process in any case: it is SQLite's own
    temporary database, in the folder that TMPDIR names (else /var/tmp or /tmp).
    """

    def __init__(self, form: Form[R], memory_bytes_max: int | None) -> None:
        """Begin empty; without a limit of memory everything stays there."""
        self._form = form
        self._bytes_max = (
            None if memory_bytes_max is None else memory_bytes_max * _CACHE_PART // (_CACHE_PART + 1)
        )
        self._hot: dict[str, R] = {}  # the most recently used at the end
        self._disk: sqlite3.Connection | None = None  # None until the memory was full
        self._count = 0
        self.weight_bytes = 0  #: about how much memory the records in memory take

    def __len__(self) -> int:
        """Return how many names there are."""
        return self._count

    @property
    def is_spilled(self) -> bool:
        """Whether any record was moved to disk."""
        return self._disk is not None

    def get(self, name: str) -> R | None:
        """Return a record, None for a new name. A caller that makes it larger calls `grow`, and need not put it back.

        Raises: ScratchSpaceError.
        """
        if self._bytes_max is not None and self.weight_bytes > self._bytes_max:
            self._make_room(self._bytes_max)
        record = self._hot.pop(name, None)
        if record is None and self._disk is not None:
            record = self._fetch(self._disk, name)
        if record is not None:
            self._hot[name] = record
        return record

    def _fetch(self, disk: sqlite3.Connection, name: str) -> R | None:
        try:
            row = disk.execute(_SELECT_ONE, (name,)).fetchone()
        except sqlite3.Error as error:
            raise _no_scratch(error) from error
        if row is None:
            return None
        record = self._form.decode(bool(row[0]), row[1])
        self.weight_bytes += self._cost(name, record)
        return record

    def put(self, name: str, record: R) -> None:
        """Keep a record in place of the one that `get` returned; the caller has just called `get` for the name."""
        before = self._hot.get(name)
        if before is None:
            self._count += 1
            self.weight_bytes += self._cost(name, record)
        else:
            self.weight_bytes += self._form.weigh(record) - self._form.weigh(before)
        self._hot[name] = record

    def grow(self, size_bytes: int) -> None:
        """Note that a record became larger."""
        self.weight_bytes += size_bytes

    def all(self, *, live_only: bool = False) -> Iterator[tuple[str, R]]:
        """Yield every name and its record; the store must not change meanwhile.

        Raises: ScratchSpaceError.
        """
        for name, record in self._hot.items():
            if not live_only or self._form.is_live(record):
                yield name, record
        if self._disk is None:
            return
        with translated():
            cursor = self._disk.execute(_SELECT, (live_only,))
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                for name, live, data in rows:
                    if name not in self._hot:  # a record in `_hot` was read back, and may have changed since
                        yield name, self._form.decode(bool(live), data)

    def _make_room(self, bytes_max: int) -> None:
        """Move the least recently used records to disk, until half of the memory is free.

        The record used last always stays in memory: else a long run would be written to disk at each of its events.
        """
        with translated():
            if self._disk is None:
                self._disk = scratch(max(_CACHE_BYTES_MIN, bytes_max // _CACHE_PART))
                self._disk.execute(_CREATE)
            while self.weight_bytes > bytes_max // 2 and len(self._hot) > 1:
                self._disk.execute("BEGIN")
                rows = sorted(self._coldest(bytes_max // 2))  # in table order: each page is visited once
                self._disk.executemany(_INSERT, rows)
                self._disk.execute("COMMIT")
                for name, _, _ in rows:
                    del self._hot[name]

    def _coldest(self, until_bytes: int) -> Iterator[tuple[str, bool, bytes]]:
        """Yield rows of the least recently used records, a bounded number, and subtract their weight."""
        for name, record in itertools.islice(self._hot.items(), min(_AT_ONCE, len(self._hot) - 1)):
            if self.weight_bytes <= until_bytes:
                return
            self.weight_bytes -= self._cost(name, record)
            yield name, self._form.is_live(record), self._form.encode(record)

    def _cost(self, name: str, record: R) -> int:
        return self._form.weigh(record) + _ENTRY_BYTES + len(name)

    def close(self) -> None:
        """Close the temporary database; the records in it are gone."""
        if self._disk is not None:
            self._disk.close()
            self._disk = None


def scratch(cache_bytes: int) -> sqlite3.Connection:
    """Open a database whose temporary tables are in a file without a name, for one thread at a time.

    Raises: ScratchSpaceError.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with translated():
        # Some builds keep temporary tables in memory unless told otherwise before the first one is made.
        connection.execute("PRAGMA temp_store = FILE")
        # Nothing here outlives the process, so nothing has to survive a crash.
        for setting in (
            "journal_mode = OFF",
            f"cache_size = -{cache_bytes >> 10}",
            f"max_page_count = {PAGES_MAX}",
        ):
            connection.execute(f"PRAGMA temp.{setting}")
    return connection


@contextlib.contextmanager
def translated(what: str = _CHECK, advice: str = _CHECK_ADVICE) -> Generator[None, None, None]:
    """Raise ScratchSpaceError for an error of SQLite; `what`: the act that failed; `advice`: what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _no_scratch(error, what, advice) from error


def _no_scratch(error: sqlite3.Error, what: str = _CHECK, advice: str = _CHECK_ADVICE) -> ScratchSpaceError:
    return ScratchSpaceError(f"{what} in the folder for temporary files: {error}; {advice}")
