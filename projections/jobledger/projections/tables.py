"""Events -> rows: folds a batch of events and writes each job that changed once.

The caller owns the transaction. If it does not commit, it must call `forget`, since the cache is ahead then.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable

from jobledger.ledger.codec import Stored
from jobledger.ledger.events import NO_VALUE
from jobledger.ledger.job import Job, JobState, evolve
from jobledger.projections import rows, schema

_Key = tuple[str, str]  # (job id, queue), as in the primary key


class Tables:
    """The tables `jobs`, `attempts` and `dead_letters` behind one connection.

    Keeps the folds of the jobs that changed last, up to `cache_jobs_max` jobs and `cache_bytes_max` bytes of
    encoded folds; others are read back from their rows.
    """

    def __init__(self, connection: sqlite3.Connection, *, cache_jobs_max: int, cache_bytes_max: int) -> None:
        self._connection = connection
        self._cache_jobs_max = cache_jobs_max
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[_Key, tuple[Job, int]] = OrderedDict()  # (fold without input, its bytes)
        self._cache_bytes = 0

    def forget(self) -> None:
        """Empty the cache, because the rows are not, or no longer, what it came from."""
        self._cache.clear()
        self._cache_bytes = 0

    def apply(self, events: Iterable[Stored]) -> None:
        """Fold `events`, which follow each other in the stream, and write the rows of every job they touch."""
        before: dict[_Key, Job | None] = {}
        after: dict[_Key, Job] = {}
        for stored in events:
            event = stored.event
            key = (event.job, event.queue)
            job = after.get(key)
            if job is None:
                job = before[key] = self._known(key)
            after[key] = evolve(job, event, stored.stream_sequence)
        self._write(before, after)

    def _known(self, key: _Key) -> Job | None:
        cached = self._cache.pop(key, None)
        if cached is not None:
            self._cache_bytes -= cached[1]
            return cached[0]
        row = self._connection.execute(schema.SELECT_FOLD, key).fetchone()
        return None if row is None else rows.unfold(row[0])

    def _write(self, before: dict[_Key, Job | None], after: dict[_Key, Job]) -> None:
        inserts: list[rows.Row] = []
        updates: list[rows.Row] = []
        inputs: list[rows.Row] = []
        attempts: list[rows.Row] = []
        for key, job in after.items():
            old = before[key]
            kept = rows.without_input(job)
            fold = rows.fold_bytes(kept)
            if old is None:
                inserts.append((*rows.job_changing(job, fold), *key, *rows.job_fixed(job)))
            else:
                updates.append((*rows.job_changing(job, fold), *key))
                if (
                    job.input is not NO_VALUE or job.input_ref is not old.input_ref
                ):  # requeued with another one
                    inputs.append((rows.data_text(job), *key))
            attempts += rows.attempt_rows(job, old)
            self._keep(key, kept, len(fold))
        execute = self._connection.executemany
        execute(schema.INSERT_JOB, inserts)
        execute(schema.UPDATE_JOB, updates)
        execute(schema.UPDATE_DATA, inputs)
        execute(schema.PUT_ATTEMPT, attempts)
        self._write_dead_letters(before, after)
        self._evict()

    def _write_dead_letters(self, before: dict[_Key, Job | None], after: dict[_Key, Job]) -> None:
        """A dead letter has a row as long as it is one: requeued or discarded, only the job tells of it."""
        dead = JobState.DEAD_LETTERED
        puts = [rows.dead_letter_row(job) for job in after.values() if job.state is dead]
        self._connection.executemany(schema.PUT_DEAD_LETTER, puts)
        gone = [
            key
            for key, old in before.items()
            if old is not None and old.state is dead and after[key].state is not dead
        ]
        self._connection.executemany(schema.DROP_DEAD_LETTER, gone)

    def _keep(self, key: _Key, job: Job, size_bytes: int) -> None:
        if not job.is_final:  # hardly anything follows a final state
            self._cache[key] = (job, size_bytes)
            self._cache_bytes += size_bytes

    def _evict(self) -> None:
        while len(self._cache) > self._cache_jobs_max or self._cache_bytes > self._cache_bytes_max:
            _, (_, size_bytes) = self._cache.popitem(last=False)
            self._cache_bytes -= size_bytes
