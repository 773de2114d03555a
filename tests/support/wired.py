"""Three servers whose routes and clients go over wires: each server can be killed, frozen, wiped, or cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
from tests.support.cluster import SIZE
from tests.support.ports import kept_ports
from tests.support.wires import Wire

_NUMBERS: Final = range(SIZE)
_POLL_S: Final = 0.2
#: How long a server that is well may take to catch up, and what it may lack under load.
_STUCK_S: Final = 30.0
_LAG_MAX: Final = 200
_LEADER: Final = re.compile(
    r"^\[\d+\] (\S+ \S+) \[INF\] JetStream cluster new (stream|consumer|metadata) leader(?: for '\S+ > ([^']+)')?",
    re.MULTILINE,
)


class WiredCluster:
    """The servers by number, from 0."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary = binary
        self._folder = folder
        ports = iter(kept_ports(4 * SIZE + SIZE * SIZE))
        self._listens = [next(ports) for _ in _NUMBERS]
        self._routes = [next(ports) for _ in _NUMBERS]
        self._monitors = [next(ports) for _ in _NUMBERS]
        self._clients = [Wire(next(ports), to) for to in self._listens]
        self._links = {
            (one, other): (port, Wire(port, self._routes[other]))
            for one in _NUMBERS
            for other in _NUMBERS
            if (port := next(ports)) and one != other
        }
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._http = httpx.AsyncClient(timeout=1.0)

    @property
    def url(self) -> str:
        return ",".join(f"nats://127.0.0.1:{wire.port}" for wire in self._clients)

    @property
    def _wires(self) -> Iterator[Wire]:
        yield from self._clients
        yield from (wire for _, wire in self._links.values())

    async def open(self) -> None:
        """Start all; return when they are one cluster."""
        for wire in self._wires:
            await wire.open()
        for number in _NUMBERS:
            self.start(number)
        await self.healthy(60.0)

    async def close(self) -> None:
        for process in self._processes.values():
            process.kill()  # SIGKILL reaches those that are frozen, too
        for process in self._processes.values():
            await asyncio.to_thread(process.wait)
        for wire in self._wires:
            wire.release()
            await wire.close()
        await self._http.aclose()

    def start(self, number: int) -> None:
        path = self._folder / f"n{number}.conf"
        path.write_text(self._configuration(number), encoding="utf-8")
        self._processes[number] = subprocess.Popen(
            [self._binary, "-c", str(path), "-l", str(self._log(number))]
        )

    def _configuration(self, number: int) -> str:
        routes = ", ".join(
            f'"nats://127.0.0.1:{port}"' for (one, _), (port, _) in self._links.items() if one == number
        )
        return (
            f'server_name: "n{number}"\nhost: "127.0.0.1"\nport: {self._listens[number]}\nlogtime_utc: true\n'
            f'http: "127.0.0.1:{self._monitors[number]}"\n'
            f'client_advertise: "127.0.0.1:{self._clients[number].port}"\n'
            f'jetstream {{ store_dir: "{self._store(number)}", max_file_store: 4GB, sync_interval: always }}\n'
            # Servers tell each other the addresses of routes: nobody answers at this one, so that each route is a wire.
            f'cluster {{ name: "c", host: "127.0.0.1", port: {self._routes[number]}, advertise: "127.0.0.1:9", '
            f"pool_size: -1, routes: [{routes}] }}\n"
            'lame_duck_grace_period: "2s"\nlame_duck_duration: "30s"\n'
        )

    def _store(self, number: int) -> Path:
        return self._folder / f"store-{number}"

    def _log(self, number: int) -> Path:
        return self._folder / f"n{number}.log"

    # What is done to them.

    async def kill(self, number: int) -> None:
        """End a server without a word."""
        await self.end(number, signal.SIGKILL)

    async def end(self, number: int, how: signal.Signals) -> None:
        """Send a signal, and wait until the server has ended."""
        self._processes[number].send_signal(how)
        async with asyncio.timeout(60.0):
            await asyncio.to_thread(self._processes[number].wait)

    def wipe(self, number: int) -> None:
        """Let a server that has ended lose its disk."""
        shutil.rmtree(self._store(number))

    @contextlib.contextmanager
    def frozen(self, number: int) -> Generator[None]:
        os.kill(self._processes[number].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._processes[number].pid, signal.SIGCONT)

    @contextlib.contextmanager
    def cut_off(self, number: int, *, clients: bool) -> Generator[None]:
        """Let a server hear nothing of the others, and with `clients` nothing of its clients either."""
        wires = [wire for ends, (_, wire) in self._links.items() if number in ends]
        wires += [self._clients[number]] if clients else []
        for wire in wires:
            wire.hold()
        try:
            yield
        finally:
            for wire in wires:
                wire.release()

    # What they say.

    async def healthy(self, limit_s: float) -> float:
        """Wait until each server says that it is well; return after how many seconds."""
        began = time.monotonic()
        async with asyncio.timeout(limit_s):
            while not all([await self._get(number, "/healthz") == {"status": "ok"} for number in _NUMBERS]):
                await asyncio.sleep(_POLL_S)
        return time.monotonic() - began

    async def whole(self, limit_s: float) -> list[str]:
        """Wait until the copies of every stream are as new as their leaders'; return the servers that were restarted for it.

        A server that was cut off may fail to catch up with one group for as long as it runs, though it says that it is
        well (seen with nats-server 2.15.1: "Expected first catchup entry to be a snapshot and peerstate, will retry").
        The next loss would then be that of a second copy. So it is restarted, as `doctor` tells an operator to do.
        """
        began, restarted = time.monotonic(), list[str]()
        async with asyncio.timeout(limit_s):
            while (behind := await self._behind()) != set():
                if behind and not restarted and time.monotonic() - began > _STUCK_S:
                    number = min(behind)
                    await self.end(number, signal.SIGTERM)
                    self.start(number)
                    restarted.append(f"n{number}")
                await asyncio.sleep(_POLL_S)
        return restarted

    async def _behind(self) -> set[int] | None:
        """Return the servers whose copies lack much of what a leader has; None where a stream has no leader."""
        found: set[int] = set()
        led: set[str] = set()
        known: set[str] = set()
        for number in _NUMBERS:
            for account in (await self._get(number, "/jsz?streams=1")).get("account_details", []):
                for stream in account.get("stream_detail", []):
                    known.add(stream["name"])
                    cluster: dict[str, Any] = stream.get("cluster") or {}
                    if cluster.get("leader") == f"n{number}":
                        led.add(stream["name"])
                        replicas: list[dict[str, Any]] = cluster.get("replicas") or []
                        found |= {
                            int(each["name"].removeprefix("n"))
                            for each in replicas
                            if each.get("offline") or (not each["current"] and each.get("lag", 0) > _LAG_MAX)
                        }
        return found if known and led == known else None

    async def leader(self, name: str) -> int:
        """Return the number of the server that leads a stream, a consumer, or everything ("meta")."""
        async with asyncio.timeout(30.0):
            while True:
                for number in _NUMBERS:
                    found = _leaders(await self._get(number, "/jsz?streams=1&consumers=1"))
                    if name in found:
                        return int(found[name].removeprefix("n"))
                await asyncio.sleep(_POLL_S)

    async def consumers(self) -> set[str]:
        """Return the names of all consumers that have a leader."""
        found: set[str] = set()
        for number in _NUMBERS:
            found |= {
                each
                for each in _leaders(await self._get(number, "/jsz?streams=1&consumers=1"))
                if "work" in each
            }
        return found

    def number_at(self, port: int) -> int:
        """Return the number of the server that a client reaches at a port."""
        return next(number for number in _NUMBERS if self._clients[number].port == port)

    def busiest(self) -> int:
        """Return the number of the server that most clients are connected to."""
        return max(_NUMBERS, key=lambda number: self._clients[number].connections)

    def election_s(self, name: str, since: float) -> float | None:
        """Return how long after a moment (seconds since 1970) the first new leader was told; None: none was."""
        moments = (
            datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
            for number in _NUMBERS
            for at, kind, what in _LEADER.findall(self._log(number).read_text(encoding="utf-8"))
            if name == (what.rpartition(" > ")[2] if kind != "metadata" else "meta")
        )
        return min((at - since for at in moments if at >= since), default=None)

    async def _get(self, number: int, path: str) -> Any:
        try:
            return (await self._http.get(f"http://127.0.0.1:{self._monitors[number]}{path}")).json()
        except (httpx.HTTPError, ValueError):
            return {}


def _leaders(said: dict[str, Any]) -> dict[str, str]:
    """Return who leads what, by the name of a stream or a consumer, as one server says."""
    found: dict[str, str] = {}
    if leader := said.get("meta_cluster", {}).get("leader"):
        found["meta"] = leader
    for account in said.get("account_details", []):
        for stream in account.get("stream_detail", []):
            for each in (stream, *(stream.get("consumer_detail") or ())):
                cluster: dict[str, Any] = each.get("cluster") or {}
                if leader := cluster.get("leader"):
                    found[each["name"]] = leader
    return found


@contextlib.asynccontextmanager
async def wired_cluster(binary: str, folder: Path) -> AsyncGenerator[WiredCluster]:
    """Yield the three servers when they are one cluster; frozen ones are gone at the end, too."""
    made = WiredCluster(binary, folder)
    try:
        await made.open()
        yield made
    finally:
        await made.close()
