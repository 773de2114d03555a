"""Three nats-servers as one cluster, on free ports of loopback, each with a store of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.ports import kept_ports

from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.errors import LedgerError

SIZE = 3


def _configuration(number: int, folder: Path, ports: Sequence[int], more: str) -> str:
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[SIZE:])
    return (
        f'server_name: "n{number}"\nserver_tags: ["n{number}"]\nhost: "127.0.0.1"\nport: {ports[number]}\n'
        f'jetstream {{ store_dir: "{folder / f"store-{number}"}", max_file_store: 2GB }}\n'
        f'cluster {{ name: "c", host: "127.0.0.1", port: {ports[SIZE + number]}, routes: [{routes}] }}\n{more}'
    )


def _start(
    binary: str, number: int, folder: Path, ports: Sequence[int], more: str
) -> subprocess.Popen[bytes]:
    path = folder / f"n{number}.conf"
    path.write_text(_configuration(number, folder, ports, more), encoding="utf-8")
    return subprocess.Popen([binary, "-c", str(path), "-l", str(folder / f"n{number}.log")])


class Cluster(NamedTuple):
    url: str  #: the addresses of its servers, separated by commas
    servers: dict[int, subprocess.Popen[bytes]]  #: by port
    start: Callable[[int], subprocess.Popen[bytes]]  #: starts the server of that number, from 0

    async def kill_leader(self, ledger: Ledger) -> int:
        """End the server that leads the ledger's stream, without a word; return its number."""
        info = await api(ledger.inbox, f"STREAM.INFO.{ledger.names.ledger_stream}", {})
        number = int(info["cluster"]["leader"].removeprefix("n"))
        server = list(self.servers.values())[number]
        server.kill()
        await asyncio.to_thread(server.wait)
        return number

    def restart(self, number: int) -> None:
        """Start a server again that was ended, with its store."""
        self.servers[list(self.servers)[number]] = self.start(number)

    async def whole(self, ledger: Ledger, limit_s: float = 60.0) -> None:
        """Wait until every replica of the ledger's stream has what its leader has: then another one may die."""
        async with asyncio.timeout(limit_s):
            while True:
                with contextlib.suppress(LedgerError, TimeoutError, KeyError):
                    info = await api(ledger.inbox, f"STREAM.INFO.{ledger.names.ledger_stream}", {})
                    others = info["cluster"]["replicas"]
                    if len(others) == SIZE - 1 and all(each["current"] for each in others):
                        return
                await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def cluster(
    binary: str, folder: Path, *, configuration: str = "", login: str = ""
) -> AsyncGenerator[Cluster]:
    """Yield the cluster once it stores what it is given; frozen servers are gone at the end, too.

    `configuration`: more for each server. `login`: who its addresses log in, as "user:password@".
    """
    ports = kept_ports(2 * SIZE)
    servers: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for number in range(SIZE):
            servers[ports[number]] = _start(binary, number, folder, ports, configuration)
        url = ",".join(f"nats://{login}127.0.0.1:{port}" for port in ports[:SIZE])
        await _ready(url)
        yield Cluster(
            url, servers, functools.partial(_start, binary, folder=folder, ports=ports, more=configuration)
        )
    finally:
        for server in servers.values():
            server.kill()
        for server in servers.values():
            server.wait()


async def _ready(url: str) -> None:
    """Wait until the cluster has a leader: then a ledger of three replicas can be made."""
    async with asyncio.timeout(2 * LIMIT_S):
        while True:
            try:
                async with connect(url, environment="probe", replicas=SIZE, ledger_bytes_max=16 << 20):
                    return
            except LedgerError:
                await asyncio.sleep(0.1)
