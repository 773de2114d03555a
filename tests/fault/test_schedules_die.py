"""Workers that tick are killed, at random and between a tick and its job: each tick is made once, with its job."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.fault.apps.ticking import DIED_IN_BETWEEN
from tests.support.figures import Recorder
from tests.support.fleet import ROOT
from tests.support.schedules import begun_jobs, declare
from tests.support.timing import until

from jobledger.audit.verify import verify
from jobledger.audit.verify.grants import RULES
from jobledger.ledger import Ledger
from jobledger.ledger.model.schedules.decisions import Pause
from jobledger.ledger.model.schedules.events import Ticked
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(300)]

PROCESSES = 5
SCHEDULES = 200
#: Of this many schedules the jobs are run; a limit lets the job of a tick wait for the one before it.
WAITING = 10
SECONDS = 60
#: Of 200 ticks a second: a death between the two appends every five seconds or so.
CHANCE = 0.001


class Tickers:
    """Worker processes, begun again when they die."""

    def __init__(self, server: EmbeddedServer, environment: str, folder: Path, chance: random.Random) -> None:
        self._words = (server.url, environment, str(CHANCE))
        self._folder = folder
        self._chance = chance
        self._running: list[asyncio.subprocess.Process] = []
        self.killed = 0
        self.died_in_between = 0

    async def begin(self) -> None:
        """Start one."""
        script = ROOT / "tests" / "fault" / "apps" / "ticking.py"
        with (self._folder / "tickers.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(script), *self._words, str(self._chance.random()), stderr=log, stdout=log
            )
        self._running.append(process)

    async def replace_the_dead(self) -> None:
        """Start another one for each that ended."""
        for process in [each for each in self._running if each.returncode is not None]:
            self._running.remove(process)
            if process.returncode == DIED_IN_BETWEEN:
                self.died_in_between += 1
            else:
                assert process.returncode == -signal.SIGKILL, (self._folder / "tickers.log").read_text()
            await self.begin()

    async def kill_one(self) -> None:
        """End one without a word."""
        with contextlib.suppress(ProcessLookupError):  # it has just died by itself
            self._chance.choice(self._running).kill()
        self.killed += 1

    async def close(self) -> None:
        """Leave none behind."""
        for process in self._running:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
def durability() -> str:
    return "process"  # 400 appends a second without a wait for the disk, and no machine loses power here


@pytest.fixture
async def tickers(
    server: EmbeddedServer, environment: str, tmp_path: Path, chance: random.Random
) -> AsyncIterator[Tickers]:
    made = Tickers(server, environment, tmp_path, chance)
    yield made
    await made.close()


async def _ticks(ledger: Ledger) -> dict[str, list[Ticked]]:
    found: defaultdict[str, list[Ticked]] = defaultdict(list)
    async for batch in ledger.log.read_messages(subject=SCHEDULE.everything(ledger.names)):
        for event in map(SCHEDULE.decode, batch):
            if isinstance(event, Ticked):
                found[event.schedule].append(event)
    return found


async def test_schedules_tick_once_each_second_while_their_workers_die(
    ledger: Ledger, tickers: Tickers, chance: random.Random, record: Recorder
) -> None:
    names = [f"s{number}" for number in range(SCHEDULES)]
    for _ in range(PROCESSES):
        await tickers.begin()
    await asyncio.gather(
        *(declare(ledger, name, every_s=1, overlap="allow") for name in names[WAITING:]),
        *(declare(ledger, name, every_s=1, overlap="buffer_all", queue="ticks") for name in names[:WAITING]),
    )
    began, kill_at = time.monotonic(), time.monotonic() + 3.0
    while time.monotonic() < began + SECONDS:
        await asyncio.sleep(0.1)
        await tickers.replace_the_dead()
        if time.monotonic() >= kill_at:
            await tickers.kill_one()
            kill_at = time.monotonic() + chance.uniform(2.0, 6.0)
    end = datetime.now(UTC)

    async def all_made_up() -> bool:  # what a dead process held comes again after the ack wait
        await tickers.replace_the_dead()
        found = [(await ledger.schedules.read(name)).schedule for name in names]
        behind = [each for each in found if each is None or each.tick is None or each.tick < end]
        return not behind

    await until(all_made_up, 60.0)
    for name in names:
        await ledger.schedules.act(name, Pause())
    await tickers.close()
    report = await verify(ledger.log)
    assert report.sound, report.text()
    assert report.proven == RULES
    ticks = await _ticks(ledger)
    made = [each for name in names for each in ticks[name]]
    assert len(made) >= SCHEDULES * (SECONDS - 1)
    for name in names:
        first = ticks[name][0].tick
        assert first is not None
        moments = [first + timedelta(seconds=number) for number in range(len(ticks[name]))]
        assert [each.tick for each in ticks[name]] == moments
    assert await begun_jobs(ledger) == Counter(each.job for each in made)
    assert tickers.killed > 0
    assert tickers.died_in_between > 0
    late = sorted((each.at - each.tick).total_seconds() for each in made if each.tick)
    record(
        "35",
        "SIGKILL of one of five workers that make 200 ticks a second, at random, and deaths between a tick and its job",
        faults=f"{tickers.killed} kills, {tickers.died_in_between} deaths in between, {len(made):,} ticks, each once",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
        worst_recovery=f"{late[-1]:.1f} s until a tick was made up for",
    )
