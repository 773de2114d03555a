"""The embedded server as commands use it: its monitoring port, its end, its ready line."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import anyio

from jobledger.cli.errors import ServerEndedError
from jobledger.ledger.errors import PortInUseError
from jobledger.ledger.server import Durability, EmbeddedServer

#: The monitoring port lies this far above the client port, as 8222 above 4222, so that `doctor` finds it.
MONITOR_ABOVE: Final = 4000
_PORT_MAX: Final = 65535
#: How long after an error of ours the server's end may take to show.
_DEATH_S: Final = 0.3


@contextlib.asynccontextmanager
async def embedded(
    directory: Path, *, port: int, durability: Durability
) -> AsyncGenerator[EmbeddedServer, None]:
    """Run the embedded server for the length of the block; its monitoring port gives way when it is taken.

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
    """Report the server's death as what it is, whichever part of us noticed it first.

    Raises: ServerEndedError instead of any error that came with it.
    """
    try:
        yield
    except Exception as error:  # anything may be what the death of the server looks like
        with anyio.move_on_after(_DEATH_S):
            await server.wait()
        if server.alive:
            raise
        raise ended_error(server) from error


def ended_error(server: EmbeddedServer) -> ServerEndedError:
    """Return the sentence on a server that has ended."""
    code = server.returncode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    last = server.last_log_lines(1)
    words = f"; its last line: {last[0]}" if last else ""
    return ServerEndedError(f"the embedded nats-server {how}; see {server.log_path}{words}")


def described(server: EmbeddedServer) -> dict[str, Any]:
    """Return what a program wants to know of a server that is ready."""
    return {
        "url": server.url,
        "monitor": server.monitor_url,
        "pid": server.pid,
        "directory": str(server.directory),
        "durability": server.durability,
    }


def safety(durability: str) -> str:
    """Return in a few words what a durability means."""
    return (
        "safe against power cuts"
        if durability == "power"
        else "safe against a crash, not against a power cut"
    )
