"""Projectors that die, or whose disk refuses: what was committed stays, and nothing is skipped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.histories import SteppedClock, act, memory_history
from tests.support.limits import LIMIT_S
from tests.support.projections import SMALL, assert_true, finish, leftovers, no_space

from jobledger.projections import (
    ProjectionBusyError,
    ProjectionStorageError,
    Projector,
    ProjectorConfig,
    Store,
)

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


async def test_failed_transaction_leaves_rows_and_position_of_the_one_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, path = await memory_history(), tmp_path / "p"
    real, calls = Projector._write_position, 0

    def failing(self: Projector, *values: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise OSError(28, "No space left on device")
        return real(self, *values)

    monkeypatch.setattr(Projector, "_write_position", failing)
    head = (await log.head()).last_sequence
    config = ProjectorConfig(batch_events_max=1, cache_jobs_max=3)
    with Projector(log, path, config=config) as projector:
        for until in range(20, head + 20, 20):
            with contextlib.suppress(Exception):
                await projector.catch_up(until)
    assert calls >= 3
    monkeypatch.undo()
    await finish(log, path)
    await assert_true(log, path)


async def test_transaction_that_failed_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, path = await memory_history(), tmp_path / "p"
    events = [stored async for batch in log.read() for stored in batch]
    with Projector(log, path) as projector:
        await projector.prepare()
        projector.commit(events[:50])
        monkeypatch.setattr(Projector, "_write_position", no_space)
        with pytest.raises(ProjectionStorageError, match="No space left"):
            projector.commit(events[50:])
        monkeypatch.undo()
        assert projector.position is not None
        assert projector.position.stream_sequence == 50
        projector.commit(events[50:])
    await assert_true(log, path)


MOTHER = """
import gc, itertools, os, resource, sys, tempfile, time, anyio
from pathlib import Path
from jobledger.projections import ProjectionStorageError, Projector, ProjectorConfig, Store, rebuild
from tests.support.histories import memory_history

CONFIG = ProjectorConfig(batch_events_max=2)

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

commits = itertools.count(1)

def tell_and_stand_still(done, total):
    tell(done)
    if next(commits) == 10:  # who is to kill it is late: it must not come to its end
        time.sleep(3_600)

async def project(log, path, progress=tell_and_stand_still):
    with Projector(log, path, config=CONFIG) as projector:
        await projector.catch_up(progress=progress)

async def make_anew(log, path):
    await rebuild(log, path, config=CONFIG, progress=tell_and_stand_still)

async def project_on_a_full_disk(log, path):
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Projector(log, path, config=ProjectorConfig(batch_events_max=50)) as projector:
        await projector.catch_up(100)
        for room in range(40_000, 400_000, 23_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, whole[1]))
            before = projector.position.stream_sequence
            try:
                await projector.catch_up()
            except ProjectionStorageError as error:
                resource.setrlimit(resource.RLIMIT_FSIZE, whole)
                with Store.open(path) as store:
                    reached = store.position().stream_sequence
                assert before <= reached == projector.position.stream_sequence
                tell("refused", reached)
            resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    await project(log, path, None)
    tell("end")

async def begin(folder):
    log = await memory_history(seed=5, jobs=300, steps=1_800)
    with Projector(log, folder / "p") as projector:  # what is imported late is there before anything forks
        await projector.catch_up(20)
    return log

with tempfile.TemporaryDirectory() as folder:
    log = anyio.run(begin, Path(folder))
gc.freeze()  # no collection in a fork copies what is shared
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        tell(os.getpid())
        work, path = line.split()
        anyio.run(globals()[work], log, Path(path))
        os._exit(0)
    os.waitpid(child, 0)
    tell("gone")
"""


class Mother:
    """A process that has read the history once, and forks a projector of it when told to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", MOTHER],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, work: str, path: Path) -> int:
        """Let a new process do some work; return its id."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{work} {path}\n")
        self._process.stdin.flush()
        return int(self.line())

    def line(self) -> str:
        assert self._process.stdout is not None
        found = self._process.stdout.readline()
        assert found, "it ended"
        return found.strip()

    def kill(self, child: int, *, after_s: float) -> None:
        """Kill it a moment later, anywhere in a transaction, and wait until it is gone."""
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
        while self.line() != "gone":
            pass

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.kill()
        self._process.wait(10)


@pytest.fixture
def mother() -> Iterator[Mother]:
    process = Mother()
    yield process
    process.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kills", [20, pytest.param(50, marks=pytest.mark.fault)])
async def test_projector_killed_at_any_moment_goes_on_where_it_was(
    tmp_path: Path, mother: Mother, kills: int
) -> None:
    """Every fifth is killed while it makes the file anew: then the old one is as it was."""
    log = await memory_history(seed=5, jobs=300, steps=1_800)
    path, chance = tmp_path / "p", random.Random(11)
    before = 0
    for number in range(kills):
        anew = number % 5 == 4
        child = mother.begin("make_anew" if anew else "project", path)
        for _ in range(chance.randrange(1, 5)):
            assert mother.line().isdecimal()
        mother.kill(child, after_s=chance.random() * 0.003)
        with Store.open(path) as store:
            reached = store.position().stream_sequence
        assert reached == before if anew else reached > before
        before = reached
    assert before < (await log.head()).last_sequence, "the kills must come before the end"
    await finish(log, path)
    await assert_true(log, path)
    assert len(leftovers(tmp_path)) <= 1, "drafts of the dead are removed by the next rebuild"


async def test_full_disk_while_committing_skips_no_event(tmp_path: Path, mother: Mother) -> None:
    path = tmp_path / "p"
    mother.begin("project_on_a_full_disk", path)
    told: list[str] = []
    while (line := mother.line()) != "gone":
        told.append(line)
    assert told[-1] == "end", told
    refused = [int(each.split()[1]) for each in told if each.startswith("refused")]
    assert len(refused) >= 3, told
    assert refused[0] >= 100
    await assert_true(await memory_history(seed=5, jobs=300, steps=1_800), path)


@pytest.mark.parametrize("kind", ["IMMEDIATE", "EXCLUSIVE"])
async def test_locked_file_is_waited_for_in_bounds(tmp_path: Path, kind: str) -> None:
    """Readers go on, with a position that says how far the rows are; afterwards nothing is missing."""
    log, path = await memory_history(), tmp_path / "p"
    with Projector(log, path) as projector:
        await projector.catch_up(100)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
            holder.execute(f"BEGIN {kind}")
            with pytest.raises(ProjectionBusyError, match=r"locked by another process for 0\.05 s"):
                await finish(log, path, ProjectorConfig(busy_timeout_s=0.05))
            with Store.open(path) as store:
                assert store.position().stream_sequence == 100
                assert sum(store.counts_by_state().values()) == len(store.jobs(limit=1_000))
        await projector.catch_up()
    await assert_true(log, path)


async def test_file_removed_under_a_running_projector_is_made_anew(tmp_path: Path) -> None:
    log, path, clock = await memory_history(), tmp_path / "p", SteppedClock()
    with Projector(log, path, config=SMALL) as projector:
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            await projector.wait_for((await log.head()).last_sequence, timeout_s=LIMIT_S)
            for name in os.listdir(tmp_path):  # noqa: PTH208 - as short as that
                os.unlink(tmp_path / name)  # noqa: PTH108
            await act(log, 7_000, "claim", clock)
            await projector.wait_for((await log.head()).last_sequence, timeout_s=LIMIT_S)
            group.cancel_scope.cancel()
    await assert_true(log, path)
