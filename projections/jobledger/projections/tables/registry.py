"""The aggregates that have tables: those of a new one are declared in their own module, and added only to `TABLES`.

An aggregate without tables only moves the position.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from jobledger.audit.counts import Counts
from jobledger.ledger.model.aggregates import JOB
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.log import jobs_among
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.ledger.model.unreadable import UNREADABLE
from jobledger.projections.position import POSITION_TABLE
from jobledger.projections.table import AggregateTables, CacheLimits, Query, Rows, Table, View
from jobledger.projections.tables.hooks import WATCH_TABLES, WEBHOOK_TABLES
from jobledger.projections.tables.jobs import JOB_TABLES, JobRows
from jobledger.projections.tables.limits import LIMIT_TABLES
from jobledger.projections.tables.queues import QUEUE_TABLES
from jobledger.projections.tables.retention import RETENTION_TABLES, first_archived, moved_jobs
from jobledger.projections.tables.routes import DELIVERY_TABLES, ROUTE_TABLES
from jobledger.projections.tables.schedules import SCHEDULE_TABLES
from jobledger.projections.tables.slots import SLOT_TABLES
from jobledger.projections.tables.unreadable import UNREADABLE_TABLES

#: By aggregate, the second word of a ledger subject.
TABLES: Final[dict[str, AggregateTables]] = {
    each.aggregate: each
    for each in (
        JOB_TABLES,
        UNREADABLE_TABLES,
        LIMIT_TABLES,
        QUEUE_TABLES,
        SCHEDULE_TABLES,
        SLOT_TABLES,
        ROUTE_TABLES,
        DELIVERY_TABLES,
        WEBHOOK_TABLES,
        WATCH_TABLES,
        RETENTION_TABLES,
    )
}


def all_tables() -> tuple[Table, ...]:
    """Return every table of a projection's file."""
    return (*(table for each in TABLES.values() for table in each.tables), POSITION_TABLE)


def all_views() -> tuple[View, ...]:
    """Return every view of a projection's file that shows a table."""
    return tuple(view for each in TABLES.values() for view in each.views)


def all_queries() -> tuple[Query, ...]:
    """Return every view of a projection's file that puts several rows together."""
    return tuple(query for each in TABLES.values() for query in each.queries)


def schema_version() -> int:
    """Return the version of all tables together, which grows with the version of each aggregate."""
    return sum(each.version for each in TABLES.values())


class LedgerRows(Rows):
    """All rows behind one connection: each aggregate's messages are applied to its own tables."""

    def __init__(self, connection: sqlite3.Connection, cache: CacheLimits) -> None:
        self._connection = connection
        self._jobs = JobRows(connection, cache)
        self._rows = {each.aggregate: each.rows(connection, cache) for each in TABLES.values()} | {
            JOB.name: self._jobs
        }
        self._of_all = [self._rows[each.aggregate] for each in TABLES.values() if each.reads_all]

    def apply(self, messages: Sequence[Message]) -> None:
        """Bring the rows of every aggregate forward; behind the record of an archive run, remove those of moved jobs."""
        while messages:
            jobs = jobs_among(messages)  # nearly all messages are about jobs, known by their class
            at = None if len(jobs) == len(messages) else first_archived(messages)
            if at is None:
                self._apply(messages, jobs)
                return
            begin, messages = messages[: at + 1], messages[at + 1 :]
            self._apply(begin, jobs_among(begin))
            self._jobs.remove(moved_jobs(self._connection, begin[-1]))

    def _apply(self, messages: Sequence[Message], jobs: Sequence[StoredEvent]) -> None:
        for each in self._of_all:
            each.apply(messages)
        if jobs:
            self._rows[JOB.name].apply(jobs)
        if len(jobs) < len(messages):
            for aggregate, chosen in _others(messages).items():
                rows = self._rows.get(aggregate)
                if rows is not None and rows not in self._of_all:
                    rows.apply(chosen)

    def go_on_from(self, counts: Counts | None, first_sequence: int) -> None:
        """Begin with earlier counts; see `table.Rows`."""
        for rows in self._rows.values():
            rows.go_on_from(counts, first_sequence)

    def forget(self) -> None:
        """Forget data in memory; see `table.Rows`."""
        for rows in self._rows.values():
            rows.forget()


def _others(messages: Sequence[Message]) -> dict[str, list[Message]]:
    """Return the messages that are not about jobs, by aggregate; messages that are no event are one more."""
    found: dict[str, list[Message]] = {}
    for message in messages:
        if isinstance(message, Unreadable):
            found.setdefault(UNREADABLE.name, []).append(message)
        elif not isinstance(message, StoredEvent):
            found.setdefault(aggregate_of(message.subject), []).append(message)
    return found
