"""The tables of jobs, attempts, steps, dead letters, acts and statistics: folds events, writes each job once.

The caller owns the transaction. If it does not commit, it must call `forget`, since the cache is ahead then.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, cast

from jobledger.audit.counts import Counts
from jobledger.ledger.model.aggregates import JOB
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import Carried, Held, JobEvent, Queued, Scheduled
from jobledger.ledger.model.job import JobState, evolve
from jobledger.projections.position import SELECT_COUNTED
from jobledger.projections.statistics.archived_counts import begin_with, end_with
from jobledger.projections.statistics.levels import LEVELS, LEVELS_SPAN, Levels
from jobledger.projections.statistics.runs import RUN_TOTALS, STEP_TOTALS, RunTally
from jobledger.projections.statistics.spread import install
from jobledger.projections.statistics.tables import STATISTICS_TABLES, add_tally
from jobledger.projections.statistics.tally import SeenJob, Tally
from jobledger.projections.table import AggregateTables, CacheLimits, Row, Rows
from jobledger.projections.tables import job_schema as schema
from jobledger.projections.tables import job_values as values
from jobledger.projections.tables.acts import ACT_CLASSES, ACTS, NotedActs
from jobledger.projections.tables.run_tables import RUN_TABLES
from jobledger.projections.tables.steps import SIGNALS, STEPS, NotedSteps, remove_steps

_Key = tuple[str, str]  # (job id, queue), as in the primary key


class _NotNewError(sqlite3.IntegrityError):
    """The rows already have a job with the id of a new one: the old job was archived, which made its id free again."""


def _is_rerun(event: JobEvent) -> bool:
    if not isinstance(event, Queued | Scheduled | Held) or event.rerun_of is None:
        return False
    return event.member is None  # else a run made the job


def _sequence(stored: StoredEvent) -> int:
    return stored.stream_sequence


class JobRows(Rows):
    """The rows of jobs, and through a `Tally` those of statistics.

    Keeps the folds of the jobs that changed last, within limits; others are read back from their rows.
    """

    def __init__(self, connection: sqlite3.Connection, cache: CacheLimits) -> None:
        self._connection = connection
        self._limits = cache
        self._cache: OrderedDict[_Key, tuple[SeenJob, int]] = OrderedDict()  # (fold without input, its bytes)
        self._cache_bytes = 0
        self._counted_through: int | None = None  # as in the position; None: not read yet
        self._levels = Levels(connection)
        install(connection)

    def forget(self) -> None:
        """Empty the cache, because the rows differ from it."""
        self._forget_folds()
        self._counted_through = None
        self._levels.forget()

    def _forget_folds(self) -> None:
        self._cache.clear()
        self._cache_bytes = 0

    def go_on_from(self, counts: Counts | None, first_sequence: int) -> None:
        """Begin with the counts of an archive run; see `table.Rows`."""
        if counts is not None and counts.through_sequence >= first_sequence - 1:
            begin_with(self._connection, counts)

    def apply(self, messages: Sequence[Message]) -> None:
        """Fold job events, and write the rows of every job they touch."""
        events = cast("Sequence[StoredEvent]", messages)  # messages about jobs are decoded as these
        if self._counted_through is None:
            self._counted_through = int(self._connection.execute(SELECT_COUNTED).fetchone()[0])
        if not self._counted_through:
            self._apply(events)
            return
        counted = bisect_right(events, self._counted_through, key=_sequence)
        self._apply(events[:counted], totals=False)
        if events[-1].stream_sequence >= self._counted_through:
            end_with(self._connection)
            self.forget()
            self._counted_through = 0
            self._apply(events[counted:])

    def _apply(self, events: Sequence[StoredEvent], *, totals: bool = True) -> None:
        """Assume that jobs which begin here have no row, as is nearly always so: a check costs as much as the row."""
        try:
            self._fold(events, totals=totals, begun_are_new=True)
        except _NotNewError:
            self._forget_folds()
            self._fold(events, totals=totals, begun_are_new=False)

    def _fold(self, events: Sequence[StoredEvent], *, totals: bool, begun_are_new: bool) -> None:
        """Bring the rows forward.

        Raises: _NotNewError when the rows have a job that was assumed to be new; the rows are unchanged then.
        """
        before: dict[_Key, SeenJob | None] = {}
        after: dict[_Key, SeenJob] = {}
        replaced: dict[_Key, SeenJob | None] = {}
        levels, tally, acts, steps = self._levels.begin(), Tally(), NotedActs(), NotedSteps()
        runs = RunTally(lambda key: after.get(key) or self._known(key, look=True, keep=True))
        for stored, now_us in levels.timed(events, after, lambda key: replaced.get(key) or before[key]):
            event = stored.event
            key = (event.job, event.queue)
            known = after.get(key)
            if known is None:
                known = self._known(key, look=bool(event.prev) or not begun_are_new)
                # Its first events are older than these rows, or its rows were removed: it has none before its `carried`, by
                # which the archive run that moved those events stored the whole job.
                if known is None and event.prev and not isinstance(event, Carried):
                    job = evolve(None, event, stored.stream_sequence)
                    tally.add(event, None, job, now_us)
                    if type(event) in ACT_CLASSES:
                        acts.add(stored, None, job)
                    continue
                before[key] = known
            if known is not None and not event.prev:  # its job was archived, and the id was free again
                if begun_are_new and before[key] is not None:
                    raise _NotNewError("a job is known that begins")
                replaced.setdefault(key, before[key])
                steps.forget(key)
                known = before[key] = None
            job = evolve(None if known is None else known.job, event, stored.stream_sequence)
            after[key] = tally.add(event, known, job, now_us)
            if type(event) in ACT_CLASSES and (event.prev or _is_rerun(event)):  # a beginning is no act
                acts.add(stored, None if known is None else known.job, job)
            if job.steps or job.signals:
                steps.add(stored, None if known is None else known.job, job)
                runs.add(stored, None if known is None else known.job, job)
        for key, current in after.items():
            known = replaced.get(key) or before[key]
            tally.move(None if known is None else known.job, current.job)
        self.remove(key for key, known in replaced.items() if known is not None)
        self._write(before, after)
        acts.write(self._connection)
        steps.write(self._connection, lambda key: after[key].job)
        runs.write(self._connection)
        self._levels.write(levels, {queue for queue, _ in tally.gauges})
        add_tally(self._connection, tally, totals=totals)

    def remove(self, keys: Iterable[_Key]) -> None:
        """Remove all rows of some jobs that have ended; what was counted of them stays counted."""
        for job_id, queue in keys:
            self._connection.execute(schema.DELETE_JOB, (job_id, queue))
            first, beyond = f"{queue}/{job_id}/", f"{queue}/{job_id}0"  # "0" is the character after "/"
            self._connection.execute(schema.DELETE_ATTEMPTS, (first, beyond))
            remove_steps(self._connection, (job_id, queue))

    def _known(self, key: _Key, *, look: bool, keep: bool = False) -> SeenJob | None:
        """Return a job as it was before this transaction; `keep`: leave it in the cache."""
        cached = self._cache.get(key) if keep else self._cache.pop(key, None)
        if cached is not None:
            self._cache_bytes -= 0 if keep else cached[1]
            return cached[0]
        if not look:
            return None
        row = self._connection.execute(schema.SELECT_FOLD, key).fetchone()
        return None if row is None else SeenJob(values.unfold(row[0], key, *row[1:3]), *row[3:])

    def _write(self, before: dict[_Key, SeenJob | None], after: dict[_Key, SeenJob]) -> None:
        inserts: list[Row] = []
        updates: list[Row] = []
        inputs: list[Row] = []
        attempts: list[Row] = []
        of_runs: list[Row] = []
        for key, seen in after.items():
            known, job = before[key], seen.job
            old = None if known is None else known.job
            fold = values.fold_bytes(job)
            if old is None:
                inserts.append(
                    (
                        *values.job_changing(job, fold, seen.since_us),
                        *key,
                        *values.job_fixed(job, seen.first_us),
                    )
                )
            else:
                updates.append((*values.job_changing(job, fold, seen.since_us), *key))
                if (
                    job.order.input is not NO_VALUE or job.order.input_ref is not old.order.input_ref
                ):  # requeued with another input
                    inputs.append((values.data_text(job), *key))
            attempts += values.attempt_rows(job, old)
            of_run = values.job_of_run(job, old)
            if of_run is not None:
                of_runs.append((*of_run, *key))
            if not job.is_final:  # hardly anything follows a final state
                kept = SeenJob(values.without_input(job), seen.first_us, seen.since_us)
                self._cache[key] = (kept, len(fold))
                self._cache_bytes += len(fold)
        self._insert([key for key in after if before[key] is None], inserts)
        execute = self._connection.executemany
        execute(schema.UPDATE_JOB, updates)
        execute(schema.UPDATE_OF_RUN, of_runs)
        execute(schema.UPDATE_DATA, inputs)
        execute(schema.PUT_ATTEMPT, attempts)
        self._write_dead_letters(before, after)
        self._evict()

    def _insert(self, keys: list[_Key], inserts: list[Row]) -> None:
        """Insert the rows of new jobs, or none.

        It uses no savepoint: a draft has no journal for a rollback, and in a followed file each changed page would also
        be written to a temporary file.

        Raises: _NotNewError.
        """
        before = self._connection.total_changes
        try:
            self._connection.executemany(schema.INSERT_JOB, inserts)
        except sqlite3.IntegrityError as error:
            inserted = self._connection.total_changes - before
            self._connection.executemany(schema.DELETE_JOB, keys[:inserted])
            raise _NotNewError(str(error)) from error

    def _write_dead_letters(self, before: dict[_Key, SeenJob | None], after: dict[_Key, SeenJob]) -> None:
        """Write a row for each dead letter; delete the row of a job that is no dead letter any more."""
        dead = JobState.DEAD_LETTERED
        puts = [values.dead_letter_row(known.job) for known in after.values() if known.job.state is dead]
        self._connection.executemany(schema.PUT_DEAD_LETTER, puts)
        gone = [
            key
            for key, old in before.items()
            if old is not None and old.job.state is dead and after[key].job.state is not dead
        ]
        self._connection.executemany(schema.DROP_DEAD_LETTER, gone)

    def _evict(self) -> None:
        while len(self._cache) > self._limits.jobs_max or self._cache_bytes > self._limits.bytes_max:
            _, (_, size_bytes) = self._cache.popitem(last=False)
            self._cache_bytes -= size_bytes


JOB_TABLES: Final = AggregateTables(
    aggregate=JOB.name,
    version=schema.VERSION,
    tables=(
        schema.JOBS,
        schema.ATTEMPTS,
        schema.DEAD_LETTERS,
        STEPS,
        SIGNALS,
        RUN_TABLES,
        ACTS,
        *STATISTICS_TABLES,
        LEVELS,
        LEVELS_SPAN,
        STEP_TOTALS,
        RUN_TOTALS,
    ),
    views=(schema.V_JOBS, schema.V_ATTEMPTS),
    queries=(schema.RUNS, schema.RUN_TREE),
    rows=JobRows,
)
