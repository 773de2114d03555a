"""The tables, their version, and how an empty file of them is made.

A file of another version is never altered: every row comes from the ledger, so migration is a rebuild.
The columns written by each statement are listed here once; `rows` builds the values, `tables` writes them.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from jobledger.ledger.model.job import JobState
from jobledger.projections.stats import (
    BOUNDS,
    COUNTERS,
    FAILURE_COUNTERS,
    HISTOGRAMS,
    WORKER_COUNTERS,
)

#: Raise it with every change of a table, an index or the meaning of a column.
SCHEMA_VERSION: Final = 4
#: "jled" in SQLite's header, by which a file is known as ours.
APPLICATION_ID: Final = 0x6A6C6564

#: Written once, when a job is first seen.
JOB_FIXED: Final = ("task", "created_at", "tenant", "batch", "tick", "correlation", "data", "first_us")
#: Written again whenever the job changes.
JOB_CHANGING: Final = (
    "status",
    "priority",
    "result",
    "error",
    "error_type",
    "updated_at",
    "due_at",
    "started_at",
    "completed_at",
    "attempt_count",
    "max_attempts",
    "retry_count",
    "max_retries",
    "dead_reason",
    "cancel_requested",
    "worker",
    "progress_done",
    "progress_total",
    "progress_note",
    "timeout_s",
    "last_sequence",
    "fold",
    "since_us",
)
ATTEMPT_COLUMNS: Final = (
    "id",
    "queue",
    "job_id",
    "attempt_number",
    "worker",
    "epoch",
    "started_at",
    "status",
    "finished_at",
    "duration_ms",
    "error",
    "error_type",
)
ATTEMPT_CHANGING: Final = ATTEMPT_COLUMNS[ATTEMPT_COLUMNS.index("status") :]
DEAD_LETTER_COLUMNS: Final = (
    "queue",
    "job_id",
    "task",
    "reason",
    "error_type",
    "error",
    "traceback",
    "fingerprint",
    "attempts",
    "dead_at",
    "last_sequence",
)
POSITION_COLUMNS: Final = (
    "stream_sequence",
    "event_hash",
    "begins_at",
    "counts_begin_at",
    "counted_through",
    "environment",
    "schema_version",
    "updated_at",
)
#: One per state, named like it: how many jobs are in it.
QUEUE_COUNTS: Final = tuple(state.value for state in JobState)
#: The columns of `totals` and `buckets` that add up; `_le_` counts what took at most so long.
STATISTICS: Final = COUNTERS + tuple(
    f"{name}_{part}"
    for name in HISTOGRAMS
    for part in (*(f"le_{label}" for _, label in BOUNDS), "count", "us")
)

_TABLES: Final[dict[str, dict[str, type]]] = {
    "jobs": {
        "id": str,
        "queue": str,
        "task": str,
        "status": str,
        "priority": str,
        "data": str,
        "result": str,
        "error": str,
        "error_type": str,
        "created_at": str,
        "updated_at": str,
        "due_at": str,
        "started_at": str,
        "completed_at": str,
        "attempt_count": int,
        "max_attempts": int,
        "retry_count": int,
        "max_retries": int,
        "dead_reason": str,
        "cancel_requested": int,
        "worker": str,
        "progress_done": float,
        "progress_total": float,
        "progress_note": str,
        "timeout_s": float,
        "tenant": str,
        "batch": str,
        "tick": str,
        "correlation": str,
        "last_sequence": int,
        "fold": bytes,
        "first_us": int,  # the server's time of its first event, in microseconds since 1970
        "since_us": int,  # the same of the event that began its present state, or its present attempt
    },
    "attempts": {
        "id": str,
        "queue": str,
        "job_id": str,
        "attempt_number": int,
        "status": str,
        "error": str,
        "error_type": str,
        "started_at": str,
        "finished_at": str,
        "duration_ms": float,
        "worker": str,
        "epoch": int,
    },
    "dead_letters": {
        "queue": str,
        "job_id": str,
        "task": str,
        "reason": str,
        "error_type": str,
        "error": str,
        "traceback": str,
        "fingerprint": str,
        "attempts": int,
        "dead_at": str,
        "last_sequence": int,
    },
    "queues": {"queue": str, "priority": str, **dict.fromkeys(QUEUE_COUNTS, int)},
    "totals": {"queue": str, "task": str, **dict.fromkeys(STATISTICS, int)},
    # The same of all tasks of a queue, and in the row "" of all queues, so that an exporter need not read every row.
    "sums": {"queue": str, **dict.fromkeys(STATISTICS, int)},
    "buckets": {
        "minute": int,  # since 1970, by the server's time
        "queue": str,
        "task": str,
        **dict.fromkeys(STATISTICS, int),
    },
    "failures": {"queue": str, "task": str, "error_type": str, **dict.fromkeys(FAILURE_COUNTERS, int)},
    "workers": {"worker": str, "first_at": str, "last_at": str, **dict.fromkeys(WORKER_COUNTERS, int)},
    # When carried jobs began, as an archive run says; empty once the rows are beyond `counted_through`.
    "origins": {"job_id": str, "queue": str, "first_us": int, "since_us": int},
    "position": {
        "id": int,  # always 1
        "stream_sequence": int,
        "event_hash": str,
        "begins_at": int,  # the first sequence that is in the rows; above 1 when the ledger's beginning was archived
        "counts_begin_at": int,  # the first sequence that `totals` and `failures` count
        "counted_through": int,  # up to where they were counted by an archive run; 0 once the rows are beyond
        "environment": str,
        "schema_version": int,
        "updated_at": str,
    },
}
COLUMNS: Final = {table: tuple(columns) for table, columns in _TABLES.items()}
#: The id leads, so that one index serves both the key and the search by id prefix over all queues.
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "jobs": ("id", "queue"),
    "attempts": ("id",),
    "dead_letters": ("job_id", "queue"),
    "queues": ("queue", "priority"),
    "totals": ("queue", "task"),
    "sums": ("queue",),
    "buckets": ("minute", "queue", "task"),
    "failures": ("queue", "task", "error_type"),
    "workers": ("worker",),
    "origins": ("job_id", "queue"),
    "position": ("id",),
}
#: Every list is newest first, of all jobs or of one status, queue or task.
_INDEXES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("jobs", ("created_at",)),
    ("jobs", ("status", "created_at")),
    ("jobs", ("queue", "status", "created_at")),
    ("jobs", ("task", "created_at")),
    ("attempts", ("duration_ms",)),
    ("dead_letters", ("dead_at",)),
    ("dead_letters", ("fingerprint", "dead_at")),
    ("workers", ("last_at",)),
)
#: Which jobs have a place in the index by which the oldest of a queue is found.
OF_INTEREST: Final = "status IN ('queued', 'running')"


def create_tables(connection: sqlite3.Connection, environment: str) -> None:
    """Make every table in an empty file, with the position before the first event."""
    # Imported here: it takes a tenth of a second, and a process that only reads never needs it.
    from sqlite_utils import Database  # noqa: PLC0415

    database = Database(connection, execute_plugins=False)
    for name, columns in _TABLES.items():
        database.table(name).create(columns, pk=KEYS[name])
    position = {
        "id": 1,
        "stream_sequence": 0,
        "event_hash": "",
        "begins_at": 1,
        "counts_begin_at": 1,
        "counted_through": 0,
        "environment": environment,
        "schema_version": SCHEMA_VERSION,
    }
    database.table("position").insert(position)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION:d}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")


def create_indexes(connection: sqlite3.Connection) -> None:
    """Make every index; after the rows where there are many, since sorting once is cheaper."""
    from sqlite_utils import Database  # noqa: PLC0415 - as above

    database = Database(connection, execute_plugins=False)
    for table, columns in _INDEXES:
        database.table(table).create_index(list(columns), index_name=f"{table}_by_{'_'.join(columns)}")
    connection.execute(
        f"CREATE INDEX jobs_by_since ON jobs (queue, priority, status, since_us) WHERE {OF_INTEREST}",
    )


def marks(columns: tuple[str, ...]) -> str:
    """Return one question mark per column, as `VALUES` wants them."""
    return ", ".join("?" * len(columns))


#: What rows of `jobs` and `attempts` hold for NULL. Python's sqlite3 looks in vain for an adapter of every None and every
#: bytes it is given, for about a microsecond each; str, int, float and bytearray are spared that (`need_adapt` in
#: CPython's Modules/_sqlite/statement.c). SQLite holds no number for equal to a text, so neither can be a real value.
NULL_TEXT: Final = 0
NULL_NUMBER: Final = ""
_NULLABLE: Final = {
    **dict.fromkeys(
        (
            "data",
            "result",
            "error",
            "error_type",
            "due_at",
            "started_at",
            "completed_at",
            "finished_at",
            "dead_reason",
            "worker",
            "progress_note",
        ),
        f"nullif(?, {NULL_TEXT})",
    ),
    **dict.fromkeys(
        ("duration_ms", "progress_done", "progress_total", "timeout_s"),
        f"nullif(?, '{NULL_NUMBER}')",
    ),
}


def _nullable_marks(columns: tuple[str, ...]) -> str:
    return ", ".join(_NULLABLE.get(name, "?") for name in columns)


INSERT_JOB: Final = (
    f"INSERT INTO jobs ({', '.join(JOB_CHANGING + KEYS['jobs'] + JOB_FIXED)}) "  # noqa: S608 - constants above
    f"VALUES ({_nullable_marks(JOB_CHANGING + KEYS['jobs'] + JOB_FIXED)})"
)
#: Names only what can change: SQLite rewrites every index that has a column named here, changed or not.
UPDATE_JOB: Final = (
    f"UPDATE jobs SET {', '.join(f'{name} = {_nullable_marks((name,))}' for name in JOB_CHANGING)} "  # noqa: S608
    "WHERE id = ? AND queue = ?"
)
DELETE_JOB: Final = "DELETE FROM jobs WHERE id = ? AND queue = ?"
DELETE_ATTEMPTS: Final = "DELETE FROM attempts WHERE id >= ? AND id < ?"
UPDATE_DATA: Final = f"UPDATE jobs SET data = {_NULLABLE['data']} WHERE id = ? AND queue = ?"  # noqa: S608
SELECT_FOLD: Final = "SELECT fold, first_us, since_us FROM jobs WHERE id = ? AND queue = ?"
PUT_ATTEMPT: Final = (
    f"INSERT INTO attempts ({', '.join(ATTEMPT_COLUMNS)}) VALUES ({_nullable_marks(ATTEMPT_COLUMNS)}) "  # noqa: S608
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in ATTEMPT_CHANGING)}"
)
PUT_DEAD_LETTER: Final = (
    f"INSERT OR REPLACE INTO dead_letters ({', '.join(DEAD_LETTER_COLUMNS)}) "  # noqa: S608
    f"VALUES ({marks(DEAD_LETTER_COLUMNS)})"
)
DROP_DEAD_LETTER: Final = "DELETE FROM dead_letters WHERE job_id = ? AND queue = ?"


def _adding(table: str, columns: tuple[str, ...], *extra: str) -> str:
    """Return the statement that makes a row, or adds to the one that is there."""
    names = KEYS[table] + columns
    sets = [*extra, *(f"{name} = {name} + excluded.{name}" for name in columns if name not in TIMES)]
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks(names)}) "  # noqa: S608
        f"ON CONFLICT ({', '.join(KEYS[table])}) DO UPDATE SET {', '.join(sets)}"
    )


TIMES: Final = ("first_at", "last_at")
ADD_QUEUE: Final = _adding("queues", QUEUE_COUNTS)
ADD_TOTALS: Final = _adding("totals", STATISTICS)
ADD_SUMS: Final = _adding("sums", STATISTICS)
ADD_BUCKET: Final = _adding("buckets", STATISTICS)
ADD_FAILURES: Final = _adding("failures", FAILURE_COUNTERS)
ADD_WORKER: Final = _adding(
    "workers",
    TIMES + WORKER_COUNTERS,
    "first_at = min(first_at, excluded.first_at)",
    "last_at = max(last_at, excluded.last_at)",
)
SELECT_ERROR_TYPES: Final = "SELECT error_type FROM failures WHERE queue = ? AND task = ?"
SELECT_POSITION: Final = f"SELECT {', '.join(POSITION_COLUMNS)} FROM position WHERE id = 1"  # noqa: S608
SELECT_BEGINS_LATE: Final = "SELECT begins_at > 1 FROM position WHERE id = 1"
BEGIN_AT: Final = "UPDATE position SET stream_sequence = ?, begins_at = ?, counts_begin_at = ? WHERE id = 1"
COUNTED: Final = "UPDATE position SET counts_begin_at = ?, counted_through = ? WHERE id = 1"
ALL_COUNTED: Final = "UPDATE position SET counted_through = 0 WHERE id = 1"
SELECT_COUNTED: Final = "SELECT counted_through FROM position WHERE id = 1"
PUT_ORIGIN: Final = "INSERT OR REPLACE INTO origins (job_id, queue, first_us, since_us) VALUES (?, ?, ?, ?)"
SELECT_ORIGINS: Final = "SELECT first_us, since_us, job_id, queue FROM origins"
DROP_ORIGINS: Final = "DELETE FROM origins"
UPDATE_TIMES: Final = "UPDATE jobs SET first_us = ?, since_us = ? WHERE id = ? AND queue = ?"
UPDATE_POSITION: Final = (
    "UPDATE position SET stream_sequence = ?, event_hash = ?, updated_at = ? WHERE id = 1"
)
