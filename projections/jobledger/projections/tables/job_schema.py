"""The tables of jobs, attempts and dead letters, and the statements that write them.

The columns written by each statement are listed here once; `job_values` builds the values, `jobs` writes them.
"""

from __future__ import annotations

import operator
from typing import Final

from jobledger.projections.statistics.answers import OF_INTEREST
from jobledger.projections.statistics.held_jobs import IS_HELD
from jobledger.projections.table import Column, Index, Query, Table, View, integer, real, text, timestamp

VERSION: Final = 25  #: version of the tables of jobs, runs and steps; raised whenever a column changes
#: The id is first, so that one index serves both the key and the search by id prefix over all queues.
_JOB_KEY: Final = {
    "id": text("the job's id, unique within its queue"),
    "queue": text("the queue"),
}
#: Fields of the job's order that are stored unchanged as text.
_OF_ORDER: Final = {
    "tenant": text("whom the job belongs to, or empty"),
    "batch": text("the batch the job is part of, or empty"),
    "tick": text("the tick of the schedule that made the job, or empty"),
    "correlation": text("the first cause the job belongs to, or empty"),
    "key": text("the key that seals the job's values, `<owner>/<number>`; empty for a job without an owner"),
}
#: Columns that are written once, when a job is first seen.
_FIXED: Final = {
    "task": text("the name of the function the job runs"),
    "created_at": timestamp("when it was enqueued"),
    **_OF_ORDER,
    "metadata": text("pairs of words that its enqueuer said of it, as a JSON object"),
    "limits": text("the names of its limits, separated by spaces; empty without any"),
    "created_by": text(
        "who asked for it: a person, or the process that enqueued it; empty where that is not known"
    ),
    "trace_id": text("the id of its trace: its caller's, or one of its own; empty for older jobs"),
    "data": text("the input, as JSON; NULL without any"),
    "first_us": integer("the server's time of its first event, in microseconds since 1970", is_internal=True),
}
#: Columns that are written again whenever the job changes.
_CHANGING: Final = {
    "status": text("the state, one of those in [lifecycle](lifecycle.md#states)"),
    "priority": text("`high`, `normal` or `low`"),
    "result": text("what the task returned, as JSON; NULL before"),
    "error": text("the message of the newest failure or of the dead letter; NULL without any"),
    "error_type": text("the class name of that exception; NULL without any"),
    "updated_at": timestamp("when its newest event but notes was appended"),
    "due_at": timestamp("when a waiting job moves on by itself; NULL where it does not wait for a time"),
    "started_at": timestamp("when its first attempt began; NULL before"),
    "completed_at": timestamp("when the present final state was entered, whichever it is; NULL before"),
    "attempt_count": integer("attempts begun"),
    "max_attempts": integer("attempts it may have, beyond those given back"),
    "retry_count": integer("attempts after the first, without those given back"),
    "max_retries": integer("`max_attempts` less one"),
    "dead_reason": text(
        "why it is or was a dead letter: `exhausted`, `rejected`, `invalid`, `max_deliver`, `diverged`; NULL if never"
    ),
    "cancel_requested": integer("1: somebody asked a running job to end"),
    "worker": text("who runs it; NULL unless it runs"),
    "progress_done": real("how much the running task said is done; NULL without a word"),
    "progress_total": real("of how much; NULL where not known"),
    "progress_note": text("a word of the task about it; NULL without one"),
    "timeout_s": real("seconds that an attempt may take; NULL: no limit"),
    "last_sequence": integer("the stream sequence of its newest event"),
    "fold": Column(bytes, "the folded job, from which the projector continues", is_internal=True),
    "since_us": integer(
        "the server's time of the event that began its state or its attempt, in microseconds since 1970",
        is_internal=True,
    ),
}
#: Columns that the projector writes for runs and their children alone; in other rows they stay NULL and cost nothing.
_OF_RUNS: Final = {
    "parent_queue": text("of the child of a run: the run's queue; NULL: it is nobody's child"),
    "parent_id": text("of the child of a run: the run's id"),
    "parent_step": text("of the child of a run: the key of the step that asked for it"),
    "parent_item": integer("of the child of a run: its number in that step, from 0"),
    "version": text("the version of the workflow's code that the run is bound to; NULL: none"),
    "awaiting": text(
        "what a run waits for: words out of `signal`, `sleep`, `children`, `retry` and `step`, separated by "
        "spaces, or `operator` where a person paused the job; NULL: it waits for none of these, or its own code knows"
    ),
}
#: Dead children of runs, and runs that died because another job has the id of a child. Each is searched for every few
#: seconds, among possibly many dead letters.
IS_DEAD_CHILD: Final = "status = 'dead_lettered' AND parent_id IS NOT NULL"
LACKS_CHILD: Final = "error_type = 'ChildIdTakenError'"
JOBS: Final = Table(
    name="jobs",
    row="job, as its events add up; an id is unique within its queue",
    columns={**_JOB_KEY, **_FIXED, **_CHANGING, **_OF_RUNS},
    key=tuple(_JOB_KEY),
    # Every list is newest first: of all jobs, or of one status, queue or task. A list of a queue or a task merges its
    # states.
    indexes=(
        Index(("created_at",)),
        Index(("status", "created_at")),
        Index(("queue", "status", "created_at")),
        Index(("task", "status", "created_at")),
        Index(("tick",), where="tick <> '' AND error IS NOT NULL"),
        Index(("tick", "status"), where="tick <> ''"),
        Index(("trace_id",), where="trace_id <> ''"),
        Index(("tenant", "created_at"), where="tenant <> ''"),
        Index(("correlation", "created_at"), where="correlation <> ''"),
        Index(("created_by", "created_at"), where="created_by <> ''"),
        Index(("key",), where="key <> ''"),
        Index(("completed_at",), where="completed_at IS NOT NULL"),
        Index(("queue", "priority", "status", "since_us"), where=OF_INTEREST),
        Index(("limits", "since_us", "status"), where=IS_HELD),
        Index(("parent_id", "parent_queue", "parent_step", "parent_item"), where="parent_id IS NOT NULL"),
        Index(("created_at", "parent_id"), where=IS_DEAD_CHILD),
        Index(("awaiting",), where="awaiting IS NOT NULL"),
        Index(("version",), where="version IS NOT NULL"),
    ),
    sequence="last_sequence",
)
ATTEMPTS: Final = Table(
    name="attempts",
    row="run of a job, lost ones included",
    columns={
        "id": text("`<queue>/<job id>/<n>`"),
        "queue": text("the job's queue"),
        "job_id": text("the job's id"),
        "attempt_number": integer("from 1"),
        "worker": text("who ran it: `<host>-<pid>-<random>`"),
        "epoch": integer("the stream sequence of its `started`"),
        "started_at": timestamp("when it began"),
        # columns from here on change when the attempt ends
        "status": text("`running`, or how it ended"),
        "finished_at": timestamp("when it ended; NULL while it runs"),
        "duration_ms": real(
            "milliseconds from its begin to its end, by the events' own times; NULL while it runs"
        ),
        "error": text("the message of its failure; NULL without one"),
        "error_type": text("the class name of that exception; NULL without one"),
    },
    key=("id",),
    indexes=(Index(("duration_ms",)), Index(("job_id",))),
    sequence="epoch",
)
DEAD_LETTERS: Final = Table(
    name="dead_letters",
    row="job that waits for a person; the row goes when the job is requeued or discarded",
    columns={
        "queue": text("the job's queue"),
        "job_id": text("the job's id"),
        "task": text("the job's task"),
        "tenant": text("whom the job belongs to, or empty"),
        "reason": text("`exhausted`, `rejected`, `invalid`, `max_deliver` or `diverged`"),
        "error_type": text("the class name of the last exception; NULL without one"),
        "error": text("its message; NULL without one"),
        "traceback": text("its traceback; NULL without one"),
        "fingerprint": text("equal for what is most likely one cause"),
        "pattern": text("the message without what differs from job to job; empty without an error"),
        "attempts": integer("attempts it had"),
        "dead_at": timestamp("when it became a dead letter"),
        "last_sequence": integer("the stream sequence of its newest event"),
    },
    key=("job_id", "queue"),
    # Causes are counted by these columns alone, without reading the rows, which hold tracebacks.
    indexes=(
        Index(("dead_at",)),
        Index(("fingerprint", "dead_at", "queue", "task", "tenant")),
        Index(("error_type", "dead_at"), where=LACKS_CHILD),
    ),
    sequence="last_sequence",
)
V_JOBS: Final = View(name="v_jobs", of=JOBS, renamed={"started_at": "processed_at", "error": "last_error"})
V_ATTEMPTS: Final = View(name="v_attempts", of=ATTEMPTS)
#: Jobs that recorded a step, with counts of their steps by outcome.
RUNS: Final = Query(
    name="runs",
    columns={
        **{name: JOBS.columns[name] for name in ("queue", "id", "task", "version", "status", "awaiting")},
        **{name: JOBS.columns[name] for name in ("parent_queue", "parent_id", "created_at", "completed_at")},
        "steps": integer("steps that are recorded"),
        "steps_completed": integer("of these, completed ones"),
        "steps_failed": integer("of these, ones that failed for good"),
        "children_open": integer("children that may exist and were not counted as ended"),
    },
    sql=(
        "SELECT j.queue, j.id, j.task, j.version, j.status, j.awaiting, j.parent_queue, j.parent_id, j.created_at, "
        "j.completed_at, count(*), sum(s.status = 'completed'), sum(s.status = 'failed'), "
        "coalesce(sum(s.items_open), 0) "
        "FROM steps AS s JOIN jobs AS j ON j.id = s.job_id AND j.queue = s.queue GROUP BY j.id, j.queue"
    ),
)
#: Every run that has children, with all jobs below it; the root itself has depth 0.
RUN_TREE: Final = Query(
    name="run_tree",
    columns={
        "root_queue": text("the queue of the run that is nobody's child"),
        "root_id": text("its id"),
        "depth": integer("how many parents the job has up to there"),
        **{name: JOBS.columns[name] for name in ("queue", "id", "task", "status", "awaiting")},
        **{name: JOBS.columns[name] for name in ("parent_queue", "parent_id", "parent_step", "parent_item")},
    },
    sql=(
        "WITH RECURSIVE tree AS ("
        "SELECT queue AS root_queue, id AS root_id, 0 AS depth, queue, id FROM jobs AS root "
        "WHERE (id, queue) IN (SELECT parent_id, parent_queue FROM jobs WHERE parent_id IS NOT NULL) "
        "AND NOT EXISTS (SELECT 1 FROM jobs AS p WHERE p.id = root.parent_id AND p.queue = root.parent_queue) "
        "UNION ALL SELECT t.root_queue, t.root_id, t.depth + 1, j.queue, j.id FROM tree AS t "
        "JOIN jobs AS j ON j.parent_id = t.id AND j.parent_queue = t.queue) "
        "SELECT t.root_queue, t.root_id, t.depth, j.queue, j.id, j.task, j.status, j.awaiting, j.parent_queue, "
        "j.parent_id, j.parent_step, j.parent_item FROM tree AS t JOIN jobs AS j ON j.id = t.id AND j.queue = t.queue"
    ),
)

#: Stand-ins for NULL as values of `jobs` and `attempts`. Python's sqlite3 looks for an adapter of every None and every
#: bytes, in vain, which takes about a microsecond each; it does not do so for str, int, float and bytearray
#: (`need_adapt` in CPython's Modules/_sqlite/statement.c). In SQLite no number equals a text, so no real value equals
#: its stand-in.
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


read_order: Final = operator.attrgetter(*_OF_ORDER)  #: the values of these columns, in their order
INSERTED: Final = (*_CHANGING, *_JOB_KEY, *_FIXED)
_ATTEMPT_COLUMNS: Final = tuple(ATTEMPTS.columns)
_OF_AN_END: Final = _ATTEMPT_COLUMNS[_ATTEMPT_COLUMNS.index("status") :]

INSERT_JOB: Final = f"INSERT INTO jobs ({', '.join(INSERTED)}) VALUES ({_nullable_marks(INSERTED)})"  # noqa: S608
#: Names only columns that can change: SQLite rewrites every index with a column named here, changed or not.
UPDATE_JOB: Final = (
    f"UPDATE jobs SET {', '.join(f'{name} = {_nullable_marks((name,))}' for name in _CHANGING)} "  # noqa: S608
    "WHERE id = ? AND queue = ?"
)
UPDATE_OF_RUN: Final = (
    f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _OF_RUNS)} WHERE id = ? AND queue = ?"  # noqa: S608
)
DELETE_JOB: Final = "DELETE FROM jobs WHERE id = ? AND queue = ?"
DELETE_ATTEMPTS: Final = "DELETE FROM attempts WHERE id >= ? AND id < ?"
UPDATE_DATA: Final = f"UPDATE jobs SET data = {_NULLABLE['data']} WHERE id = ? AND queue = ?"  # noqa: S608
SELECT_FOLD: Final = (
    "SELECT fold, result, completed_at, first_us, since_us FROM jobs WHERE id = ? AND queue = ?"
)
PUT_ATTEMPT: Final = (
    f"INSERT INTO attempts ({', '.join(_ATTEMPT_COLUMNS)}) VALUES ({_nullable_marks(_ATTEMPT_COLUMNS)}) "  # noqa: S608
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _OF_AN_END)}"
)
PUT_DEAD_LETTER: Final = DEAD_LETTERS.putting()
DROP_DEAD_LETTER: Final = "DELETE FROM dead_letters WHERE job_id = ? AND queue = ?"
