"""What the benchmark of the gateway talks to: a gateway as its users start it, and the same by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

from http_load import Connection
from shared import LEDGER_BYTES

from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.access.account import read_account_key
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.server import EmbeddedServer


@task(name="noop", queue="bench")
async def noop(number: int) -> None:
    """Be enqueued."""


class Served(NamedTuple):
    """A process that answers."""

    url: str
    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def child(self, name: str) -> int:
        """Return the number of its child process of that name."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()
        for each in children:
            if name in Path(f"/proc/{each}/cmdline").read_text(encoding="utf-8").split("\0"):
                return int(each)
        raise LookupError(f"the gateway has no child {name}")


@contextlib.asynccontextmanager
async def fresh() -> AsyncGenerator[tuple[EmbeddedServer, Ledger, Path], None]:
    """Give a server, a client and a folder."""
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder:
        async with (
            EmbeddedServer(Path(folder) / "nats", port=0, durability="process") as server,
            connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger,
        ):
            entry = entry_of(noop, worker="bench", at=ledger.clock.now())
            await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
            yield server, ledger, Path(folder)


@contextlib.asynccontextmanager
async def gateway(
    server: EmbeddedServer, folder: Path, *more: str, rows: Path | None = None
) -> AsyncGenerator[Served, None]:
    """Run a gateway, as its users do; `rows`: its projection, a new one in `folder` unless given."""
    words = (
        "gateway",
        "--url",
        server.url,
        "--port",
        "0",
        "--json",
        "--projection",
        str(rows or folder / "rows.db"),
        *more,
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "jobledger.cli", *words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None, "a pipe"
        async with asyncio.timeout(60):
            ready = json.loads(await process.stdout.readline())
        key = read_account_key(Path(ready["key_file"]))
        yield Served(ready["gateway"].replace("://", f"://:{key}@"), process)
    finally:
        await _ended(process)


@contextlib.asynccontextmanager
async def by_hand(server: EmbeddedServer) -> AsyncGenerator[Served, None]:
    """Run the handwritten program."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = Path(__file__).with_name("by_hand.py")
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), server.url, str(port))
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    async with Connection(f"http://127.0.0.1:{port}"):
                        break
                await asyncio.sleep(0.02)
        yield Served(f"http://127.0.0.1:{port}", process)
    finally:
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()


def post(number: int) -> tuple[str, str, bytes]:
    """Return a request that enqueues a job."""
    body = {"task": "noop", "queue": "bench", "input": {"number": number}}
    return "POST", "/v1/jobs", json.dumps(body).encode()
