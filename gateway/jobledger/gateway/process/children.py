"""Child processes of a gateway, or of `up`: it starts, reads and ends them; none outlives it, early ends are reported.

Imports here must not need the gateway's extra libraries, since `up` has its keeper without them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import anyio
import msgspec

from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.gateway.process.messages import FROM_CHILD, FromChild, KeeperReport, Setup
from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.workers.processes.child import Child, how_ended, python
from jobledger.workers.processes.messages import Ready

#: A child that has not ended this long after the line was closed is killed.
_FAREWELL_S: Final = 2.0


class ChildEndedError(Exception):
    """A child process ended; another one is started."""

    def __init__(self, how: str, why: str = "") -> None:
        """`how`: a description of the end without names of files; `why`: the child's words, which may name files."""
        super().__init__(why or how)
        self.how = f"{how}; the log of the gateway says why" if why else how


@contextlib.asynccontextmanager
async def child(name: str, setup: Setup) -> AsyncGenerator[Child[FromChild], None]:
    """Run a program of `child` for the length of the block.

    Raises: OSError where no process can be started.
    """
    started = await Child[FromChild].start(
        lambda line: python("jobledger.gateway.process.child", name, str(line)),
        FROM_CHILD,
        what=f"process {name}",
        stdout=subprocess.DEVNULL,
    )
    try:
        started.send(setup)
        yield started
    finally:
        with anyio.CancelScope(shield=True):  # bounded by the farewell
            await started.leave(_FAREWELL_S)


async def messages(running: Child[FromChild]) -> AsyncGenerator[FromChild, None]:
    """Yield the messages of a child.

    Raises: ChildEndedError once it has ended.
    """
    async for message in running.messages():
        yield message
    await running.until_ended()
    raise ChildEndedError(f"process {running.pid} {how_ended(running.reap())}", running.fault)


def setup_of(ledger: Ledger, projection: Path, name: str) -> Setup:
    """Return the first message to a child. `name`: the end of its connection's name, after `jobledger-`.

    Raises: ConfigurationError for settings that cannot be handed to another process.
    """
    connection = ledger.config.for_another_process()
    if connection is None:
        raise ConfigurationError("nats_options cannot be handed to another process: leave them out")
    # These limits are short as somebody waits for a request; a child is as patient as a worker.
    del connection["append_timeout_s"], connection["room_timeout_s"]
    level = logging.getLogger("jobledger").getEffectiveLevel()
    return Setup(
        connection={**connection, "name": f"jobledger-{name}"},
        projection=str(projection.absolute()),
        log_level=level,
    )


class KeeperChild:
    """The child *keeper*: one look and its moves; the next look has a new process."""

    def __init__(self, ledger: Ledger, projection: Path, default_to: str = "") -> None:
        """`default_to`: folder of the archive if the setting names none; made if it is missing.

        Raises: ConfigurationError, as `setup_of`.
        """
        self._setup = msgspec.structs.replace(setup_of(ledger, projection, "keeper"), archive=default_to)

    async def work(self) -> MoveOutcome:
        """Let the child look whether events have to be moved. Raises: ChildEndedError, OSError."""
        return await self._look(self._setup)

    async def clear(self) -> MoveOutcome:
        """Let the child look for large values that no event names. Raises: as `work`."""
        return await self._look(msgspec.structs.replace(self._setup, clears=True))

    @staticmethod
    async def _look(setup: Setup) -> MoveOutcome:
        async with child("keeper", setup) as running:
            async for message in messages(running):
                if isinstance(message, KeeperReport):
                    return message.moved
        raise AssertionError("its messages end with an error")


class ProjectorChild:
    """The child *projector*."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.begun = asyncio.Event()  #: set once the projection's file was ready
        self.problem = "the projection is not followed yet"  #: why it is not followed; "" while it is

    async def run(self) -> None:
        """Keep one child, until it ends. Raises: ChildEndedError, OSError."""
        try:
            async with child("projector", self._setup) as running:
                async for message in messages(running):
                    if isinstance(message, Ready):
                        self.problem = ""
                        self.begun.set()
        except Exception as error:  # until the next child is ready, pages show what ended this one
            how = error.how if isinstance(error, ChildEndedError) else "no process could be started for it"
            self.problem = f"the projection is not followed: {how}"
            raise
