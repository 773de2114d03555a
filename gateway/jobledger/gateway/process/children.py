"""Child processes of a gateway, or of `up`: it starts, hears and ends them; none outlives it, and an early end is reported.

What is imported here is there without the gateway's extra libraries: `up` has its keeper without them.
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
        """`how` it ended names no file of this machine; `why`, as the child said itself, may."""
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
    """Yield what a child says.

    Raises: ChildEndedError once it has ended.
    """
    async for message in running.messages():
        yield message
    await running.until_ended()
    raise ChildEndedError(f"process {running.pid} {how_ended(running.reap())}", running.fault)


def setup_of(ledger: Ledger, projection: Path, name: str) -> Setup:
    """Return what a child of this process is told. `name`: of its connection, behind `jobledger-`.

    Raises: ConfigurationError for settings that cannot be handed to another process.
    """
    connection = ledger.config.for_another_process()
    if connection is None:
        raise ConfigurationError("nats_options cannot be handed to another process: leave them out")
    # Short for requests, which somebody waits for; children are as patient as workers.
    del connection["append_timeout_s"], connection["room_timeout_s"]
    level = logging.getLogger("jobledger").getEffectiveLevel()
    return Setup(
        connection={**connection, "name": f"jobledger-{name}"},
        projection=str(projection.absolute()),
        log_level=level,
    )


class KeeperChild:
    """The child *keeper*: one look, and what that moves; another process is started for the next one."""

    def __init__(self, ledger: Ledger, projection: Path, default_to: str = "") -> None:
        """`default_to`: the folder of the archive where the setting names none; made if it is missing.

        Raises: ConfigurationError, as `setup_of`.
        """
        self._setup = msgspec.structs.replace(setup_of(ledger, projection, "keeper"), archive=default_to)

    async def work(self) -> MoveOutcome:
        """Have it look whether events are to be moved. Raises: ChildEndedError, OSError."""
        return await self._look(self._setup)

    async def clear(self) -> MoveOutcome:
        """Have it look for large values that nothing names. Raises: as `work`."""
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
        self.begun = asyncio.Event()  #: the projection's file was there once
        self.problem = "the projection is not followed yet"  #: "" while it is

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
