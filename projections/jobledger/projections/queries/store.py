"""`Store`: a projection open for reading.

Every answer is read in one statement or transaction, so it is of one moment, which `position` returns.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import anyio

from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import files
from jobledger.projections.errors import ProjectionBehindError, ProjectionConfigError
from jobledger.projections.filters import DeadLetterFilter, JobFilter, Term, joined
from jobledger.projections.projector import Position, read_position
from jobledger.projections.queries.jobs import (
    FoundJobs,
    JobCounts,
    SearchLimits,
    count_jobs,
    find_jobs,
    resolved,
)
from jobledger.projections.queries.lanes import Order
from jobledger.projections.queries.letters import (
    FoundActs,
    FoundDeadLetters,
    FoundGroups,
    find_acts,
    find_groups,
    find_letters,
    group_acts,
)
from jobledger.projections.queries.levels import Level, LevelsAt, levels_at
from jobledger.projections.queries.levels import levels as read_levels
from jobledger.projections.queries.rows import (
    ATTEMPT_COLUMNS,
    JOB_COLUMNS,
    AttemptRow,
    ChosenJob,
    DeadLetterGroup,
    DeadLetterRow,
    JobRow,
    SlowAttempt,
    job_row,
    raw,
    struct,
)
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
from jobledger.projections.tables.acts import ActFilter, ActGroups, ActRow

#: The most matches that `find` returns: enough to show that a prefix is ambiguous.
FIND_MATCHES_MAX = 20
#: Pauses between two looks at a file that another process may be writing.
_LOOK_AGAIN_FIRST_S = 0.002
_LOOK_AGAIN_MAX_S = 0.05
_LIMITS: Final = SearchLimits()


class Store:
    """A projection open for reading; use it as a context manager.

    It reads the file that existed at `open`; after a rebuild it goes on with the old file until `renew`.
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
        identity = files.identity(path)  # before opening: `renew` must notice a replacement now
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
        order: Order = "newest",
        chosen: JobFilter | None = None,
        **conditions: Any,
    ) -> list[JobRow]:
        """Return the first page of `job_page` alone; the conditions are those of `JobFilter`, given as one or by name."""
        if state is not None:
            conditions["states"] = (str(state),)
        return self.job_page(chosen or JobFilter(**conditions), limit=limit, order=order).items

    def job_page(
        self,
        chosen: JobFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
        order: Order = "newest",
        limits: SearchLimits = _LIMITS,
    ) -> FoundJobs:
        """Return at most `limit` matching jobs, by creation; with the `cursor` of a page, the jobs that follow it.

        Pages neither miss nor repeat a job while jobs come and change, since a job keeps its place. If no index serves
        the whole filter, one answer reads no more rows than `limits` allow, and returns how far it read.

        Raises: CursorMismatchError for a cursor of another filter or order.
        """
        _check_limit(limit)
        with self.one_moment():
            return find_jobs(self._query, chosen, cursor=cursor, limit=limit, order=order, limits=limits)

    def job_counts(self, chosen: JobFilter, *, limits: SearchLimits = _LIMITS) -> JobCounts:
        """Return how many jobs match, by state; the filter's own states are ignored, so that each state is counted.

        The projector keeps the counts of all jobs and of each queue. Other filters read no more than `limits` allow.
        """
        with self.one_moment():
            return count_jobs(self._query, chosen, limits=limits)

    def resolved(self, chosen: JobFilter) -> JobFilter:
        """Return the filter with its `words` as the beginning of ids, if there are such ids among what may be seen."""
        return resolved(self._query, chosen)

    def chosen_jobs(self, chosen: JobFilter, limit: int | None = None) -> list[ChosenJob]:
        """Return the matching jobs, the oldest first; all of them without a limit."""
        where, values = self.resolved(chosen).where()
        sql = f"SELECT queue, id, task, status FROM jobs WHERE {where} ORDER BY created_at, rowid LIMIT ?"  # noqa: S608
        return [ChosenJob(*row) for row in self._query(sql, (*values, -1 if limit is None else limit))]

    def job(self, queue: str, job_id: str) -> JobRow | None:
        """Return one job, None when there is none."""
        found = self._query(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ? AND queue = ?", (job_id, queue))  # noqa: S608
        return job_row(found[0]) if found else None

    def folded(self, queue: str, job_id: str) -> Job | None:
        """Return one job as `evolve` computed it from its events, its steps without values; None when there is none."""
        found = self._query(
            "SELECT fold, result, completed_at, data FROM jobs WHERE id = ? AND queue = ?", (job_id, queue)
        )
        if not found:
            return None
        fold, result, completed_at, data = found[0]
        return job_values.with_input(job_values.unfold(fold, (job_id, queue), result, completed_at), data)

    def attempts(self, queue: str, job_id: str) -> list[AttemptRow]:
        """Return a job's attempts, the first one first."""
        first, beyond = f"{queue}/{job_id}/", f"{queue}/{job_id}0"  # "0" is the character after "/"
        sql = f"SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE id >= ? AND id < ? ORDER BY attempt_number"  # noqa: S608
        return [struct(AttemptRow, row) for row in self._query(sql, (first, beyond))]

    def find(self, prefix: str, *, queue: str | None = None) -> list[JobRef]:
        """Return up to FIND_MATCHES_MAX jobs whose id begins with `prefix`, in the order of their ids.

        If the prefix is a whole id, only jobs of that id are returned (one in each queue that has it), not longer ids.
        Children of a matching run are left out, since their ids begin with the run's.
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
        """Return at most `limit` dead letters that match every condition, by the time of death.

        The conditions are those of `DeadLetterFilter`, given as one or by name.
        """
        return self.dead_letter_page(chosen or DeadLetterFilter(**conditions), limit=limit, order=order).items

    def dead_letter_page(
        self,
        chosen: DeadLetterFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
        order: Order = "newest",
    ) -> FoundDeadLetters:
        """Return at most `limit` matching dead letters; with the `cursor` of a page, those that follow it.

        Raises: CursorMismatchError for a cursor of another filter or order.
        """
        _check_limit(limit)
        return find_letters(self._query, chosen, cursor=cursor, limit=limit, order=order)

    def dead_letter_count(self, chosen: DeadLetterFilter) -> int:
        """Return how many dead letters match."""
        where, values = chosen.where()
        return int(self._query(f"SELECT count(*) FROM dead_letters WHERE {where}", values)[0][0])  # noqa: S608

    def dead_letter_groups(self, limit: int = 50, *, chosen: DeadLetterFilter) -> list[DeadLetterGroup]:
        """Return at most `limit` groups of one fingerprint, the largest first."""
        return self.dead_letter_group_page(chosen, limit=limit).items

    def dead_letter_group_page(
        self, chosen: DeadLetterFilter, *, cursor: str | None = None, limit: int = 50
    ) -> FoundGroups:
        """Return at most `limit` groups of one fingerprint, the largest first; with a `cursor` those that follow.

        A group that grows or shrinks meanwhile may move from one page to another.

        Raises: CursorMismatchError for a cursor of another filter.
        """
        _check_limit(limit)
        return find_groups(self._query, chosen, cursor=cursor, limit=limit)

    def acts(self, limit: int = 50, *, chosen: ActFilter | None = None) -> list[ActRow]:
        """Return at most `limit` matching acts of people, the newest first."""
        return self.act_page(chosen or ActFilter(), limit=limit).items

    def act_page(self, chosen: ActFilter, *, cursor: str | None = None, limit: int = 50) -> FoundActs:
        """Return at most `limit` matching acts of people, the newest first; with a `cursor` those that follow.

        Raises: CursorMismatchError for a cursor of another filter.
        """
        _check_limit(limit)
        return find_acts(self._query, chosen, cursor=cursor, limit=limit)

    def act_groups(
        self, limit: int = 50, *, chosen: ActFilter, together: bool = True, acts_max: int = 10_000
    ) -> ActGroups:
        """Return at most `limit` of the newest matching acts; acts done together on many jobs count as one.

        These are acts of one person with one reason within seconds of each other, each on another job. Only the newest
        `acts_max` acts are read. Without `together` each act counts by itself.
        """
        _check_limit(limit)
        return group_acts(self._query, chosen, limit=limit, together=together, acts_max=acts_max)

    def act_count(self, chosen: ActFilter) -> int:
        """Return how many acts match."""
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

    def levels(self, since: datetime, until: datetime, *, queue: str | None = None) -> list[Level]:
        """Return how many jobs were in each state from `since` to `until`, of a queue or of all together.

        The first level is the one at `since`; each later one is of a minute at whose end the counts had changed. For
        minutes more than two to three days older than the newest event, only the last minute of each hour is kept, for
        90 days or while there is room: the list begins with the oldest that is kept.
        """
        with self.one_moment():
            return read_levels(self._query, since, until, queue)

    def levels_at(self, at: datetime) -> LevelsAt | None:
        """Return jobs by queue and state at a past moment, to the minute or (see `levels`) the hour; None: not kept.

        The server's clock counts. For exact lists of that moment, see `as_of`.
        """
        with self.one_moment():
            return levels_at(self._query, at)

    def totals(self, *, queue: str | None = None, task: str | None = None) -> list[TotalsRow]:
        """Return the counts since the projection's `begins_at`, by queue and task."""
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
        terms: Sequence[Term] = (),
    ) -> list[BucketRow]:
        """Return the counts of each span of `step_s` seconds (whole minutes), the oldest first, by queue and task.

        Begins with the span that contains `since`, and ends before `until`, by the server's time; spans without events
        are left out. Returns at most `limit` rows; if there are as many, go on from the last row's time. `terms`:
        conditions on `queue` and `task`.
        """
        _check_limit(limit)
        where, given = joined(terms)
        span = bucket_values(since, until, step_s)
        minutes = (span["minutes"], span["since"], span["until"])
        values = (*minutes, queue, queue, task, task, *given, limit)
        return [bucket_row(row, step_s) for row in self._query(BUCKETS_SQL.format(where), values)]

    def failures(self, *, queue: str | None = None, task: str | None = None) -> list[FailureRow]:
        """Return failed attempts and dead letters by type of error, the most frequent of each task first."""
        found = self._query(FAILURES_SQL, (queue, queue, task, task))
        return [struct(FailureRow, row) for row in found]

    def workers(self, limit: int = 1_000) -> list[WorkerRow]:
        """Return the workers that ever appended an event, the most recent one first."""
        _check_limit(limit)
        return [struct(WorkerRow, row) for row in self._query(WORKERS_SQL, (limit,))]

    def slowest(self, limit: int = 10, *, queue: str | None = None) -> list[SlowAttempt]:
        """Return the finished attempts that took longest, the longest first."""
        _check_limit(limit)
        sql = (
            "SELECT a.queue, a.job_id, j.task, a.attempt_number, a.status, a.worker, a.started_at, a.duration_ms, j.data "
            "FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id AND j.queue = a.queue "
            "WHERE a.duration_ms IS NOT NULL AND (? IS NULL OR a.queue = ?) ORDER BY a.duration_ms DESC LIMIT ?"
        )
        found = self._query(sql, (queue, queue, limit))
        return [struct(SlowAttempt, (*row[:-1], raw(row[-1]))) for row in found]

    @contextlib.contextmanager
    def one_moment(self) -> Generator[None, None, None]:
        """Answer all queries within the block as of one moment; blocks may be nested."""
        if self._connection.in_transaction:
            yield
            return
        with files.translated(self.path, self._busy_timeout_s):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def timers_pending(self) -> int:
        """Return how many jobs wait for a moment."""
        always = "SELECT coalesce(sum(scheduled + retry_wait), 0) FROM queues"
        some = "SELECT count(*) FROM jobs WHERE status IN ('waiting', 'paused') AND due_at IS NOT NULL"
        return int(self._query(f"SELECT ({always}) + ({some})", ())[0][0])

    def renew(self) -> None:
        """Change to the present file, if a rebuild replaced the old one. Raises: as `open`."""
        identity = files.identity(self.path)
        if identity != self._identity:
            renewed = files.open_reader(self.path, busy_timeout_s=self._busy_timeout_s)
            self._connection.close()
            self._connection, self._identity = renewed, identity

    def position(self) -> Position:
        """Return the position of these rows."""
        with files.translated(self.path, self._busy_timeout_s):
            return read_position(self._connection)

    async def wait_for(self, stream_sequence: int, *, timeout_s: float = 10.0) -> Position:
        """Wait until the rows have the event at `stream_sequence`, and return their position.

        A projector follows the ledger, here or in another process. After a rebuild it goes on with the new file.

        Raises: ProjectionBehindError, and the errors of the file.
        """
        pause_s, reached = _LOOK_AGAIN_FIRST_S, 0
        with anyio.move_on_after(timeout_s):
            while True:
                self.renew()
                position = self.position()
                reached = position.stream_sequence
                if reached >= stream_sequence:
                    return position
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LOOK_AGAIN_MAX_S)
        raise ProjectionBehindError(self.path, stream_sequence, reached, timeout_s)

    def select(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT over the tables of docs/projections.md, which may change with the schema."""
        return self._query(sql, values)

    def batches(self, sql: str, rows_max: int) -> Generator[list[tuple[Any, ...]], None, None]:
        """Yield the rows of a SELECT, at most `rows_max` at once; see `select`."""
        with files.translated(self.path, self._busy_timeout_s):
            cursor = self._connection.execute(sql)
            while rows := cursor.fetchmany(rows_max):
                yield rows

    def _query(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with files.translated(self.path, self._busy_timeout_s):
            return self._connection.execute(sql, values).fetchall()


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise ProjectionConfigError(f"limit must be 1 or more, got {limit}")
