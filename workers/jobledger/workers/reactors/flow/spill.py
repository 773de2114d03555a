"""Jobs that wait and do not fit in memory: a temporary SQLite table, in the order of their lines."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

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
CREATE TEMP TABLE waiting (
  line INTEGER, held INTEGER, queue TEXT, job TEXT, limits TEXT, PRIMARY KEY (line, held)
) WITHOUT ROWID;
CREATE INDEX temp.by_job ON waiting (job, queue);
"""
_PUT: Final = "INSERT INTO waiting VALUES (?, ?, ?, ?, ?)"
_PAGE: Final = (
    "SELECT held, queue, job, limits FROM waiting WHERE line = ? AND held > ? ORDER BY held LIMIT ?"
)
_DROP: Final = "DELETE FROM waiting WHERE line = ? AND held <= ?"
_FIND: Final = "SELECT line, held, limits FROM waiting WHERE job = ? AND queue = ?"
_REMOVE: Final = "DELETE FROM waiting WHERE line = ? AND held = ?"


class DiskSpill:
    """A spill for `lines.Lines`. The file has no name, and is gone with the process, however that ends.

    Every method raises ScratchSpaceError where there is no room for temporary files.
    """

    def __init__(self) -> None:
        """Begin empty; there is no file before the first job is put."""
        self._disk: sqlite3.Connection | None = None
        self._put: list[tuple[int, int, str, str, str]] = []

    def close(self) -> None:
        """Let go of all jobs."""
        self._put.clear()
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def put(self, line: int, job: SpilledJob) -> None:
        """Add a job behind all others of a line."""
        held, queue, name, limits = job
        self._put.append((line, held, queue, name, _BETWEEN.join(limits)))
        if len(self._put) >= _AT_ONCE:
            with translated(_WHAT, _ADVICE):
                self._flush()

    def page(self, line: int, after: int, most: int) -> Sequence[SpilledJob]:
        """Return up to `most` jobs of a line whose `held` comes after a stream sequence, the oldest first."""
        rows = self._execute(_PAGE, line, after, most)
        return [(held, queue, job, tuple(limits.split(_BETWEEN))) for held, queue, job, limits in rows]

    def drop(self, line: int, through: int) -> None:
        """Forget the jobs of a line up to a stream sequence of their `held`."""
        self._execute(_DROP, line, through)

    def find(self, job: JobKey) -> tuple[int, SpilledJob] | None:
        """Return a job's line and what was put, None if it is not there."""
        queue, name = job
        rows = self._execute(_FIND, name, queue)
        if not rows:
            return None
        line, held, limits = rows[0]
        return line, (held, queue, name, tuple(limits.split(_BETWEEN)))

    def remove(self, line: int, held: int) -> None:
        """Forget one job of a line."""
        self._execute(_REMOVE, line, held)

    def _execute(self, statement: str, *values: int | str) -> list[Any]:
        with translated(_WHAT, _ADVICE):
            return self._flush().execute(statement, values).fetchall()

    def _flush(self) -> sqlite3.Connection:
        """Put what waits for it, and return the database."""
        disk = self._disk
        if disk is None:
            disk = self._disk = scratch(_CACHE_BYTES)
            disk.executescript(_CREATE)
        if self._put:
            disk.execute("BEGIN")
            disk.executemany(_PUT, self._put)
            disk.execute("COMMIT")
            self._put.clear()
        return disk
