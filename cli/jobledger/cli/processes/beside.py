"""A gateway beside another command: `jobledger gateway` as its child, which ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import anyio
import msgspec

from jobledger.cli.errors import ServerEndedError
from jobledger.cli.exposure import LOOPBACK
from jobledger.cli.logs import log_format
from jobledger.cli.output import Output
from jobledger.cli.processes.entrance import Entrance
from jobledger.cli.processes.gateway import DEFAULT_PORT, missing
from jobledger.cli.processes.supervise import environment_of_child
from jobledger.cli.session import Target
from jobledger.ledger.model.errors import PortInUseError
from jobledger.workers.supervision.supervisor import how_ended

_START_S: Final = 30.0
_FAREWELL_S: Final = 5.0
_log: Final = logging.getLogger("jobledger.gateway")


class Beside:
    """The gateway as a child process; it reads a projection that its parent keeps up to date."""

    def __init__(
        self, target: Target, projection: Path, listening: socket.socket, *, access_log: bool
    ) -> None:
        """Keep `listening` open, the socket where it answers: a child that is started again has the same port."""
        self.entrance = Entrance(gateway="")  #: where it answers
        self._listening = listening
        # The worker of this process declares the schedules, unless it was told not to.
        self._environment = environment_of_child(target) | {
            "JOBLEDGER_NO_SCHEDULES": "1",
            "JOBLEDGER_NO_ACCESS_LOG": "0" if access_log else "1",
        }
        # -P, as under the installed command: a file of the current folder must not stand in for a library of ours.
        self._command = [
            *(sys.executable, "-P", "-m", "jobledger.cli", "--log-format", log_format(), "gateway", "--json"),
            *("--projection", str(projection.absolute()), "--no-projector", "--until-eof"),
            *(("--environment", target.environment) if target.environment else ()),
        ]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it answers. Raises: ServerEndedError; its own words are on stderr."""
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            *("--listening", str(self._listening.fileno())),
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(self._listening.fileno(),),
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop in order
        )
        assert process.stdout is not None, "it is a pipe"
        with anyio.move_on_after(_START_S):
            if line := await process.stdout.readline():
                self.entrance = msgspec.json.decode(line, type=Entrance)
                _log.info("the gateway of process %d answers at %s", process.pid, self.entrance.gateway)
                return
        raise ServerEndedError(
            "the gateway did not start: its own words are above; --no-gateway does without"
        )

    async def keep(self) -> None:
        """Start the child again if it has ended, then wait until it ends by itself. Raises: ServerEndedError."""
        if self._process is None or self._process.returncode is not None:
            await self.start()
        assert self._process is not None, "it was started"
        raise ServerEndedError(f"its process {how_ended(await self._process.wait())}")

    async def stop(self) -> None:
        """Close the child's stdin, at which it ends; kill it if it stays."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        with anyio.move_on_after(_FAREWELL_S):
            await process.wait()
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def gateway_beside(
    output: Output, target: Target, projection: Path, port: int | None, *, access_log: bool = False
) -> AsyncGenerator[Beside | None, None]:
    """Run a gateway for the length of the block; yield None, after a note, without the extra.

    Without a `port` it takes the usual one, or a free one where that is taken. `access_log`: it logs
    each request.

    Raises: PortInUseError, ServerEndedError.
    """
    if sentence := missing():
        output.note(f"no gateway is started: {sentence}")
        yield None
        return
    with _listen(port) as listening:
        made = Beside(target, projection, listening, access_log=access_log)
        try:
            await made.start()
            yield made
        finally:
            with anyio.CancelScope(shield=True):  # `stop` is bounded in time
                await made.stop()


def _listen(port: int | None) -> socket.socket:
    """Return the socket of the gateway: bound once, here, so that nobody takes its port before it begins."""
    from jobledger.gateway.process.listener import listen  # noqa: PLC0415 - the extra was checked before

    if port is not None:
        return listen(LOOPBACK, port, option="--gateway-port")
    try:
        return listen(LOOPBACK, DEFAULT_PORT)
    except PortInUseError:
        return listen(LOOPBACK, 0)
