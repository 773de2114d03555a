"""The state of the reactor of the limits: the fold of the events it reads, and the queues whose jobs may be granted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from jobledger.audit.errors import ScratchSpaceError
from jobledger.audit.verify.store import scratch, translated
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.events import PRIORITIES, Carried, Held
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.limits.definition import LIMIT, Terms
from jobledger.ledger.model.limits.flow import FLOW, Granted
from jobledger.ledger.model.limits.grants import Granter
from jobledger.ledger.model.limits.holders import JobKey
from jobledger.ledger.model.limits.lines import SpilledJob
from jobledger.ledger.model.queue_pause import QUEUE, QueueState
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.workers.reactors.flow.chain import Chain
from jobledger.workers.reactors.flow.seats import Fleet

# The spill for waiting jobs that do not fit in memory: a temporary SQLite table, in the order in which they were held.

_CACHE_BYTES: Final = 4 << 20
#: Jobs of one transaction, which wait for it in memory.
_AT_ONCE: Final = 4_096
#: Separator of the limits of a job, which have no white space.
_BETWEEN: Final = "\n"

#: Name in the sentence about a full disk.
_WHAT: Final = "jobs that wait for limits cannot be put aside"
_ADVICE: Final = "make room there, or set TMPDIR to a folder that has it"

_CREATE: Final = """
CREATE TEMP TABLE waiting (held INTEGER PRIMARY KEY, line INTEGER, limits TEXT, queue TEXT, job TEXT)
"""
#: Index made at the first read of a line: many jobs are added before that, at half the cost without the index.
_LINES: Final = "CREATE INDEX IF NOT EXISTS temp.by_line ON waiting (line)"
#: Index made at the first search for a job by its name: most jobs are only read in the order of their lines.
_INDEX: Final = "CREATE INDEX IF NOT EXISTS temp.by_job ON waiting (job, queue)"
_PUT: Final = "INSERT INTO waiting (held, line, limits, queue, job) VALUES (?, ?, ?, ?, ?)"
_PAGE: Final = (
    "SELECT held, queue, job, limits FROM waiting WHERE line = ? AND held > ? ORDER BY held LIMIT ?"
)
_DROP: Final = "DELETE FROM waiting WHERE line = ? AND held <= ?"
_FIND: Final = "SELECT held, line, limits FROM waiting WHERE job = ? AND queue = ?"
_REMOVE: Final = "DELETE FROM waiting WHERE line = ? AND held = ?"


class DiskSpill:
    """A spill for `lines.Lines`. The file has no name, and disappears with the process in any case.

    Every method raises ScratchSpaceError if there is no room for temporary files. The jobs are then lost and their room
    is free: every later call raises the same error, and the caller must begin with a new spill.
    """

    def __init__(self) -> None:
        """Begin empty; the first jobs make the file."""
        self._disk: sqlite3.Connection | None = None
        self._put: dict[JobKey, tuple[int, int, str, str, str]] = {}  # rows of the table, as in `_PUT`
        self._has_index = self._has_lines = False
        self._failed: ScratchSpaceError | None = None

    def close(self) -> None:
        """Close the spill, without its jobs."""
        self._put.clear()
        self._has_index = self._has_lines = False
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def put(self, line: int, job: SpilledJob) -> None:
        """Add a job to a line."""
        held, queue, name, limits = job
        self._put[queue, name] = (held, line, _BETWEEN.join(limits), queue, name)
        if len(self._put) >= _AT_ONCE:
            self._execute("")

    def page(self, line: int, after: int, most: int) -> Sequence[SpilledJob]:
        """Return up to `most` jobs of a line whose `held` comes after a stream sequence, the oldest first."""
        rows = self._execute(_PAGE, line, after, most)
        return [(held, queue, job, _apart(limits)) for held, queue, job, limits in rows]

    def drop(self, line: int, through: int) -> None:
        """Forget the jobs of a line up to a stream sequence of their `held`."""
        self._execute(_DROP, line, through)

    def find(self, job: JobKey) -> tuple[int, SpilledJob] | None:
        """Return a job's line and its entry, None if it is not here."""
        queue, name = job
        found = self._put.get(job)
        if found is None:
            rows = self._execute(_FIND, name, queue)
            if not rows:
                return None
            found = rows[0]
        held, line, limits = found[:3]
        return line, (held, queue, name, _apart(limits))

    def remove(self, line: int, held: int) -> None:
        """Forget one job of a line."""
        self._execute(_REMOVE, line, held)

    def _execute(self, statement: str, *values: int | str) -> list[Any]:
        if self._failed is not None:
            raise self._failed
        try:
            with translated(_WHAT, _ADVICE):
                disk = self._open()
                if statement is _FIND and not self._has_index:
                    disk.execute(_INDEX)
                    self._has_index = True
                elif statement is not _FIND:
                    self._flush(disk)
                    if statement and not self._has_lines:
                        disk.execute(_LINES)
                        self._has_lines = True
                return disk.execute(statement, values).fetchall()
        except ScratchSpaceError as error:
            # Without a journal a failed transaction cannot be rolled back: the content of the table is not known now.
            self._failed = error
            self.close()
            raise

    def _open(self) -> sqlite3.Connection:
        if self._disk is None:
            self._disk = scratch(_CACHE_BYTES)
            self._disk.execute(_CREATE)
        return self._disk

    def _flush(self, disk: sqlite3.Connection) -> None:
        """Insert the jobs that wait in memory."""
        if self._put:
            rows = sorted(self._put.values())  # sorted, so that each of the last pages is visited once
            disk.execute("BEGIN")
            disk.executemany(_PUT, rows)
            disk.execute("COMMIT")
            self._put.clear()


def _apart(limits: str) -> tuple[str, ...]:
    return tuple(limits.split(_BETWEEN)) if limits else ()


#: The limit of a queue whose jobs wait behind it so that they can be put in a fair order.
_FAIR: Final = "queue:"
#: Ready jobs of such a queue for each job that may run.
_READY: Final = 2


class GrantFold:
    """Folds the events that are read into a `Granter`."""

    def __init__(
        self, chain: Chain, *, on_folded: Callable[[Message, Granted | None], None] | None = None
    ) -> None:
        """`on_folded` is called with each event of a job, and with each `granted` of another reactor."""
        self._chain = chain
        self._on_folded = on_folded
        self._spill = DiskSpill()
        self.granter = Granter(self._spill)
        self.position = 0  #: stream sequence of the last event that was read
        self.folded = 0  #: number of events that were folded
        self.began = 0  #: the ledger's last stream sequence when this began
        self._ran: set[tuple[str, str]] = set()  # waiting jobs that may have run before
        self._queues: dict[str, bool] = {}  # queues in which jobs waited -> whether their jobs may be granted
        self._fair_limits: dict[str, str] = {}  # names of the limits, by queue
        self._fair: set[str] = set()  # queues whose jobs wait for a fair order
        self._paused: dict[str, QueueState] = {}
        self._is_new = True  # True: a new queue was found since `see`
        self._seen = Fleet()

    def close(self) -> None:
        """Release the jobs in the spill."""
        self._spill.close()

    def is_first(self, queue: str, job: str) -> bool:
        """Return whether a waiting job never ran before, as far as is known; called once, when it is granted."""
        if (queue, job) in self._ran:
            self._ran.discard((queue, job))
            return False
        return True

    def fold(self, message: Message) -> None:
        """Fold the next message, each message only once."""
        sequence = self.position = message.stream_sequence
        self.folded += 1
        if isinstance(message, StoredEvent):
            self._fold_job(message)
            if self._on_folded is not None:
                self._on_folded(message, None)
            return
        kind = aggregate_of(message.subject)
        if isinstance(message, Unreadable):
            if kind == FLOW.name:
                self._chain.passed(sequence)
        elif kind == FLOW.name:
            event = self._chain.heard(message)
            if isinstance(event, Granted):
                self.granter.granted(event, sequence)
                if self._on_folded is not None:
                    self._on_folded(message, event)
        elif kind == LIMIT.name:
            self.granter.limit(LIMIT.decode(message), sequence)
        elif kind == QUEUE.name:
            self._fold_queue(message)
        self.granter.through = sequence

    def wait(self, job: Job) -> None:
        """Add a held job whose `held` is no longer in the ledger."""
        order = job.order
        line = (PRIORITIES.index(order.priority), job.queue, order.fair, order.limits)
        self._note(job.queue, job.id, order.limits, is_new=False)
        self.granter.wait((job.queue, job.id), line, job.wait_sequence, is_new=False)

    def _fold_queue(self, message: Message) -> None:
        (queue,) = QUEUE.key_in(message.subject)
        state = QUEUE.evolve(None, QUEUE.decode(message), message.stream_sequence)
        self._paused.pop(queue, None)
        if state.paused:
            self._paused[queue] = state
        self._is_new = True

    def _fold_job(self, stored: StoredEvent) -> None:
        event = stored.event
        self.granter.job(event, stored.stream_sequence)
        if isinstance(event, Carried):
            if event.job_state.state == "held":
                self._note(event.queue, event.job, event.job_state.order.limits, is_new=False)
            return
        is_new = isinstance(event, Held) and event.cause == "new"
        if not is_new:
            self._ran.discard((event.queue, event.job))  # it no longer waits, or waits again
        if isinstance(event, Held) and event.limits:
            self._note(event.queue, event.job, event.limits, is_new=is_new)

    def _note(self, queue: str, job: str, limits: tuple[str, ...], *, is_new: bool) -> None:
        """Note the queue of a waiting job, and whether the job may have run before."""
        fair = self._fair_limits.get(queue)
        if fair is None:
            fair = self._fair_limits[queue] = f"{_FAIR}{queue}"
            self._queues[queue] = self._is_new = True
        if fair in limits and queue not in self._fair:
            self._fair.add(queue)
            self._is_new = True
        if not is_new:
            self._ran.add((queue, job))

    def see(self, fleet: Fleet, now: datetime) -> None:
        """Allow grants only in queues that living workers serve and that are not paused."""
        if not self._is_new and not self._paused and fleet is self._seen:
            return
        self._is_new, self._seen = False, fleet
        for queue, is_open in self._queues.items():
            state = self._paused.get(queue)
            may = queue in fleet.served and not (state is not None and state.is_paused(now))
            if may != is_open:
                self._queues[queue] = may
                (self.granter.open if may else self.granter.close)(queue)
        for queue in self._fair:
            if queue in fleet.served:
                self.granter.offer(f"{_FAIR}{queue}", Terms(slots=_READY * fleet.served[queue]))
