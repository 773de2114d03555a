"""Projectors that are killed while a real ledger grows, and a file that is removed and damaged under them."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import anyio
import pytest
from tests.support.figures import Recorder
from tests.support.histories import STEPS, WEIGHTS, SteppedClock, act

from jobledger.ledger import Ledger
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import DamagedProjectionError, Projector, Store, rebuild, verify

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

KILLS = 100
JOBS = 400

#: Forks a projector of the ledger for every line that it reads: one that is killed costs no start of Python.
MOTHER = """
import os, sys, anyio
from jobledger.ledger import connect
from jobledger.projections import Projector, ProjectorConfig, Snapshots, rebuild

url, environment, path = sys.argv[1:]
config = ProjectorConfig(batch_events_max=50, linger_s=0.005)

async def follow():
    async with connect(url, environment=environment) as ledger:
        with Projector(ledger.log, path, config=config, snapshots=Snapshots(path)) as projector:
            await projector.run()

async def make_anew():
    async with connect(url, environment=environment) as ledger:
        while True:
            await rebuild(ledger.log, path)

os.write(1, b"ready\\n")
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        anyio.run(globals()[line.strip()])
    os.write(1, b"%d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"gone\\n")
"""


class Mother:
    """Begins projectors and kills them."""

    def __init__(self, *words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", MOTHER, *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    async def run_and_kill(self, work: str, after_s: float) -> None:
        """Let a projector work for `after_s` seconds, then kill it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{work}\n")
        self._process.stdin.flush()
        child = int(await anyio.to_thread.run_sync(self._line))
        await anyio.sleep(after_s)
        os.kill(child, 9)
        assert await anyio.to_thread.run_sync(self._line) == "gone", "it was at work until then"

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "projection.db"


@pytest.fixture
def mother(server: EmbeddedServer, environment: str, path: Path) -> Iterator[Mother]:
    made = Mother(server.url, environment, str(path))
    yield made
    made.close()


@contextlib.asynccontextmanager
async def traffic(ledger: Ledger, chance: random.Random) -> AsyncGenerator[None, None]:
    """Append what happens to jobs, as fast as one writer can."""
    clock = SteppedClock()

    async def append() -> None:
        while True:
            step = chance.choices(STEPS, list(WEIGHTS.values()))[0]
            await act(ledger.log, chance.randrange(JOBS), step, clock)

    async with anyio.create_task_group() as group:
        group.start_soon(append)
        yield
        group.cancel_scope.cancel()


@pytest.mark.parametrize("durability", ["process"])
async def test_projector_killed_at_random_moments_leaves_a_correct_file(
    ledger: Ledger, mother: Mother, path: Path, chance: random.Random, record: Recorder
) -> None:
    """Row 23: following and rebuilding, with snapshots; now and then the file is gone or a page of it damaged."""
    damaged = removed = 0
    async with traffic(ledger, chance):
        for number in range(KILLS):
            await mother.run_and_kill(
                "make_anew" if number % 7 == 6 else "follow", after_s=0.05 + chance.random() * 0.3
            )
            if number % 25 == 24:
                removed += 1
                _remove(path)
            elif number % 25 == 12:
                damaged += 1
                await _damage(ledger, path, chance)
    began = time.monotonic()
    with Projector(ledger.log, path) as projector:
        await projector.catch_up()
    caught_up_s = time.monotonic() - began
    position, found = await verify(ledger.log, path)
    assert found is None, found.sentence
    with Store.open(path) as store:
        counts = store.counts_by_state()
    assert 0 < sum(counts.values()) <= JOBS
    record(
        "23",
        "projector killed at any moment, its file removed or a page of it written over",
        faults=f"{KILLS} kills, {removed} removals, {damaged} damaged pages; equal to a rebuilt file",
        jobs=sum(counts.values()),
        events=position.stream_sequence,
        now=time.monotonic(),
        worst_recovery=f"{caught_up_s:.1f} s until the rows were at the head",
    )


async def _damage(ledger: Ledger, path: Path, chance: random.Random) -> None:
    """Write over a page: who reads everything sees it, and a rebuild is the way out."""
    with Projector(ledger.log, path) as projector:
        await projector.catch_up()
    _write_over(path, chance)
    with contextlib.suppress(DamagedProjectionError):
        _, found = await verify(ledger.log, path)
        assert found is None, "a page without use may be anything"
    await rebuild(ledger.log, path)


def _write_over(path: Path, chance: random.Random) -> None:
    pages = path.stat().st_size // 4_096
    with path.open("r+b") as file:
        file.seek(chance.randrange(pages) * 4_096)
        file.write(b"\xa5" * 4_096)


def _remove(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        if each.is_file():
            each.unlink()
