"""What a projection can be asked: lists, counts and rankings, as frozen Structs ready for JSON.

Every answer is read in one statement, so it is one moment's truth. Which moment, `position` tells.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar

import anyio
import msgspec

from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import files
from jobledger.projections.errors import ProjectionConfigError, ProjectionTimeoutError
from jobledger.projections.filters import NOTHING_SAID, DeadLetterFilter, JobFilter, SaidFilter
from jobledger.projections.projector import Position, read_position
from jobledger.projections.statistics.answers import (
    BUCKETS_SQL,
    FAILURES_SQL,
    QUEUES_SQL,
    TOTALS_SQL,
    WORKERS_SQL,
    BucketRow,
    FailureRow,
    QueueRow,
    TotalsRow,
    WorkerRow,
    bucket_row,
    bucket_values,
    queue_row,
    totals_row,
)
from jobledger.projections.statistics.tally import QUEUE_COUNTS
from jobledger.projections.tables import job_values
from jobledger.projections.tables.acts import ActFilter, ActRow

Order = Literal["newest", "oldest"]

#: Matches that `find` returns at most: enough to say that a prefix is ambiguous.
FIND_MATCHES_MAX = 20
#: Pauses between two looks at a file that another process may be writing.
_LOOK_AGAIN_FIRST_S = 0.002
_LOOK_AGAIN_MAX_S = 0.05


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """One job. Times are ISO-8601 text in UTC; `input` and `result` are JSON, or a reference to the object store."""

    id: str
    queue: str
    task: str
    status: str
    priority: str
    input: msgspec.Raw | None
    result: msgspec.Raw | None
    error: str | None  #: message of the newest failure or of the dead letter
    error_type: str | None
    created_at: str
    updated_at: str
    due_at: str | None  #: when a waiting job moves on by itself
    started_at: str | None  #: of the first attempt
    completed_at: str | None  #: when the present final state was entered
    attempt_count: int
    max_attempts: int
    retry_count: int  #: attempts after the first, without those given back
    max_retries: int
    dead_reason: str | None
    cancel_requested: bool
    worker: str | None  #: of the running attempt
    progress_done: float | None
    progress_total: float | None
    progress_note: str | None
    timeout_s: float | None
    tenant: str
    batch: str
    tick: str
    correlation: str
    metadata: dict[str, str]
    limits: tuple[str, ...]
    created_by: str  #: who asked for it; "": that is not known
    trace_id: str
    last_sequence: int
    parent_queue: str | None  #: of the child of a run; None: it is nobody's child
    parent_id: str | None
    parent_step: str | None  #: key of the step that asked for it
    parent_item: int | None
    version: str | None  #: of the workflow's code that a run is bound to
    awaiting: str | None  #: what a paused run waits for


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job."""

    id: str  #: `<queue>/<job id>/<attempt>`
    queue: str
    job_id: str
    attempt_number: int  #: from 1
    status: str
    error: str | None
    error_type: str | None
    started_at: str
    finished_at: str | None
    duration_ms: float | None  #: by the clocks of those who appended both ends; None while running
    worker: str
    epoch: int


class DeadLetterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits for a person."""

    queue: str
    job_id: str
    task: str
    reason: str
    error_type: str | None
    error: str | None
    traceback: str | None
    fingerprint: str  #: equal for what is most likely one cause
    attempts: int
    dead_at: str
    last_sequence: int


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that share a fingerprint, with the newest of them as the example."""

    fingerprint: str
    count: int
    task: str
    reason: str
    error_type: str | None
    error: str | None
    queue: str
    job_id: str
    newest: str
    oldest: str


class ChosenJob(NamedTuple):
    """One job in a list of those that an act is about."""

    queue: str
    job_id: str
    task: str
    status: str


class SlowAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A finished attempt, in the list of the longest ones."""

    queue: str
    job_id: str
    task: str
    attempt_number: int
    status: str
    worker: str
    started_at: str
    duration_ms: float
    input: msgspec.Raw | None


_Row = TypeVar("_Row", bound=msgspec.Struct)


class Store:
    """A projection open for reading; use it as a context manager.

    It sees the file that was there at `open`: after a rebuild it goes on with the old one until opened anew.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        busy_timeout_s: float,
        identity: files.Identity | None = None,
    ) -> None:
        self.path = path
        self._connection = connection
        self._busy_timeout_s = busy_timeout_s
        self._identity = identity

    @classmethod
    def open(cls, path: Path | str, *, busy_timeout_s: float = 5.0) -> Self:
        """Open an existing projection.

        Raises: ProjectionMissingError and the other errors of the file, each naming what to run.
        """
        path = Path(path)
        identity = files.identity(path)  # before opening: of two files, the newer one must not count as seen
        return cls(files.open_reader(path, busy_timeout_s=busy_timeout_s), path, busy_timeout_s, identity)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def jobs(
        self,
        limit: int = 50,
        *,
        state: JobState | str | None = None,
        queue: str | None = None,
        task: str | None = None,
        since: str | None = None,
        trace_id: str | None = None,
        said: SaidFilter = NOTHING_SAID,
        order: Order = "newest",
        members: bool = True,
    ) -> list[JobRow]:
        """Return at most `limit` jobs by creation, those that fit every filter; `since` is ISO-8601 text in UTC.

        Without `members`, children of runs are left out.
        """
        _check_limit(limit)
        filters = {"queue = ?": queue, "task = ?": task, "created_at >= ?": since, "trace_id = ?": trace_id}
        said_terms, said_values = said.terms()
        terms = [*(term for term, value in filters.items() if value is not None), *said_terms]
        terms += [] if members else ["parent_id IS NULL"]
        values: list[object] = [*(value for value in filters.values() if value is not None), *said_values]
        direction = "DESC" if order == "newest" else "ASC"
        tail = f"ORDER BY created_at {direction}, rowid {direction} LIMIT ?"
        states: list[str | None] = [str(state)] if state is not None else [None]
        if queue is not None and task is None and state is None:
            states = [
                each.value for each in JobState
            ]  # one short walk each along (queue, status, created_at)
        found: list[tuple[Any, ...]] = []
        for each in states:
            where = " AND ".join(terms + ([] if each is None else ["status = ?"])) or "1"
            bound = [*values, *([] if each is None else [each]), limit]
            found += self._query(f"SELECT {_JOB_COLUMNS}, rowid FROM jobs WHERE {where} {tail}", bound)  # noqa: S608
        created = JobRow.__struct_fields__.index("created_at")
        found.sort(key=lambda row: (row[created], row[-1]), reverse=order == "newest")
        return [_job_row(row[:-1]) for row in found[:limit]]

    def chosen_jobs(self, chosen: JobFilter, limit: int | None = None) -> list[ChosenJob]:
        """Return the jobs that fit, the oldest first; all of them without a limit."""
        where, values = chosen.where()
        sql = f"SELECT queue, id, task, status FROM jobs WHERE {where} ORDER BY created_at, rowid LIMIT ?"  # noqa: S608
        return [ChosenJob(*row) for row in self._query(sql, (*values, -1 if limit is None else limit))]

    def job(self, queue: str, job_id: str) -> JobRow | None:
        """Return one job, None when there is none."""
        found = self._query(f"SELECT {_JOB_COLUMNS} FROM jobs WHERE id = ? AND queue = ?", (job_id, queue))  # noqa: S608
        return _job_row(found[0]) if found else None

    def folded(self, queue: str, job_id: str) -> Job | None:
        """Return one job as `evolve` computed it from its events, its steps without values; None when there is none."""
        found = self._query("SELECT fold, data FROM jobs WHERE id = ? AND queue = ?", (job_id, queue))
        return job_values.with_input(job_values.unfold(found[0][0]), found[0][1]) if found else None

    def attempts(self, queue: str, job_id: str) -> list[AttemptRow]:
        """Return a job's attempts, the first one first."""
        first, beyond = f"{queue}/{job_id}/", f"{queue}/{job_id}0"  # "0" is the character after "/"
        sql = f"SELECT {_ATTEMPT_COLUMNS} FROM attempts WHERE id >= ? AND id < ? ORDER BY attempt_number"  # noqa: S608
        return [_struct(AttemptRow, row) for row in self._query(sql, (first, beyond))]

    def find(self, prefix: str, *, queue: str | None = None) -> list[JobRef]:
        """Return up to FIND_MATCHES_MAX jobs whose id begins with `prefix`, in the order of their ids.

        An exact match is the only answer, though longer ids begin with it too; in several queues it is several. Children of
        a run that matches are left out: their ids begin with the run's.
        """
        beyond = f"{prefix}~"  # every character an id can have is below the tilde
        sql = (
            "SELECT queue, id FROM jobs WHERE id >= ? AND id < ? AND (? IS NULL OR queue = ?) "
            "AND (parent_id IS NULL OR parent_id < ? OR parent_id >= ?) ORDER BY id, queue LIMIT ?"
        )
        found = self._query(sql, (prefix, beyond, queue, queue, prefix, beyond, FIND_MATCHES_MAX))
        matches = [JobRef(queue=row[0], job_id=row[1]) for row in found]
        return [match for match in matches if match.job_id == prefix] or matches

    def dead_letters(
        self,
        limit: int = 50,
        *,
        order: Order = "newest",
        chosen: DeadLetterFilter | None = None,
        **conditions: Any,
    ) -> list[DeadLetterRow]:
        """Return at most `limit` dead letters by the time they became one, those that fit every condition.

        The conditions are those of `DeadLetterFilter`, given as one or by name.
        """
        _check_limit(limit)
        where, values = (chosen or DeadLetterFilter(**conditions)).where()
        direction = "DESC" if order == "newest" else "ASC"
        sql = (
            f"SELECT {_DEAD_LETTER_COLUMNS} FROM dead_letters WHERE {where} "  # noqa: S608 - our own columns
            f"ORDER BY dead_at {direction}, last_sequence {direction} LIMIT ?"
        )
        return [_struct(DeadLetterRow, row) for row in self._query(sql, [*values, limit])]

    def dead_letter_count(self, chosen: DeadLetterFilter) -> int:
        """Return how many dead letters fit."""
        where, values = chosen.where()
        return int(self._query(f"SELECT count(*) FROM dead_letters WHERE {where}", values)[0][0])  # noqa: S608

    def dead_letter_groups(self, limit: int = 50, *, chosen: DeadLetterFilter) -> list[DeadLetterGroup]:
        """Return at most `limit` groups of one fingerprint, the largest first."""
        _check_limit(limit)
        where, values = chosen.where()
        # With max() as the only min or max in it, SQLite takes the other columns from the row that has it.
        newest = (
            "SELECT fingerprint, count(*) AS n, task, reason, error_type, error, queue, job_id, "  # noqa: S608
            f"max(dead_at) FROM dead_letters WHERE {where} GROUP BY fingerprint ORDER BY n DESC, fingerprint LIMIT ?"
        )
        oldest = f"SELECT min(dead_at) FROM dead_letters WHERE fingerprint = g.fingerprint AND {where}"  # noqa: S608
        sql = f"SELECT g.*, ({oldest}) FROM ({newest}) AS g ORDER BY n DESC, fingerprint"  # noqa: S608
        return [_struct(DeadLetterGroup, row) for row in self._query(sql, [*values, *values, limit])]

    def acts(self, limit: int = 50, *, chosen: ActFilter | None = None) -> list[ActRow]:
        """Return at most `limit` acts of people that fit, the newest first."""
        _check_limit(limit)
        where, values = (chosen or ActFilter()).where()
        sql = f"SELECT {_ACT_COLUMNS} FROM acts WHERE {where} ORDER BY stream_sequence DESC LIMIT ?"  # noqa: S608
        return [_act_row(row) for row in self._query(sql, [*values, limit])]

    def act_count(self, chosen: ActFilter) -> int:
        """Return how many acts fit."""
        where, values = chosen.where()
        return int(self._query(f"SELECT count(*) FROM acts WHERE {where}", values)[0][0])  # noqa: S608

    def counts_by_state(self, queue: str | None = None) -> dict[str, int]:
        """Return how many jobs are in each state, 0 where none is."""
        sums = ", ".join(f"coalesce(sum({name}), 0)" for name in QUEUE_COUNTS)
        (found,) = self._query(f"SELECT {sums} FROM queues WHERE ? IS NULL OR queue = ?", (queue, queue))  # noqa: S608
        return dict(zip(QUEUE_COUNTS, found, strict=True))

    def queues(self, queue: str | None = None) -> list[QueueRow]:
        """Return every queue that ever had a job, one row a priority, by name."""
        return [queue_row(row) for row in self._query(QUEUES_SQL, (queue, queue))]

    def totals(self, *, queue: str | None = None, task: str | None = None) -> list[TotalsRow]:
        """Return what happened since the projection's `begins_at`, by queue and task."""
        return [totals_row(row) for row in self._query(TOTALS_SQL, (queue, queue, task, task))]

    def buckets(
        self,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        *,
        queue: str | None = None,
        task: str | None = None,
        step_s: int = 60,
        limit: int = 100_000,
    ) -> list[BucketRow]:
        """Return what happened in each span of `step_s` seconds (whole minutes), the oldest first, by queue and task.

        Begins with the span that `since` lies in and ends before `until`, by the server's time; spans without events
        are left out. At most `limit` rows: go on from the last one's time where there are as many.
        """
        _check_limit(limit)
        values = {**bucket_values(since, until, step_s), "queue": queue, "task": task, "limit": limit}
        return [bucket_row(row, step_s) for row in self._query(BUCKETS_SQL, values)]

    def failures(self, *, queue: str | None = None, task: str | None = None) -> list[FailureRow]:
        """Return failed attempts and dead letters by type of error, the most frequent of each task first."""
        found = self._query(FAILURES_SQL, (queue, queue, task, task))
        return [_struct(FailureRow, row) for row in found]

    def workers(self, limit: int = 1_000) -> list[WorkerRow]:
        """Return the workers that ever appended something, the one that did so last first."""
        _check_limit(limit)
        return [_struct(WorkerRow, row) for row in self._query(WORKERS_SQL, (limit,))]

    def slowest(self, limit: int = 10, *, queue: str | None = None) -> list[SlowAttempt]:
        """Return the finished attempts that took longest, the longest first."""
        _check_limit(limit)
        sql = (
            "SELECT a.queue, a.job_id, j.task, a.attempt_number, a.status, a.worker, a.started_at, a.duration_ms, j.data "
            "FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id AND j.queue = a.queue "
            "WHERE a.duration_ms IS NOT NULL AND (? IS NULL OR a.queue = ?) ORDER BY a.duration_ms DESC LIMIT ?"
        )
        found = self._query(sql, (queue, queue, limit))
        return [_struct(SlowAttempt, (*row[:-1], _raw(row[-1]))) for row in found]

    @contextlib.contextmanager
    def one_moment(self) -> Generator[None, None, None]:
        """Answer everything that is asked inside the block as of one moment."""
        with files.translated(self.path, self._busy_timeout_s):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def timers_pending(self) -> int:
        """Return how many jobs wait for a moment."""
        always = "SELECT coalesce(sum(scheduled + retry_wait), 0) FROM queues"
        some = "SELECT count(*) FROM jobs WHERE status = 'paused' AND due_at IS NOT NULL"
        return int(self._query(f"SELECT ({always}) + ({some})", ())[0][0])

    def position(self) -> Position:
        """Return how far these rows go."""
        with files.translated(self.path, self._busy_timeout_s):
            return read_position(self._connection)

    async def wait_for(self, stream_sequence: int, *, timeout_s: float = 10.0) -> Position:
        """Wait until the rows have the event at `stream_sequence`, and return their position.

        A projector follows the ledger, here or in another process. Goes on in the new file after a rebuild.

        Raises: ProjectionTimeoutError, and the errors of the file.
        """
        pause_s = _LOOK_AGAIN_FIRST_S
        with anyio.move_on_after(timeout_s):
            while True:
                identity = files.identity(self.path)
                if identity != self._identity:  # a rebuild put another file there
                    renewed = files.open_reader(self.path, busy_timeout_s=self._busy_timeout_s)
                    self._connection.close()
                    self._connection, self._identity = renewed, identity
                position = self.position()
                if position.stream_sequence >= stream_sequence:
                    return position
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LOOK_AGAIN_MAX_S)
        raise ProjectionTimeoutError(
            f"the projection {self.path} did not reach stream sequence {stream_sequence} within {timeout_s:g} s: "
            "see whether a projector runs, with `jobledger projection status`",
        )

    def select(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT over the tables of docs/projections.md, which may change with the schema."""
        return self._query(sql, values)

    def batches(self, sql: str, rows_max: int) -> Generator[list[tuple[Any, ...]], None, None]:
        """Yield the rows of a SELECT, at most `rows_max` at once; see `select`."""
        with files.translated(self.path, self._busy_timeout_s):
            cursor = self._connection.execute(sql)
            while rows := cursor.fetchmany(rows_max):
                yield rows

    def _query(self, sql: str, values: Sequence[object] | Mapping[str, object]) -> list[tuple[Any, ...]]:
        with files.translated(self.path, self._busy_timeout_s):
            return self._connection.execute(sql, values).fetchall()


def _columns(row: type[msgspec.Struct]) -> str:
    return ", ".join("data" if name == "input" else name for name in row.__struct_fields__)


_JOB_COLUMNS = _columns(JobRow)
_ATTEMPT_COLUMNS = _columns(AttemptRow)
_DEAD_LETTER_COLUMNS = _columns(DeadLetterRow)
_ACT_COLUMNS = _columns(ActRow)


def _struct(kind: type[_Row], row: Sequence[Any]) -> _Row:
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))


def _job_row(row: Sequence[Any]) -> JobRow:
    values = dict(zip(JobRow.__struct_fields__, row, strict=True))
    values["input"], values["result"] = _raw(values["input"]), _raw(values["result"])
    values["cancel_requested"] = bool(values["cancel_requested"])
    values["metadata"] = msgspec.json.decode(values["metadata"], type=dict[str, str])
    values["limits"] = tuple(values["limits"].split())
    return JobRow(**values)


def _act_row(row: Sequence[Any]) -> ActRow:
    return _struct(ActRow, (*row[:-1], bool(row[-1])))


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise ProjectionConfigError(f"limit must be 1 or more, got {limit}")
