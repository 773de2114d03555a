"""A ledger's projection for a reader: brought up to the ledger's head first, or as of a past moment."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from jobledger import projections

# Code that connects or reads a projection is imported where it is used: `--help` does neither.
if TYPE_CHECKING:
    from jobledger.ledger.client import Ledger
    from jobledger.projections import Moment, Position, Store

#: Given a few words on the work, returns a context whose value is called with (done, total).
Progress = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]

_NAME_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_LENGTH_MAX: Final = 60


@contextlib.contextmanager
def unwatched(_what: str) -> Generator[Callable[[int, int], None], None, None]:
    """Yield a progress that shows nothing."""
    yield lambda _done, _total: None


class Lag(NamedTuple):
    """How far the ledger was ahead of some rows when they were opened."""

    head: int = 0  #: the ledger's last stream sequence
    unread_since: datetime | None = (
        None  #: when the oldest event that the rows lack was stored; None: they lack none
    )


class AnswerPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Which moment an answer is of."""

    sequence: int  #: that of the newest event in it; 0 before the first
    at: str | None  #: when those rows were written, ISO-8601 text in UTC; None before the first event
    behind_events: int  #: how many later events the ledger had
    behind_s: float  #: how long ago the oldest of these was stored; 0: there is none


class View(NamedTuple):
    """Rows at one moment, or as of a past one."""

    store: Store
    now: datetime  #: what counts as now: the present, or the past moment
    begins_at: int  #: the first stream sequence that the rows know of; above 1: an archive holds the rest
    lag: Lag = Lag()  #: for rows that another process keeps up to date; none for others

    def position(self) -> AnswerPosition:
        """Return the position of the rows, for an answer that is read in the same transaction."""
        found, lag = self.store.position(), self.lag
        behind = max(0, lag.head - max(found.stream_sequence, self.begins_at - 1))
        since = lag.unread_since if behind else None
        return AnswerPosition(
            sequence=found.stream_sequence,
            at=found.updated_at,
            behind_events=behind,
            behind_s=0.0 if since is None else max(0.0, (self.now - since).total_seconds()),
        )


class Rows:
    """The projection of one ledger: its file, and the progress that is shown while it is read.

    `file` is the SQLite file, or finds it when it is first needed; `on_first` is called before it is made.
    """

    def __init__(
        self,
        ledger: Ledger,
        file: Path | Callable[[], Awaitable[Path]],
        *,
        progress: Progress = unwatched,
        on_first: Callable[[Path], None] = lambda _path: None,
    ) -> None:
        self.ledger = ledger
        self.progress = progress
        self._on_first = on_first
        self._file = file

    async def path(self) -> Path:
        """Return the projection's file. Raises: what finding it raises."""
        if not isinstance(self._file, Path):
            self._file = await self._file()
        return self._file

    async def catch_up(self) -> Position:
        """Bring the projection up to the ledger's head as it is now; return how far it is.

        Raises: ProjectionError, UnreachableError.
        """
        path = await self.path()
        if not path.exists():
            self._on_first(path)
        with (
            projections.Projector(self.ledger.log, path, snapshots=projections.Snapshots(path)) as projector,
            self.progress("reading the ledger") as progress,
        ):
            return await projector.catch_up(progress=progress)

    @contextlib.asynccontextmanager
    async def opened(self, then: Moment | None = None) -> AsyncGenerator[View, None]:
        """Open the rows as of a past moment, else the projection brought up to date, for the length of the block.

        Raises: ProjectionError, UnreachableError.
        """
        path, clock = await self.path(), self.ledger.clock
        if then is None:
            await self.catch_up()
            with projections.Store.open(path) as store:
                yield View(store, clock.now(), store.position().begins_at)
            return
        with contextlib.ExitStack() as watched:
            progress = watched.enter_context(self.progress("reading the ledger"))
            async with projections.as_of(
                self.ledger.log, path, then.stream_sequence, progress=progress, clock=clock
            ) as store:
                watched.close()
                yield View(store, then.at or clock.now(), store.position().begins_at)

    @contextlib.asynccontextmanager
    async def followed(self, *, min_sequence: int = 0, timeout_s: float = 5.0) -> AsyncGenerator[View, None]:
        """Open the rows as the process that follows the ledger left them, for the length of the block; write nothing.

        `min_sequence`: wait, at most `timeout_s`, until they have this event: so the process that appended it finds it
        in the rows.

        Raises: ProjectionBehindError if they do not have it in time; ProjectionError, UnreachableError.
        """
        with projections.Store.open(await self.path()) as store:
            if min_sequence:
                await store.wait_for(min_sequence, timeout_s=timeout_s)
            position = store.position()
            lag = await lag_of(self.ledger, position.stream_sequence)
            yield View(store, self.ledger.clock.now(), position.begins_at, lag)


async def lag_of(ledger: Ledger, stream_sequence: int) -> Lag:
    """Return how far the ledger is ahead of rows that have its events up to a stream sequence.

    Raises: UnreachableError.
    """
    head = await ledger.log.head()  # read after the position, so that a sound ledger is never shorter
    unread = None
    if stream_sequence < head.last_sequence:
        unread = await ledger.log.get(max(stream_sequence + 1, head.first_sequence))
    return Lag(head.last_sequence, None if unread is None else unread.stored_at)


async def file_name(ledger: Ledger) -> str:
    """Return a name for the projection's file: one per server, environment and ledger made there, and schema of the tables.

    A ledger that was created again at the same address is another ledger, so it gets another file. So does another
    release with another schema: while both are in use, neither has to rebuild what the other one reads.
    """
    from jobledger.ledger.nats.streams import find_stream  # noqa: PLC0415

    stream = await find_stream(ledger.inbox, ledger.names.ledger_stream)
    born = hashlib.sha256(("" if stream is None else stream.created).encode()).hexdigest()[:12]
    return (
        f"{place_name(ledger.config.url, ledger.names.environment)}-{born}.v{projections.SCHEMA_VERSION}.db"
    )


def place_name(url: str, environment: str) -> str:
    """Return what the names of the projections of one place begin with: its server and environment."""
    places = [urlsplit(each).netloc.rpartition("@")[2] for each in url.split(",")]
    return "-".join(filter(None, (safe_name("_".join(places)).strip("-"), environment)))


def safe_name(text: str) -> str:
    """Return a text with only what a subject and a file's name may hold, and no longer than both take."""
    return _NAME_UNSAFE.sub("-", text)[:_NAME_LENGTH_MAX]
