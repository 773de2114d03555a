"""The child *past* as its gateway sees it: rows of past moments, made one at a time; long waits are refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import msgspec

from jobledger.gateway.problems import ProblemError
from jobledger.gateway.process.children import child, messages
from jobledger.gateway.process.messages import FromChild, GiveBack, Lent, NotLent, Setup, Want
from jobledger.gateway.process.past_rows import folder_of, remove_those_of_the_dead
from jobledger.gateway.shares import opened
from jobledger.ledger.model.errors import ServerUnreachableError
from jobledger.projections import ProjectionError, Store
from jobledger.workers.processes.child import Child

_WAIT_S: Final = 60.0
#: Events that the child asks the server for at a time. Sending 2,048 events takes the server 10 ms, in which it answers
#: nobody else.
_PREFETCH: Final = 256


class _WantedMoment:
    """One wanted moment, and the number of its readers, waiting ones included."""

    def __init__(self) -> None:
        self.path: asyncio.Future[Path] = asyncio.get_running_loop().create_future()
        self.readers = 0


class PastViews:
    """Rows of past moments, from a child that the first such request starts."""

    def __init__(self, setup: Setup) -> None:
        self._setup = msgspec.structs.replace(
            setup, connection={**setup.connection, "prefetch_max": _PREFETCH}
        )
        self._asked = asyncio.Event()
        self._child: Child[FromChild] | None = None
        self._wanted: dict[int, _WantedMoment] = {}

    async def run(self) -> None:
        """Keep one child, until it ends. Raises: ChildEndedError, OSError."""
        await self._asked.wait()
        try:
            async with child("past", self._setup) as running:
                self._child = running
                for sequence in self._wanted:
                    running.send(Want(stream_sequence=sequence))
                async for message in messages(running):
                    if isinstance(message, Lent | NotLent):
                        self._answer(running, message)
        finally:
            self._child = None
            self._give_up()
            remove_those_of_the_dead(folder_of(Path(self._setup.projection)))

    def _answer(self, running: Child[FromChild], message: Lent | NotLent) -> None:
        wanted = self._wanted.pop(message.stream_sequence)
        if isinstance(message, NotLent):
            is_server = message.reason == "server"
            error = (
                ServerUnreachableError(message.sentence) if is_server else ProjectionError(message.sentence)
            )
            _fail(wanted, error)
        elif wanted.readers:
            wanted.path.set_result(Path(message.path))
        else:  # nobody wants the file any more
            running.send(GiveBack(path=message.path))

    def _give_up(self) -> None:
        for wanted in self._wanted.values():
            _fail(
                wanted, ProblemError("BUSY", "the process that makes past views ended: try again in a moment")
            )
        self._wanted.clear()

    @contextlib.asynccontextmanager
    async def opened(self, stream_sequence: int) -> AsyncGenerator[Store, None]:
        """Open the rows as of a moment for the length of the block; `refuse_archived` must accept the moment first.

        Raises: ProblemError (BUSY, SHARE_USED), ServerUnreachableError, ProjectionError.
        """
        with opened("past"):
            wanted = self._want(stream_sequence)
            wanted.readers += 1
            try:
                async with _limited():
                    path = await asyncio.shield(wanted.path)
                with Store.open(path) as store:
                    yield store
            finally:
                wanted.readers -= 1
                if not wanted.readers and self._child is not None and _came(wanted):
                    self._child.send(GiveBack(path=str(wanted.path.result())))

    def _want(self, stream_sequence: int) -> _WantedMoment:
        wanted = self._wanted.get(stream_sequence)
        if wanted is not None:
            return wanted
        wanted = self._wanted[stream_sequence] = _WantedMoment()
        if self._child is not None:
            self._child.send(Want(stream_sequence=stream_sequence))
        self._asked.set()
        return wanted


@contextlib.asynccontextmanager
async def _limited() -> AsyncGenerator[None, None]:
    try:
        async with asyncio.timeout(_WAIT_S):
            yield
    except TimeoutError as error:
        sentence = (
            f"this moment of the past was not made within {_WAIT_S:g} s, and is gone on with: ask again"
        )
        raise ProblemError("BUSY", sentence) from error


def _came(wanted: _WantedMoment) -> bool:
    return wanted.path.done() and not wanted.path.cancelled() and wanted.path.exception() is None


def _fail(wanted: _WantedMoment, error: Exception) -> None:
    if wanted.readers and not wanted.path.done():
        wanted.path.set_exception(error)
