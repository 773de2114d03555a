"""The tables of jobs, attempts and dead letters, and the statements that write them.

The columns written by each statement are listed here once; `job_values` builds the values, `jobs` writes them.
"""

from __future__ import annotations

from typing import Final

from jobledger.projections.statistics.answers import OF_INTEREST
from jobledger.projections.table import Index, Table

#: The id leads, so that one index serves both the key and the search by id prefix over all queues.
_JOB_KEY: Final = ("id", "queue")
#: Written once, when a job is first seen.
_FIXED: Final[dict[str, type]] = {
    "task": str,
    "created_at": str,
    "tenant": str,
    "batch": str,
    "tick": str,
    "correlation": str,
    "data": str,
    "first_us": int,  # the server's time of its first event, in microseconds since 1970
}
#: Written again whenever the job changes.
_CHANGING: Final[dict[str, type]] = {
    "status": str,
    "priority": str,
    "result": str,
    "error": str,
    "error_type": str,
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
    "last_sequence": int,
    "fold": bytes,
    "since_us": int,  # the server's time of the event that began its present state, or its present attempt
}
JOBS: Final = Table(
    name="jobs",
    columns={**dict.fromkeys(_JOB_KEY, str), **_FIXED, **_CHANGING},
    key=_JOB_KEY,
    # Every list is newest first, of all jobs or of one status, queue or task.
    indexes=(
        Index(("created_at",)),
        Index(("status", "created_at")),
        Index(("queue", "status", "created_at")),
        Index(("task", "created_at")),
        Index(("queue", "priority", "status", "since_us"), where=OF_INTEREST),
    ),
    sequence="last_sequence",
)
ATTEMPTS: Final = Table(
    name="attempts",
    columns={
        "id": str,
        "queue": str,
        "job_id": str,
        "attempt_number": int,
        "worker": str,
        "epoch": int,
        "started_at": str,
        "status": str,  # from here on what changes when the attempt ends
        "finished_at": str,
        "duration_ms": float,
        "error": str,
        "error_type": str,
    },
    key=("id",),
    indexes=(Index(("duration_ms",)),),
    sequence="epoch",
)
DEAD_LETTERS: Final = Table(
    name="dead_letters",
    columns={
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
    key=("job_id", "queue"),
    indexes=(Index(("dead_at",)), Index(("fingerprint", "dead_at"))),
    sequence="last_sequence",
)

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


_INSERTED: Final = (*_CHANGING, *_JOB_KEY, *_FIXED)
_ATTEMPT_COLUMNS: Final = tuple(ATTEMPTS.columns)
_OF_AN_END: Final = _ATTEMPT_COLUMNS[_ATTEMPT_COLUMNS.index("status") :]

INSERT_JOB: Final = f"INSERT INTO jobs ({', '.join(_INSERTED)}) VALUES ({_nullable_marks(_INSERTED)})"  # noqa: S608
#: Names only what can change: SQLite rewrites every index that has a column named here, changed or not.
UPDATE_JOB: Final = (
    f"UPDATE jobs SET {', '.join(f'{name} = {_nullable_marks((name,))}' for name in _CHANGING)} "  # noqa: S608
    "WHERE id = ? AND queue = ?"
)
DELETE_JOB: Final = "DELETE FROM jobs WHERE id = ? AND queue = ?"
DELETE_ATTEMPTS: Final = "DELETE FROM attempts WHERE id >= ? AND id < ?"
UPDATE_DATA: Final = f"UPDATE jobs SET data = {_NULLABLE['data']} WHERE id = ? AND queue = ?"  # noqa: S608
SELECT_FOLD: Final = "SELECT fold, first_us, since_us FROM jobs WHERE id = ? AND queue = ?"
PUT_ATTEMPT: Final = (
    f"INSERT INTO attempts ({', '.join(_ATTEMPT_COLUMNS)}) VALUES ({_nullable_marks(_ATTEMPT_COLUMNS)}) "  # noqa: S608
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _OF_AN_END)}"
)
PUT_DEAD_LETTER: Final = DEAD_LETTERS.putting()
DROP_DEAD_LETTER: Final = "DELETE FROM dead_letters WHERE job_id = ? AND queue = ?"
