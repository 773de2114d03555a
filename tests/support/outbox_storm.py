"""An application, a relay, a database and a server, each killed at random moments; what became of each row in the end.

The application writes the id of each order into a table of its own, in the transaction of the row: that table is what was
committed, whatever anybody heard of the commit. What it rolls back it tells in a file before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.support.counting import everything
from tests.support.outbox_shop import committed, make_tables
from tests.support.postgres import Postgres
from tests.support.warm import ROOT, SOURCES

from jobledger.audit.verify import verify
from jobledger.ledger import connect
from jobledger.ledger.outbox.addresses import open_database
from jobledger.ledger.outbox.database import OutboxCounts
from jobledger.ledger.server import EmbeddedServer

_SHOP: Final = Path(__file__).with_name("outbox_shop.py")
_LIMIT_S: Final = 60.0
_LEASE_S: Final = 1.0


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    kills: dict[str, int]
    committed: list[str]  #: ids of jobs, as the application's table has them
    rolled_back: set[str]
    jobs: list[str]  #: ids of jobs in the ledger, one for each first event
    problems: list[str]
    events: int
    last_s: float  #: from the last kill until nothing waited

    def hold(self) -> Storm:
        """Return itself if each committed row is one job, and nothing else is."""
        assert self.problems == []
        assert Counter(self.jobs) == Counter(set(self.committed)), (
            "one job for each committed row, and none else"
        )
        assert len(self.committed) == len(set(self.committed))
        assert not self.rolled_back & set(self.jobs)
        assert self.committed
        assert self.rolled_back
        return self


class _Crew:
    """The processes, which are started again whenever they are gone."""

    def __init__(self, folder: Path, address: str, server: EmbeddedServer, postgres: Postgres | None) -> None:
        self.folder = folder
        self.address = address
        self.server = server
        self.postgres = postgres
        self.told = folder / "rolled-back"
        self._running: dict[str, Any] = {}
        self._logs = {name: (folder / f"{name}.log").open("ab") for name in ("application", "relay")}

    @property
    def names(self) -> list[str]:
        return ["application", "relay", "server", *(["database"] if self.postgres else [])]

    def begin(self, name: str) -> None:
        environment = {each: value for each, value in os.environ.items() if not each.startswith("JOBLEDGER_")}
        environment |= {
            "PYTHONPATH": os.pathsep.join((str(ROOT), *SOURCES)),
            "JOBLEDGER_OUTBOX_DATABASE": self.address,
        }
        words = [str(_SHOP), str(self.told)]
        if name == "relay":
            words = ["-m", "jobledger.cli", "outbox", "relay", "--poll", "50ms", "--url", self.server.url]
            words += ["--wait-for-server", "30s"]
        self._running[name] = subprocess.Popen(
            [sys.executable, "-P", *words],
            env=environment,
            cwd=self.folder,
            stdout=self._logs[name],
            stderr=self._logs[name],
        )

    async def kill(self, name: str) -> None:
        """Kill one, and start it again."""
        if name == "database":
            assert self.postgres is not None
            await asyncio.to_thread(self.postgres.kill)
            await asyncio.to_thread(self.postgres.start)
        elif name == "server":
            assert self.server.pid is not None
            os.kill(self.server.pid, signal.SIGKILL)
            await self.server.stop()
            await self.server.start()
        else:
            self.end(name)
            self.begin(name)

    def end(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait(_LIMIT_S)

    def said(self) -> str:
        return "\n".join(
            path.read_text(encoding="utf-8", errors="replace")[-3000:] for path in self.folder.glob("*.log")
        )

    def close(self) -> None:
        for name in list(self._running):
            self.end(name)
        for log in self._logs.values():
            log.close()


async def storm(  # noqa: PLR0917 - all that dies
    folder: Path,
    address: str,
    server: EmbeddedServer,
    postgres: Postgres | None,
    chance: random.Random,
    kills: int,
) -> Storm:
    """Kill one after the other `kills` times, let all go on, and return what there is then."""
    await server.start()
    async with connect(server.url, ledger_bytes_max=64 << 20, lease_s=_LEASE_S):
        pass  # makes the ledger
    await make_tables(address)
    crew, counts = _Crew(folder, address, server, postgres), Counter[str]()
    try:
        for name in ("relay", "application"):
            crew.begin(name)
        await _until(crew.told.exists, crew)
        # Each at least once; between two kills there is time for some to be done, or for the start of what was killed.
        victims = crew.names * (kills // len(crew.names) + 1)
        for name in chance.sample(victims[:kills], kills):
            await asyncio.sleep(chance.random() * 0.6)
            await crew.kill(name)
            counts[name] += 1
        await asyncio.sleep(1.0)
        crew.end("application")
        began = time.monotonic()
        found = await _settled(address, crew)
        last_s = time.monotonic() - began
        crew.end("relay")
        return await _result(crew, dict(counts), found, last_s)
    finally:
        crew.close()


async def _until(holds: Callable[[], bool], crew: _Crew) -> None:
    try:
        async with asyncio.timeout(_LIMIT_S):
            while not holds():
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise AssertionError(f"it did not begin:\n{crew.said()}") from error


async def _settled(address: str, crew: _Crew) -> OutboxCounts:
    """Return the counts when nothing waits any more."""
    async with open_database(address) as database:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LIMIT_S):
                while (found := await database.counts()).waiting:
                    await asyncio.sleep(0.05)
                return found
    raise AssertionError(f"rows still wait:\n{crew.said()}")


async def _result(crew: _Crew, kills: dict[str, int], found: OutboxCounts, last_s: float) -> Storm:
    async with connect(crew.server.url, lease_s=_LEASE_S) as ledger:
        first = [each.event.job for each in await everything(ledger) if type(each.event).__name__ == "Queued"]
        report = await verify(ledger.log)
    problems = [] if report.sound else [each.sentence for each in report.violations]
    if found.refused:
        problems.append(f"{found.refused} rows were refused")
    return Storm(
        kills=kills,
        committed=await asyncio.to_thread(committed, crew.address),
        rolled_back=set(crew.told.read_text(encoding="utf-8").split()),
        jobs=first,
        problems=problems,
        events=report.events,
        last_s=last_s,
    )
