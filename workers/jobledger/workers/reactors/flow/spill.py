"""Jobs that wait and do not fit in memory: a temporary SQLite table, in the order in which they were held."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from jobledger.audit.errors import ScratchSpaceError
from jobledger.audit.verify.store import scratch, translated
from jobledger.ledger.model.limits.holders import JobKey
from jobledger.ledger.model.limits.lines import SpilledJob

_CACHE_BYTES: Final = 4 << 20
#: Jobs put in one transaction; they wait in memory for it.
_AT_ONCE: Final = 4_096
#: Between the limits of a job, which have no white space.
_BETWEEN: Final = "\n"

#: For the sentence about a full disk.
_WHAT: Final = "jobs that wait for limits cannot be put aside"
_ADVICE: Final = "make room there, or set TMPDIR to a folder that has it"

_CREATE: Final = """
CREATE TEMP TABLE waiting (held INTEGER PRIMARY KEY, line INTEGER, limits TEXT, queue TEXT, job TEXT)
"""
#: Made when a line is read first: many are put before that, and they are put at half the cost without it.
_LINES: Final = "CREATE INDEX IF NOT EXISTS temp.by_line ON waiting (line)"
#: Made when a job is looked for by its name: most are only ever read in the order of their lines.
_INDEX: Final = "CREATE INDEX IF NOT EXISTS temp.by_job ON waiting (job, queue)"
_PUT: Final = "INSERT INTO waiting (held, line, limits, queue, job) VALUES (?, ?, ?, ?, ?)"
_PAGE: Final = (
    "SELECT held, queue, job, limits FROM waiting WHERE line = ? AND held > ? ORDER BY held LIMIT ?"
)
_DROP: Final = "DELETE FROM waiting WHERE line = ? AND held <= ?"
_FIND: Final = "SELECT held, line, limits FROM waiting WHERE job = ? AND queue = ?"
_REMOVE: Final = "DELETE FROM waiting WHERE line = ? AND held = ?"


class DiskSpill:
    """A spill for `lines.Lines`. The file has no name, and is gone with the process, however that ends.

    Every method raises ScratchSpaceError where there is no room for temporary files. Its jobs are then gone, and
    their room is free: every later call raises the same error, and the caller has to begin with a new spill.
    """

    def __init__(self) -> None:
        """Begin empty; there is no file before the first jobs are put."""
        self._disk: sqlite3.Connection | None = None
        self._put: dict[JobKey, tuple[int, int, str, str, str]] = {}  # rows of the table, as `_PUT` has them
        self._has_index = self._has_lines = False
        self._failed: ScratchSpaceError | None = None

    def close(self) -> None:
        """Let go of all jobs."""
        self._put.clear()
        self._has_index = self._has_lines = False
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def put(self, line: int, job: SpilledJob) -> None:
        """Add a job to a line."""
        held, queue, name, limits = job
        self._put[queue, name] = (held, line, _BETWEEN.join(limits), queue, name)
        if len(self._put) >= _AT_ONCE:
            self._execute("")

    def page(self, line: int, after: int, most: int) -> Sequence[SpilledJob]:
        """Return up to `most` jobs of a line whose `held` comes after a stream sequence, the oldest first."""
        rows = self._execute(_PAGE, line, after, most)
        return [(held, queue, job, _apart(limits)) for held, queue, job, limits in rows]

    def drop(self, line: int, through: int) -> None:
        """Forget the jobs of a line up to a stream sequence of their `held`."""
        self._execute(_DROP, line, through)

    def find(self, job: JobKey) -> tuple[int, SpilledJob] | None:
        """Return a job's line and what was put, None if it is not there."""
        queue, name = job
        found = self._put.get(job)
        if found is None:
            rows = self._execute(_FIND, name, queue)
            if not rows:
                return None
            found = rows[0]
        held, line, limits = found[:3]
        return line, (held, queue, name, _apart(limits))

    def remove(self, line: int, held: int) -> None:
        """Forget one job of a line."""
        self._execute(_REMOVE, line, held)

    def _execute(self, statement: str, *values: int | str) -> list[Any]:
        if self._failed is not None:
            raise self._failed
        try:
            with translated(_WHAT, _ADVICE):
                disk = self._open()
                if statement is _FIND and not self._has_index:
                    disk.execute(_INDEX)
                    self._has_index = True
                elif statement is not _FIND:
                    self._flush(disk)
                    if statement and not self._has_lines:
                        disk.execute(_LINES)
                        self._has_lines = True
                return disk.execute(statement, values).fetchall()
        except ScratchSpaceError as error:
            # Without a journal a transaction that failed cannot be taken back: what is in the table now is not known.
            self._failed = error
            self.close()
            raise

    def _open(self) -> sqlite3.Connection:
        if self._disk is None:
            self._disk = scratch(_CACHE_BYTES)
            self._disk.execute(_CREATE)
        return self._disk

    def _flush(self, disk: sqlite3.Connection) -> None:
        """Insert the jobs that wait in memory."""
        if self._put:
            rows = sorted(self._put.values())  # visits its pages once, and the last ones only
            disk.execute("BEGIN")
            disk.executemany(_PUT, rows)
            disk.execute("COMMIT")
            self._put.clear()


def _apart(limits: str) -> tuple[str, ...]:
    return tuple(limits.split(_BETWEEN)) if limits else ()
