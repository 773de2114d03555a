"""The embedded server for commands: its monitoring port, its end, its ready line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import anyio

from jobledger.cli.errors import ServerEndedError, first_of
from jobledger.ledger.model.errors import LedgerError, PortInUseError, UnreachableError
from jobledger.ledger.server import Durability, EmbeddedServer
from jobledger.projections.errors import ProjectionError

#: The monitoring port lies this far above the client port, as 8222 above 4222, so that `doctor` finds it.
MONITOR_ABOVE: Final = 4000
_PORT_MAX: Final = 65535
#: How long to wait after an error for the server's end to show. An error of our own is reported soon; an unforeseen one
#: is most likely caused by the server's end, which a busy machine shows late.
_DEATH_S: Final = 0.3
_DEATH_UNFORESEEN_S: Final = 3.0


@contextlib.asynccontextmanager
async def embedded(
    directory: Path, *, port: int, durability: Durability
) -> AsyncGenerator[EmbeddedServer, None]:
    """Run the embedded server for the length of the block; it takes a free monitoring port if the usual one is in use.

    Raises: as `EmbeddedServer.start`.
    """
    beside = port + MONITOR_ABOVE if port and port + MONITOR_ABOVE <= _PORT_MAX else 0
    server = EmbeddedServer(directory, port=port, durability=durability, monitor_port=beside)
    try:
        await server.start()
    except PortInUseError as error:
        if "monitoring" not in str(error):
            raise
        server = EmbeddedServer(directory, port=port, durability=durability, monitor_port=0)
        await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def until_ended(server: EmbeddedServer) -> None:
    """Wait until the server's process ends, and say how.

    Raises: ServerEndedError.
    """
    await server.wait()
    raise ended_error(server)


@contextlib.asynccontextmanager
async def blamed(server: EmbeddedServer) -> AsyncGenerator[None, None]:
    """Raise ServerEndedError once the server has ended, whatever error that causes first.

    Raises: ServerEndedError instead of any error that came with it.
    """
    try:
        yield
    except BaseException as error:  # the server's death may show as any error
        if _was_asked_for(error):
            raise
        with anyio.move_on_after(_death_s(first_of(error))):
            await server.wait()
        if server.alive:
            raise
        raise ended_error(server) from error


def _death_s(error: BaseException) -> float:
    """Return how long to wait for the server's end; a server that does not answer has most likely ended, too."""
    ours = isinstance(error, LedgerError | ProjectionError) and not isinstance(error, UnreachableError)
    return _DEATH_S if ours else _DEATH_UNFORESEEN_S


def _was_asked_for(error: BaseException) -> bool:
    """Return whether the block was ended from outside, and not by a future that a lost connection cancelled."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def ended_error(server: EmbeddedServer) -> ServerEndedError:
    """Return the error for a server that has ended."""
    code = server.returncode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    last = server.last_log_lines(1)
    words = f"; its last line: {last[0]}" if last else ""
    return ServerEndedError(f"the embedded nats-server {how}; see {server.log_path}{words}")


def described(server: EmbeddedServer) -> dict[str, Any]:
    """Return the facts for programs about a ready server."""
    return {
        "url": server.url,
        "monitor": server.monitor_url,
        "pid": server.pid,
        "directory": str(server.directory),
        "durability": server.durability,
    }


def safety(durability: str) -> str:
    """Return the meaning of a durability in a few words."""
    return (
        "safe against power cuts"
        if durability == "power"
        else "safe against a crash, not against a power cut"
    )
