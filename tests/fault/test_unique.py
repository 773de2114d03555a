"""Unique jobs: eight clients and their workers die at random and between the two appends; never are two of a key alive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support.figures import Recorder
from tests.support.fleet import ROOT, Fleet

from jobledger.audit.verify import verify
from jobledger.audit.verify.grants import RULES
from jobledger.ledger import Ledger, TaskRegistry
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.unique import UNIQUE

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(300)]

APP = ROOT / "tests" / "fault" / "apps" / "unique.py"
CLIENTS = 8
KEYS = 20
ENQUEUES = 3_200
CRASH = 0.05  # of the enqueues that took a key


class Clients:
    """Processes that enqueue; one that ended is replaced by the next."""

    def __init__(self, url: str, environment: str, folder: Path, *, planted: bool) -> None:
        self._words = (url, environment)
        self._planted = planted
        self._log = folder / "clients.log"
        self._number = 0
        self.alive: list[asyncio.subprocess.Process] = []
        self.acknowledged: list[str] = []  #: ids of jobs whose enqueue returned
        self.ends: Counter[int] = Counter()  #: by exit code

    async def run(self) -> None:
        """Keep `CLIENTS` clients alive, until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._one_after_the_other())

    async def _one_after_the_other(self) -> None:
        while True:
            self._number += 1
            words = (*self._words, str(self._number), str(KEYS), str(CRASH), str(int(self._planted)))
            with self._log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    str(APP),
                    *words,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                )
            self.alive.append(process)
            try:
                assert process.stdout is not None
                async for line in process.stdout:
                    if line.endswith(b"\n"):
                        self.acknowledged.append(json.loads(line)[0])
                self.ends[await process.wait()] += 1
            finally:
                self.alive.remove(process)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")


@contextlib.asynccontextmanager
async def enqueueing(clients: Clients) -> AsyncGenerator[None]:
    running = asyncio.create_task(clients.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


class Read:
    """What the ledger alone tells, in its order."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.alive: dict[str, set[str]] = {}  #: by key
        self.most_alive = 0  #: of one key at a moment
        self.healed = 0  #: jobs that another one made than the one who took the key
        self.events = 0
        self._taken_by: dict[str, str] = {}

    async def all(self, ledger: Ledger) -> Read:
        async for batch in ledger.log.read_messages():
            for message in batch:
                self.events += 1
                if isinstance(message, StoredEvent):
                    self._job(message)
                elif message.subject.split(".")[1] == UNIQUE.name:
                    taken = UNIQUE.decode(message)
                    self._taken_by[taken.job] = taken.by
        return self

    def _job(self, stored: StoredEvent) -> None:
        name = stored.event.job
        before = self.jobs.get(name)
        job = self.jobs[name] = evolve(before, stored.event, stored.stream_sequence)
        alive = self.alive.setdefault(job.order.unique, set())
        (alive.discard if job.is_final else alive.add)(name)
        self.most_alive = max(self.most_alive, len(alive))
        if before is None:
            self.healed += self._taken_by[name] != stored.event.by

    @property
    def still_alive(self) -> int:
        return sum(map(len, self.alive.values()))


async def _until_enqueued(clients: Clients, fleet: Fleet, chance: random.Random, count: int) -> int:
    """Kill clients and workers at random until `count` enqueues have returned; return how many clients were killed."""
    kills = 0
    worker = await fleet.begin("--concurrency", "20")
    async with asyncio.timeout(200):
        while len(clients.acknowledged) < count:
            await asyncio.sleep(chance.uniform(0.2, 0.6))
            if clients.alive:
                with contextlib.suppress(ProcessLookupError):
                    chance.choice(clients.alive).kill()
                kills += 1
            if kills % 8 == 7 and worker.said:
                fleet.kill(worker.pid)
                worker = await fleet.begin("--concurrency", "20")
    return kills


@pytest.fixture
def durability() -> str:
    return "process"  # twice as many enqueues in the time, and no machine loses power here


async def test_unique_jobs_whose_enqueuers_die_are_never_two_and_always_healed(
    ledger: Ledger, fleet: Fleet, chance: random.Random, tmp_path: Path, record: Recorder
) -> None:
    fleet.app = APP
    only = TaskRegistry.load([str(APP)]).get("only")
    clients = Clients(fleet.url, fleet.environment, tmp_path, planted=False)
    second = await fleet.begin("--concurrency", "20")
    async with enqueueing(clients):
        kills = await _until_enqueued(clients, fleet, chance, ENQUEUES)
    assert second.alive
    crashes = clients.ends[9]
    assert set(clients.ends) <= {9, -9}, clients.log
    before = await Read().all(ledger)
    assert before.most_alive == 1
    handles = [await ledger.enqueue(only, key, 0.0) for key in range(KEYS)]  # heals what the last crash left
    async with asyncio.timeout(60):
        for handle in handles:
            await handle.wait()
    after = await Read().all(ledger)
    assert (after.most_alive, after.still_alive) == (1, 0)
    assert set(clients.acknowledged) <= set(after.jobs)
    assert crashes > 10
    assert after.healed > 10
    report = await verify(ledger.log)
    assert report.sound, report.violations
    assert report.proven == RULES
    assert set(await fleet.stop()) == {0}
    record(
        "38",
        "eight clients enqueue on 20 keys, SIGKILL of clients and workers, clients that end between the two appends",
        faults=f"{kills} kills of clients, {crashes} ends between, {after.healed} jobs made by the next one who came",
        jobs=len(after.jobs),
        events=after.events,
        now=time.monotonic(),
    )


@pytest.mark.unsound_ledger("keys are taken blindly")
async def test_unique_keys_that_are_taken_blindly_are_found(
    ledger: Ledger, fleet: Fleet, chance: random.Random, tmp_path: Path
) -> None:
    """The same run with the fault that it looks for."""
    fleet.app = APP
    clients = Clients(fleet.url, fleet.environment, tmp_path, planted=True)
    async with enqueueing(clients):
        await _until_enqueued(clients, fleet, chance, 200)
    assert (await Read().all(ledger)).most_alive > 1
