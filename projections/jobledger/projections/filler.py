"""Filling a file with the ledger's events: fold, commit rows and position together, notice what does not fit.

Rows and position change in one SQLite transaction, so a process that fills may die anywhere and go on where its last
commit ended. Commits run on the event loop: they are bounded by `batch_events_max` (about 100 ms at the default),
and a thread would fight the reader for the interpreter at every SQLite call.
"""

from __future__ import annotations

import contextlib
import operator
import sqlite3
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio
import msgspec

from jobledger.audit.counts import Counts, counts_before
from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.log import Head, Log
from jobledger.ledger.model.times import time_text
from jobledger.projections import files
from jobledger.projections.agreement import (
    refuse_archived_position,
    refuse_lost_beginning,
    refuse_other_environment,
    refuse_other_past,
)
from jobledger.projections.errors import (
    DamagedProjectionError,
    EventGapError,
    PositionMismatchError,
    ProjectionConfigError,
)
from jobledger.projections.layout import LEDGER, Layout
from jobledger.projections.position import BEGIN_AT, UPDATE_POSITION, Position, read_position
from jobledger.projections.snapshots import Snapshots
from jobledger.projections.table import CacheLimits, Rows

_DATA: Final[Callable[[Message], bytes]] = operator.attrgetter("data")
_SEQUENCE: Final[Callable[[Message], int]] = operator.attrgetter("stream_sequence")
#: Called after every commit with the events done and the events wanted, both counted from the call's start.
ProgressCallback = Callable[[int, int], None]


class ProjectorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a projector reads and commits."""

    batch_events_max: int = (
        4_000  #: events that fill a transaction; it ends with the read batch that reaches it
    )
    batch_bytes_max: int = 32 << 20  #: stored bytes of events that fill a transaction
    linger_s: float = 0.05  #: how long the first event of a transaction may wait for more, when following
    cache_jobs_max: int = 20_000  #: folds of unfinished jobs kept in memory
    cache_bytes_max: int = 64 << 20  #: their encoded size, about half of what they take
    busy_timeout_s: float = 5.0  #: the longest wait for another writer of the file; blocks the event loop

    def __post_init__(self) -> None:
        """Check each option."""
        for name in (
            "batch_events_max",
            "batch_bytes_max",
            "cache_jobs_max",
            "cache_bytes_max",
            "busy_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ProjectionConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.linger_s <= 1:
            raise ProjectionConfigError(f"linger_s must be 0 to 1 second, got {self.linger_s}")


class Filler:
    """Fills one file, which must be of this version's tables, up to a place in the ledger.

    Use it as a context manager, from one task.
    """

    def __init__(
        self,
        log: Log,
        path: Path | str,
        *,
        config: ProjectorConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        layout: Layout = LEDGER,
        snapshots: Snapshots | None = None,
        begins_at: int | None = None,
    ) -> None:
        """With `begins_at` an empty file begins there, even if the log begins earlier or lost earlier events."""
        self.path = Path(path)
        self.config = config or ProjectorConfig()
        self._log = log
        self._clock = clock
        self._layout = layout
        self._snapshots = snapshots
        self._begins_at = begins_at
        self._ledger_begins_at = 1  # the ledger's first stream sequence, as `prepare` found it
        self._connection: sqlite3.Connection | None = None
        self._identity: files.Identity | None = None
        self._rows: Rows | None = None
        self._position: Position | None = None
        self._advanced = anyio.Event()
        self._is_doubtful = False  # the file looked damaged at the last check

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the projector may be used again, and then opens the file again."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._rows = self._position = self._identity = None

    @property
    def position(self) -> Position | None:
        """The position this projector committed or found last; None before its start."""
        return self._position

    async def catch_up(self, until: int | None = None, progress: ProgressCallback | None = None) -> Position:
        """Apply everything up to the ledger's head as it is now, or up to `until` if that is less.

        Raises: ProjectionError, in all its kinds, and what `Log.read` raises.
        """
        head = (await self._log.head()).last_sequence
        target = head if until is None else min(until, head)
        return await self._bring_to(target, await self.prepare(), progress)

    async def fill(self, progress: ProgressCallback | None = None, *, until: int | None = None) -> Position:
        """Apply everything up to the head as it is now, or to `until` if that is less, to the file given by `adopt`."""
        head = await self._log.head()
        target = head.last_sequence if until is None else min(until, head.last_sequence)
        await refuse_lost_beginning(self._log, self._known_position().stream_sequence, head)
        return await self._bring_to(target, await self._begun(self._known_position(), head), progress)

    async def _bring_to(self, target: int, start: Position, progress: ProgressCallback | None) -> Position:
        position = start
        wanted = target - start.stream_sequence
        while position.stream_sequence < target:
            async with (
                reading(self._log, position.stream_sequence + 1) as batches,
                contextlib.aclosing(self._gather(batches, target)) as transactions,
            ):
                async for events in transactions:
                    goes_on = self.commit(events)
                    if progress is not None:
                        done = self._known_position().stream_sequence - start.stream_sequence
                        progress(max(0, min(done, wanted)), wanted)
                    await self._committed()
                    if not goes_on:
                        break
            reached = self._known_position()
            if reached == position:
                raise EventGapError(position.stream_sequence + 1, target)
            position = reached if reached.stream_sequence >= target else await self.prepare()
        return position

    async def _gather(
        self,
        batches: AsyncIterator[list[Message]],
        target: int,
    ) -> AsyncGenerator[list[Message], None]:
        """Join the log's batches to transactions, and leave out what lies beyond `target`."""
        gathered: list[Message] = []
        size = 0
        async for batch in batches:
            for part in self._parts(batch):
                gathered += part
                size += stored_bytes(part)
                if gathered[-1].stream_sequence >= target:
                    yield gathered[: bisect_right(gathered, target, key=_SEQUENCE)]
                    return
                if self._is_enough(gathered, size):
                    yield gathered
                    gathered, size = [], 0
        if gathered:
            yield gathered

    def _parts(self, batch: list[Message]) -> Iterator[list[Message]]:
        for start in range(0, len(batch), self.config.batch_events_max):
            yield batch[start : start + self.config.batch_events_max]

    def _is_enough(self, events: Sequence[Message], size_bytes: int) -> bool:
        return len(events) >= self.config.batch_events_max or size_bytes >= self.config.batch_bytes_max

    async def _committed(self) -> None:
        """Leave a snapshot behind now and then."""
        position = self._known_position()
        # After an archive run such a file begins before the ledger, so a snapshot of it would be of no use.
        if self._snapshots is not None and position.begins_at == self._ledger_begins_at:
            await self._snapshots.consider(self.path, position.stream_sequence)

    async def prepare(self) -> Position:
        """Open the file and check that ledger and file share their past.

        Raises: PositionMismatchError, PositionArchivedError, EventGapError and the errors of opening.
        """
        self._open()
        position = self._known_position()
        refuse_other_environment(self._log, self.path, position)
        head = await self._log.head()
        await refuse_lost_beginning(self._log, max(position.stream_sequence, self._begins_at or 0), head)
        position = await self._begun(position, head)
        await refuse_other_past(self._log, self.path, position)
        return position

    async def _begun(self, position: Position, head: Head) -> Position:
        """Let a file that holds nothing yet begin where the ledger does, which may have archived its first events.

        Raises: PositionArchivedError.
        """
        self._ledger_begins_at = head.first_sequence
        first = max(head.first_sequence, self._begins_at or 1)
        if not position.event_hash and position.stream_sequence != first - 1:
            position = self._begin(first, await counts_before(self._log, first))
        refuse_archived_position(self.path, position, head)
        return position

    def _begin(self, first_sequence: int, counts: Counts | None) -> Position:
        connection, rows = self._connection, self._known_rows()
        assert connection is not None, "prepare() comes first"
        with files.translated(self.path, self.config.busy_timeout_s), _transaction(connection):
            found = read_position(connection)
            # Else another projector has begun meanwhile.
            if not found.event_hash and found.stream_sequence != first_sequence - 1:
                connection.execute(BEGIN_AT, (first_sequence - 1, first_sequence, first_sequence))
                rows.go_on_from(counts, first_sequence)
            self._position = read_position(connection)
        rows.forget()
        return self._position

    def _open(self) -> None:
        self.close()
        environment = self._log.names.environment
        opened = files.open_writer(
            self.path, environment, busy_timeout_s=self.config.busy_timeout_s, layout=self._layout
        )
        self.adopt(*opened)

    def adopt(self, connection: sqlite3.Connection, identity: files.Identity | None) -> None:
        """Work on a connection that is already open, as a rebuild does; `identity` tells its file from others."""
        self._connection = connection
        self._identity = identity
        cache = CacheLimits(self.config.cache_jobs_max, self.config.cache_bytes_max)
        self._rows = self._layout.rows(connection, cache)
        with files.translated(self.path, self.config.busy_timeout_s):
            self._position = read_position(connection)

    def _known_position(self) -> Position:
        assert self._position is not None, "prepare() comes first"
        return self._position

    def is_there(self) -> bool:
        """Return whether this is still the opened file. Raises: DamagedProjectionError if it is no longer a database.

        While another process moves its log into the file, it may look damaged: so it is checked a second time.
        """
        if files.identity(self.path) != self._identity:
            return False
        try:
            with files.translated(self.path, self.config.busy_timeout_s):
                files.require_beginning(self.path, self._layout)
        except DamagedProjectionError:
            if self._is_doubtful:
                raise
            self._is_doubtful = True
        else:
            self._is_doubtful = False
        return True

    def commit(self, events: Sequence[Message]) -> bool:
        """Apply `events` (never empty, in stream order) and move the position, as one.

        Events that another projector applied are left out; events that no table shows only move the position.
        Returns False when events before the first one are missing, or the file was replaced: then read again
        from `position`.

        Raises: EventGapError, PositionMismatchError, and the errors of the file; then nothing was changed.
        """
        if files.identity(self.path) != self._identity:  # a rebuild put another file there
            self._open()
            return False
        connection, rows = self._connection, self._known_rows()
        assert connection is not None, "prepare() comes first"
        try:
            with files.translated(self.path, self.config.busy_timeout_s), _transaction(connection):
                position = read_position(connection)
                fresh = self._fresh(events, position)
                if fresh:
                    rows.apply(fresh)
                    position = self._write_position(connection, position, fresh[-1])
        except BaseException:  # Ctrl-C, too: the file was rolled back, and rows in memory are ahead of it
            rows.forget()
            raise
        self._position = position
        self._advanced.set()
        self._advanced = anyio.Event()
        return fresh is not None

    def _fresh(self, events: Sequence[Message], found: Position) -> Sequence[Message] | None:
        """Return the events after the position in the file; None when there are some missing before them."""
        known = self._known_position()
        moved = (found.stream_sequence, found.event_hash) != (known.stream_sequence, known.event_hash)
        if moved:
            self._known_rows().forget()
        first = events[0].stream_sequence
        _check_dense(events)
        skipped = found.stream_sequence - first + 1
        if skipped < 0:
            if moved:
                return None
            raise EventGapError(found.stream_sequence + 1, first)
        if 0 < skipped <= len(events) and events[skipped - 1].hash != found.event_hash:
            what = "this ledger has another event there than the projector that came before"
            raise PositionMismatchError(self.path, found.stream_sequence, what)
        return events[skipped:] if skipped else events

    def _known_rows(self) -> Rows:
        assert self._rows is not None, "prepare() comes first"
        return self._rows

    def _write_position(self, connection: sqlite3.Connection, before: Position, last: Message) -> Position:
        position = msgspec.structs.replace(
            before,
            stream_sequence=last.stream_sequence,
            event_hash=last.hash,
            updated_at=time_text(self._clock.now()),
        )
        values = (position.stream_sequence, position.event_hash, position.updated_at)
        connection.execute(UPDATE_POSITION, values)
        return position


def stored_bytes(events: Sequence[Message]) -> int:
    """Return how much room events take in the ledger."""
    return sum(map(len, map(_DATA, events)))


def _check_dense(events: Sequence[Message]) -> None:
    for expected, stored in enumerate(events, start=events[0].stream_sequence):
        if stored.stream_sequence != expected:
            raise EventGapError(expected, stored.stream_sequence)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None, None, None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:  # Ctrl-C, too: a transaction that is left open locks the file
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.asynccontextmanager
async def reading(
    log: Log,
    from_sequence: int,
    *,
    follow: bool = False,
) -> AsyncGenerator[AsyncIterator[list[Message]], None]:
    """Read everything from a stream sequence on, for the length of the block."""
    batches = log.read_messages(from_sequence=from_sequence, follow=follow)
    async with contextlib.aclosing(batches):
        yield batches
