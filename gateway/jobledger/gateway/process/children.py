"""Child processes of a gateway: it starts, hears and ends them; none outlives it, and an early end is reported."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import anyio
import msgspec

from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.gateway.hooks.addresses import networks
from jobledger.gateway.process.line import (
    FROM_CHILD,
    Failed,
    FromChild,
    Line,
    Logged,
    Looked,
    Ready,
    Setup,
    ToChild,
)
from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.workers.supervision.supervisor import how_ended

#: A child that has not ended this long after the line was closed is killed.
_FAREWELL_S: Final = 2.0


class ChildEndedError(Exception):
    """A child process of the gateway ended; another one is started."""

    def __init__(self, how: str, why: str = "") -> None:
        """`how` it ended names no file of this machine; `why`, as the child said itself, may."""
        super().__init__(why or how)
        self.how = f"{how}; the log of the gateway says why" if why else how


class Child:
    """A running child."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, line: Line) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._line = line

    def send(self, message: ToChild) -> None:
        """Ask something of it."""
        self._line.send(message)

    async def messages(self) -> AsyncGenerator[FromChild, None]:
        """Yield what it says, but for lines of its log, which go to ours.

        Raises: ChildEndedError once it has ended.
        """
        why = ""
        async for message in self._line.messages(FROM_CHILD):
            if isinstance(message, Logged):
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            elif isinstance(message, Failed):
                why = message.sentence
            else:
                yield message
        code = await self._process.wait()
        raise ChildEndedError(f"process {self.pid} {how_ended(code)}", why)

    async def end(self) -> None:
        """Let it go, kill it if it stays, and reap it."""
        await self._line.close()
        with anyio.move_on_after(_FAREWELL_S):
            await self._process.wait()
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


@contextlib.asynccontextmanager
async def child(name: str, setup: Setup) -> AsyncGenerator[Child, None]:
    """Run a program of `child` for the length of the block.

    Raises: OSError where no process can be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        line = await Line.over(ours)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "jobledger.gateway.process.child", name, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C reaches the gateway alone
            )
        except BaseException:  # cancelled, too: no process was started, so nobody else closes our end
            await line.close()
            raise
    started = Child(name, process, line)
    try:
        started.send(setup)
        yield started
    finally:
        with anyio.CancelScope(shield=True):  # bounded by the farewell
            await started.end()


def setup_of(ledger: Ledger, projection: Path, name: str) -> Setup:
    """Return what a child of this ledger's gateway is told.

    Raises: ConfigurationError for settings that cannot be handed to another process.
    """
    connection = ledger.config.for_another_process()
    if connection is None:
        raise ConfigurationError(
            "nats_options cannot be handed to the processes of the gateway: leave them out"
        )
    # Short for requests, which somebody waits for; children are as patient as workers.
    del connection["append_timeout_s"], connection["room_timeout_s"]
    level = logging.getLogger("jobledger").getEffectiveLevel()
    return Setup(
        connection={**connection, "name": f"jobledger-gateway-{name}"},
        projection=str(projection.absolute()),
        log_level=level,
    )


class WebhookHost(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway's own worker is told of webhooks."""

    allow_targets: tuple[str, ...] = ()  #: networks that deliveries may go to, beside the public internet
    key_file: Path | None = None  #: what unseals secrets

    def __post_init__(self) -> None:
        """Refuse networks that are none, before anything is started. Raises: ConfigurationError."""
        networks(self.allow_targets)


class WorkerChild:
    """The child *worker*."""

    def __init__(self, setup: Setup, hosting: WebhookHost) -> None:
        key_file = "" if hosting.key_file is None else str(hosting.key_file.absolute())
        self._setup = msgspec.structs.replace(setup, allow_targets=hosting.allow_targets, key_file=key_file)

    async def run(self) -> None:
        """Keep one child, until it ends. Raises: ChildEndedError, OSError."""
        async with child("worker", self._setup) as running:
            async for message in running.messages():
                if isinstance(message, Ready):
                    logging.getLogger("jobledger.gateway.process").debug(
                        "the gateway's own worker takes jobs"
                    )


class KeeperChild:
    """The child *keeper*: one look, and what that moves; another process is started for the next one."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    async def work(self) -> MoveOutcome:
        """Have it look. Raises: ChildEndedError, OSError."""
        async with child("keeper", self._setup) as running:
            async for message in running.messages():
                if isinstance(message, Looked):
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
                async for message in running.messages():
                    if isinstance(message, Ready):
                        self.problem = ""
                        self.begun.set()
        except Exception as error:  # until the next child is ready, pages show what ended this one
            how = error.how if isinstance(error, ChildEndedError) else "no process could be started for it"
            self.problem = f"the projection is not followed: {how}"
            raise
