"""What every test leaves behind on its module's server: each ledger is sound, and is again behind an archive run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.support.limits import LIMIT_S
from tests.support.loops import run_in_loop

from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.archive.plan import Unread
from jobledger.audit.errors import ArchiveIncompleteError, ArchiveRefusedError
from jobledger.audit.verify import CheckOptions, verify
from jobledger.ledger import Ledger
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.connection import assemble
from jobledger.ledger.model.clock import SystemClock
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import LedgerFullError, UnknownEventError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import open_connection
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.writer import Writer

#: Ledgers of more events are checked, and archived in `make faults` alone: to carry thousands of jobs takes seconds each.
_ARCHIVED_EVENTS_MAX: Final = 1_000
#: A test may leave a job that is due, and nobody to run it.
_LEFT_ALONE: Final = CheckOptions(overdue_grace_s=100 * 366 * 24 * 3600.0)
#: What a test says of the ledgers that it leaves.
_MARKS: Final = ("unsound_ledger", "shared_ledger")
#: What a row of `make faults` is marked by; all its ledgers are archived.
_ROWS: Final = ("fault", "walk")
_STREAM: Final = "LEDGER"
_STREAMS_MAX: Final = 10_000
#: Ledgers that are looked at side by side: their questions go out together, which takes a third of the CPU time.
_AT_ONCE: Final = 16

LedgerOf = Callable[[str], AbstractAsyncContextManager[Ledger]]


class _Test(NamedTuple):
    """A test of the module."""

    began_at: datetime
    name: str
    leaves_unsound: bool
    shares: bool  #: it goes on with a ledger of others, or others with its own
    is_row: bool  #: of `make faults`


class Soundness:
    """The ledgers of one server, looked at when its last test has ended: one connection serves all."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._tests: list[_Test] = []

    def begins(self, test: pytest.Item, at: datetime | None = None) -> None:
        """Take note of a test: which ledgers it made is told by the time of their first event; `at`: by default now."""
        unsound, shared = (test.get_closest_marker(name) is not None for name in _MARKS)
        made = _Test(
            at or datetime.now(UTC), test.nodeid, leaves_unsound=unsound, shares=shared, is_row=_is_row(test)
        )
        self._tests.append(made)

    def problems(self, folder: Path) -> list[str]:
        """Return what is wrong with the server's ledgers; `folder` is for archives."""
        return run_in_loop(functools.partial(self._problems, folder))

    async def _problems(self, folder: Path) -> list[str]:
        async with _opened(self._url) as (inbox, ledger_of):
            names = await api.stream_names(inbox, names_max=_STREAMS_MAX)
            streams = sorted(each for each in names if each.endswith(_STREAM))
            found: dict[str, list[str]] = {}
            at_once = anyio.CapacityLimiter(_AT_ONCE)

            async def look_at(stream: str) -> None:
                async with at_once:
                    if not (await api.stream_info(inbox, stream)).config.get("allow_direct"):
                        return  # a test made it, to see it refused
                    async with ledger_of(stream.removesuffix(_STREAM).removesuffix("_").lower()) as ledger:
                        found[stream] = await self._problems_of(ledger, folder / stream)

            async with anyio.create_task_group() as group:
                for stream in streams:
                    group.start_soon(look_at, stream)
            return [each for stream in streams for each in found.get(stream, ())]

    async def _problems_of(self, ledger: Ledger, folder: Path) -> list[str]:
        head = await ledger.log.head()
        first: Message | None = None
        with contextlib.suppress(UnknownEventError):  # of an aggregate that a test made up
            first = await ledger.log.get(head.first_sequence)
        test = None if first is None else self._maker(first.stored_at)
        if test is None or test.leaves_unsound:
            return []
        count = head.last_sequence - head.first_sequence + 1
        found: list[str] | None = None
        if (count <= _ARCHIVED_EVENTS_MAX or test.is_row) and not test.shares:
            found = await _problems_behind_archive(ledger, folder)
        if found is None:
            found = await _unsound("as the test left it", ledger.log)
        return [f"{test.name}: {each}" for each in found]

    def _maker(self, moment: datetime) -> _Test | None:
        """Return the test that ran at a moment."""
        return next((test for test in reversed(self._tests) if test.began_at <= moment), None)


class RowEnd:
    """How a row of `make faults` ends: each ledger of its own servers is verified, archived, and verified again.

    Other tests, and a row that is marked `unsound_ledger`, which says what it damages, end as they are.
    """

    def __init__(self, test: pytest.Item, folder: Path) -> None:
        """`folder` of the test is for archives."""
        self._test = test
        self._began_at = datetime.now(UTC)
        self._folder = folder
        self._servers: list[Soundness] = []
        self.is_asked_for = _is_row(test) and test.get_closest_marker("unsound_ledger") is None

    def begins(self, url: str) -> None:
        """Take note of a server, on which the row makes a ledger or a command has made one; `url` has all its addresses."""
        self._servers.append(Soundness(url))
        self._servers[-1].begins(self._test, self._began_at)

    async def holds(self) -> None:
        """Raise AssertionError where a ledger is not sound; the servers are running."""
        if not self.is_asked_for:
            return
        problems: list[str] = []
        for number, server in enumerate(self._servers):
            folder = self._folder / f"archives-at-the-end-{number}"
            folder.mkdir()
            problems += await anyio.to_thread.run_sync(server.problems, folder)
        assert not problems, "\n".join(problems)


def _is_row(test: pytest.Item) -> bool:
    return any(test.get_closest_marker(name) for name in _ROWS)


async def _problems_behind_archive(ledger: Ledger, folder: Path) -> list[str] | None:
    """Return what is wrong behind an archive run, which checks every event that it moves; None where it moved nothing.

    With its archive the ledger has every event that the test left, so a look at it before the run would tell nothing more.
    """
    deps = archive_deps(ledger, by="pytest", on_progress=lambda _step, _done, _total: None)
    deps = msgspec.structs.replace(deps, unread=_nobody)
    try:
        done = await Archiver(ledger.log, folder, deps).run(datetime.now(UTC))
    except (ArchiveRefusedError, ArchiveIncompleteError, LedgerFullError):
        return None  # it is not sound, or has an archive of the test's own, or something has to be done first
    except Exception:  # of what cannot be read: a look at the ledger says more
        found = await _unsound("as the test left it", ledger.log)
        if not found:
            raise
        return found
    if not done.exports:
        return None
    joined = await open_archive(ledger.log, folder)
    return [*await _unsound("behind an archive run", ledger.log), *await _unsound("with its archive", joined)]


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[tuple[Inbox, LedgerOf]]:
    """Connect once for all ledgers of a server; none is made or looked at before it is asked for."""
    config = LedgerConfig(url=url)
    connection = await open_connection(url, name="soundness", timeout_s=LIMIT_S)
    inbox = Inbox(connection)
    await inbox.open()
    writer = Writer(connection, commit=config.commit)
    await writer.open()

    @contextlib.asynccontextmanager
    async def ledger_of(environment: str) -> AsyncGenerator[Ledger]:
        own = msgspec.structs.replace(config, environment=environment)
        ledger = await assemble(connection, inbox, writer, Names(environment), own, SystemClock())
        try:
            yield ledger
        finally:
            await ledger.locks.close()

    try:
        yield inbox, ledger_of
    finally:
        connection.is_retired = True
        writer.close()
        await connection.close()


async def _nobody(_through: int) -> list[Unread]:
    return []


async def _unsound(when: str, log: Log) -> list[str]:
    report = await verify(log, options=_LEFT_ALONE)
    return [] if report.sound else [f"the ledger {log.names.ledger_stream}, {when}: {report.text()}"]
