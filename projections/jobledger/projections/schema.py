"""The tables, their version, and how an empty file of them is made.

A file of another version is never altered: every row comes from the ledger, so migration is a rebuild.
The columns written by each statement are listed here once; `rows` builds the values, `tables` writes them.
"""

from __future__ import annotations

import sqlite3
from typing import Final

#: Raise it with every change of a table, an index or the meaning of a column.
SCHEMA_VERSION: Final = 2
#: "jled" in SQLite's header, by which a file is known as ours.
APPLICATION_ID: Final = 0x6A6C6564

#: Written once, when a job is first seen.
JOB_FIXED: Final = ("task", "created_at", "tenant", "batch", "tick", "correlation", "data")
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
POSITION_COLUMNS: Final = ("stream_sequence", "event_hash", "environment", "schema_version", "updated_at")

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
    "position": {
        "id": int,  # always 1
        "stream_sequence": int,
        "event_hash": str,
        "environment": str,
        "schema_version": int,
        "updated_at": str,
    },
}
#: The id leads, so that one index serves both the key and the search by id prefix over all queues.
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "jobs": ("id", "queue"),
    "attempts": ("id",),
    "dead_letters": ("job_id", "queue"),
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
)


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


def marks(columns: tuple[str, ...]) -> str:
    """Return one question mark per column, as `VALUES` wants them."""
    return ", ".join("?" * len(columns))


INSERT_JOB: Final = (
    f"INSERT INTO jobs ({', '.join(JOB_CHANGING + KEYS['jobs'] + JOB_FIXED)}) "  # noqa: S608 - constants above
    f"VALUES ({marks(JOB_CHANGING + KEYS['jobs'] + JOB_FIXED)})"
)
#: Names only what can change: SQLite rewrites every index that has a column named here, changed or not.
UPDATE_JOB: Final = (
    f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in JOB_CHANGING)} WHERE id = ? AND queue = ?"  # noqa: S608
)
UPDATE_DATA: Final = "UPDATE jobs SET data = ? WHERE id = ? AND queue = ?"
SELECT_FOLD: Final = "SELECT fold FROM jobs WHERE id = ? AND queue = ?"
PUT_ATTEMPT: Final = (
    f"INSERT INTO attempts ({', '.join(ATTEMPT_COLUMNS)}) VALUES ({marks(ATTEMPT_COLUMNS)}) "  # noqa: S608
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in ATTEMPT_CHANGING)}"
)
PUT_DEAD_LETTER: Final = (
    f"INSERT OR REPLACE INTO dead_letters ({', '.join(DEAD_LETTER_COLUMNS)}) "  # noqa: S608
    f"VALUES ({marks(DEAD_LETTER_COLUMNS)})"
)
DROP_DEAD_LETTER: Final = "DELETE FROM dead_letters WHERE job_id = ? AND queue = ?"
SELECT_POSITION: Final = f"SELECT {', '.join(POSITION_COLUMNS)} FROM position WHERE id = 1"  # noqa: S608
UPDATE_POSITION: Final = (
    "UPDATE position SET stream_sequence = ?, event_hash = ?, updated_at = ? WHERE id = 1"
)
