"""The table of slots: which job holds a slot of which limit. `limits.holders` folds the events, here as elsewhere."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.events import (
    Cancelled,
    Carried,
    CarriedJob,
    Completed,
    Held,
    JobEvent,
    Paused,
    Queued,
    Started,
)
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.limits.definition import LIMIT, Definition
from jobledger.ledger.model.limits.flow import FLOW, Granted
from jobledger.ledger.model.limits.holders import (
    FINAL,
    OF_AN_ATTEMPT,
    Holders,
    JobKey,
    JobSlots,
    carried_holding,
)
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.ledger.model.times import time_text
from jobledger.projections.table import (
    AggregateTables,
    CacheLimits,
    Index,
    Rows,
    Table,
    integer,
    text,
    timestamp,
)
from jobledger.projections.tables.job_values import unfold

SLOTS: Final = Table(
    name="slots",
    row="job that holds a slot of a [limit](limits.md), and limit",
    columns={
        "limit_key": text("the limit, `name` or `name:key`"),
        "queue": text("the job's queue"),
        "job_id": text("the job that holds the slot"),
        "kept": integer("1: the job keeps it until it has ended for good; 0: for one attempt"),
        "granted_at": timestamp("when it was granted, by the server's time"),
        "held_sequence": integer("the stream sequence of the `held` that was answered; 0: not known"),
        "grant_sequence": integer("the stream sequence of the `granted`, or of what carried the job over"),
    },
    key=("limit_key", "queue", "job_id"),
    indexes=(Index(("queue", "job_id")),),
    sequence="grant_sequence",
)
_PUT: Final = SLOTS.putting()
_FREE: Final = "DELETE FROM slots WHERE limit_key = ? AND queue = ? AND job_id = ?"
_ALL: Final = (
    "SELECT limit_key, queue, job_id, kept, held_sequence, grant_sequence FROM slots ORDER BY grant_sequence"
)
_JOB: Final = "SELECT fold FROM jobs WHERE id = ? AND queue = ? AND status = 'held'"
_KEEP: Final = (
    "SELECT keep FROM limits WHERE name = ? AND limit_key IN (?, '') ORDER BY limit_key DESC LIMIT 1"
)
_COUNT: Final = "SELECT limit_key, count(*) FROM slots GROUP BY limit_key ORDER BY limit_key"

#: Events of jobs that may change slots, beside `queued` and `completed`.
_TOLD: Final[frozenset[type[JobEvent]]] = FINAL | OF_AN_ATTEMPT | {Carried}


def slots_taken(select: Callable[[str], Sequence[Sequence[Any]]]) -> dict[str, int]:
    """Return how many jobs hold a slot, for each limit with holders; `select` runs a statement on a projection."""
    return {str(key): int(count) for key, count in select(_COUNT)}


def _tells(event: JobEvent) -> bool:
    """Return whether an event may change slots; hardly any event of a job without limits does."""
    kind = type(event)
    if kind is Started:  # the first check, as nearly all events are of these three types
        return False
    if isinstance(event, Queued):
        return event.grant > 0
    return event.limited if isinstance(event, Completed) else kind in _TOLD


class _Wait(NamedTuple):
    held: int
    limits: tuple[str, ...]


class SlotRows(Rows):
    """The rows of slots. They get every message in stream order, before the rows of jobs and limits get it."""

    def __init__(self, connection: sqlite3.Connection, _cache: CacheLimits) -> None:
        self._connection = connection
        self._holders: Holders | None = None  # None: not read from the rows yet
        # Changes by the messages of this call; earlier changes are in the rows.
        self._waits: dict[JobKey, _Wait | None] = {}
        self._definitions: dict[str, Definition] = {}

    def forget(self) -> None:
        """Read the rows again; see `table.Rows`."""
        self._holders = None
        self._waits.clear()
        self._definitions.clear()

    def apply(self, messages: Sequence[Message]) -> None:
        """Bring the rows forward; see `table.Rows`."""
        holders = self._holders
        if holders is None:
            holders = self._holders = self._read()
        for message in messages:
            if isinstance(message, StoredEvent):
                if _tells(message.event):
                    self._job(holders, message)
                continue
            if isinstance(message, Unreadable):
                continue
            kind = aggregate_of(message.subject)
            if kind == FLOW.name:
                self._flow(holders, message)
            elif kind == LIMIT.name:
                definition = LIMIT.evolve(None, LIMIT.decode(message), message.stream_sequence)
                self._definitions[definition.limit] = definition
        self._waits.clear()
        self._definitions.clear()

    def _read(self) -> Holders:
        found: dict[JobKey, list[tuple[str, bool, int, int]]] = {}
        for key, queue, job, kept, held, grant in self._connection.execute(_ALL):
            found.setdefault((queue, job), []).append((key, bool(kept), held, grant))
        holders = Holders()
        for job, rows in found.items():
            limits = tuple(sorted(row[0] for row in rows))
            kept = tuple(sorted(row[0] for row in rows if row[1]))
            holders.put(job, JobSlots(limits, kept, rows[-1][3], rows[-1][2]))
        return holders

    def _job(self, holders: Holders, stored: StoredEvent) -> None:
        event = stored.event
        job = (event.queue, event.job)
        if holders.jobs:
            self._connection.executemany(_FREE, [(key, *job) for key in holders.feed(event)])
        match event:
            case Held(limits=limits) if limits:
                self._waits[job] = _Wait(stored.stream_sequence, limits)
            case Cancelled() | Paused():
                self._waits[job] = None
            case Queued(grant=grant) if grant:
                self._waits[job] = None
            case Carried(job_state=state):
                self._carried(holders, stored, state)
            case _:
                pass

    def _carried(self, holders: Holders, stored: StoredEvent, state: CarriedJob) -> None:
        """Add a job that an archive run carried over, whose earlier events may be unknown here."""
        job = (stored.event.queue, stored.event.job)
        if state.state == "held":
            self._waits[job] = _Wait(state.wait_sequence, state.order.limits)
        holding = carried_holding(state, self._keeps)
        if job not in holders.jobs and holding is not None:
            holders.put(job, holding)
            self._write(job, holding, holding.limits, stored, stored.stream_sequence)

    def _flow(self, holders: Holders, message: Message) -> None:
        event = FLOW.decode(message)
        if not isinstance(event, Granted):
            return
        for each in event.jobs:
            job = (each.queue, each.job)
            wait = self._waits[job] if job in self._waits else self._wait(job)
            if wait is None or wait.held != each.held:
                continue  # the job ended its wait before, so the grant has no effect
            self._waits[job] = None
            taken = holders.take(
                job, wait.limits, held=each.held, grant=message.stream_sequence, keeps=self._keeps
            )
            self._write(job, holders.jobs[job], taken, message, message.stream_sequence)

    def _wait(self, job: JobKey) -> _Wait | None:
        """Return a job's wait before this call, from the rows of jobs; None if it did not wait."""
        queue, job_id = job
        row = self._connection.execute(_JOB, (job_id, queue)).fetchone()
        if row is None:
            return None
        folded = unfold(row[0], (job_id, queue), None, None)
        assert folded.state is JobState.HELD, "its row says so"
        return _Wait(folded.wait_sequence, folded.order.limits)

    def _keeps(self, limit: str) -> bool:
        name, key = split(limit)
        definition = self._definitions.get(name)
        if definition is not None:
            terms = definition.of(key)
            return terms is not None and terms.keep == "job"
        row = self._connection.execute(_KEEP, (name, key)).fetchone()
        return row is not None and row[0] == "job"

    def _write(self, job: JobKey, holding: JobSlots, keys: Iterable[str], by: Message, sequence: int) -> None:
        at = time_text(by.stored_at)
        rows = [(key, *job, int(key in holding.kept), at, holding.held, sequence) for key in keys]
        self._connection.executemany(_PUT, rows)


SLOT_TABLES: Final = AggregateTables(
    aggregate=FLOW.name, version=1, tables=(SLOTS,), rows=SlotRows, reads_all=True
)
