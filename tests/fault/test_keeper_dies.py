"""Rows 62a to 62e: keepers are killed, meet each other, and find their place or the server's disk full or away.

Whatever happens, nothing is purged that cannot be read back: the archive and the ledger together are sound, and hold every
job that ever was.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.conftest import ServerFactory
from tests.fault.conftest import ConnectTo
from tests.support.figures import Recorder
from tests.support.limits import LIMIT_S
from tests.support.small_disk import Mount, Tmpfs
from tests.support.working import ended, working

from jobledger.admin.keeper import move, retention_of
from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.admin.verbs.retention import SetRetention
from jobledger.audit.archive.chain import read_past
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.verify import Report, verify
from jobledger.gateway.process.children import KeeperChild
from jobledger.ledger import JobHandle, Ledger, connect, task
from jobledger.ledger.model.errors import LedgerThrottledError, UnreachableError

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

#: What a run tells of, in its order; see `Step`. The load has no large values to copy.
STEPS: Final = ("export", "check", "count", "carry", "record", "purge", "end")
KILLS: Final = 12
SMALL: Final = 1 << 20
#: `retention run --once` that kills itself as soon as it tells of one step.
_MORTAL: Final = """
import asyncio, os, signal, sys
from pathlib import Path
from jobledger.admin import keeper
from jobledger.ledger import connect

url, environment, projection, fatal = sys.argv[1:]
deps_of = keeper.archive_deps

def mortal(ledger, *, on_progress, **given):
    def die(step, done, total):
        if step == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
    return deps_of(ledger, on_progress=die, **given)

async def main():
    async with connect(url, environment=environment) as ledger:
        print(await keeper.move_once(ledger, Path(projection)))

keeper.archive_deps = mortal
asyncio.run(main())
"""


@task(queue="work")
async def work(text: str) -> int:
    return len(text)


class Rig:
    """A small ledger, its archive and its projection, and how many jobs it ever had."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.archive = folder / "archive"
        self.archive.mkdir()
        self.projection = folder / "jobs.db"
        self.jobs = 0
        self.throttled = 0  #: how often a job had to wait for room

    async def begin(self, archive: Path | None = None) -> None:
        self.archive = archive or self.archive
        await self.ledger.do(
            SetRetention(keep_s=0.0, every_s=1.0, start=0.04, aim=0.02, to=str(self.archive))
        )

    async def run_jobs(self, count: int) -> None:
        async with working(self.ledger, work):
            for job in [await self._enqueue() for _ in range(count)]:
                self.jobs += 1
                await ended(job)

    async def _enqueue(self) -> JobHandle[int]:
        """Enqueue as soon as there is room: a keeper that is killed now and then may be late."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    return await self.ledger.enqueue(work, text="x" * 300)
                except LedgerThrottledError:
                    self.throttled += 1
                    await asyncio.sleep(0.1)

    async def enqueue_large(self, count: int) -> None:
        """Enqueue without a worker. Raises: UnreachableError."""
        for _ in range(count):
            await self.ledger.enqueue(work, text="x" * 16_000)
            self.jobs += 1

    async def first(self) -> int:
        return (await self.ledger.log.head()).first_sequence

    async def move(self) -> MoveOutcome:
        return await move(self.ledger, self.projection, await retention_of(self.ledger))

    async def until_moved(self, beyond: int = 1) -> None:
        """Wait until events before a stream sequence are gone."""
        async with asyncio.timeout(LIMIT_S):
            while await self.first() <= beyond:
                await asyncio.sleep(0.05)

    async def hold(self) -> Report:
        """Every job that ever was is completed, by the archive and the ledger together, and each agrees with the other."""
        past = await read_past(self.ledger.log, (self.archive,))
        report = await verify(past.log, witnesses=[ArchiveWitness(past, self.ledger.log, is_archive=True)])
        assert report.sound, report.violations
        assert dict(report.states) == {"completed": self.jobs}
        return report

    async def recorded(self) -> int:
        """Return how many events say that a run moved events."""
        past = await read_past(self.ledger.log, (self.archive,))
        count = 0
        async for batch in past.log.read_messages():
            count += sum(each.subject.endswith(".archived") for each in batch)
        return count

    def command(self, *words: str) -> list[str]:
        """Return a command of ours on this ledger."""
        ledger = self.ledger
        place = ("--url", ledger.config.url, "--environment", ledger.names.environment)
        return [sys.executable, "-P", "-m", "jobledger.cli", *words, *place]


@pytest.fixture
async def rig(connected: ConnectTo, tmp_path: Path) -> AsyncIterator[Rig]:
    async with connected(ledger_bytes_max=SMALL, room_timeout_s=0) as ledger:
        yield Rig(ledger, tmp_path)


@contextlib.asynccontextmanager
async def running(
    *words: str, stdout: int = subprocess.DEVNULL
) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*words, stdout=stdout, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def said(*words: str) -> tuple[int, str]:
    """Run a program to its end, and return its code and what it said."""
    async with running(*words, stdout=subprocess.PIPE) as process, asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_keeper_that_is_killed_at_each_step_loses_nothing(rig: Rig, record: Recorder) -> None:
    await rig.begin()
    for fatal in STEPS:
        await rig.run_jobs(60)
        words = (rig.ledger.config.url, rig.ledger.names.environment, str(rig.projection), fatal)
        code, output = await said(sys.executable, "-c", _MORTAL, *words)
        assert code == -signal.SIGKILL, (fatal, output)
        await rig.hold()
    moved = await rig.move()
    assert not moved.trouble
    report = await rig.hold()
    record(
        "62a",
        "SIGKILL of a keeper at each step of a run",
        faults=f"{len(STEPS)}, 0 events purged that were not read back",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
    )


async def test_two_keepers_are_killed_at_random_while_jobs_run(
    rig: Rig, chance: random.Random, record: Recorder
) -> None:
    await rig.begin()
    command = rig.command("retention", "run", "--projection", str(rig.projection))
    slowest_s, enough = 0.0, asyncio.Event()

    async def load() -> None:
        while not enough.is_set():
            await rig.run_jobs(10)

    async with asyncio.TaskGroup() as group, contextlib.AsyncExitStack() as stack:
        keepers = [await stack.enter_async_context(running(*command)) for _ in range(2)]
        group.create_task(load())
        await rig.until_moved()
        for number in range(KILLS):
            await asyncio.sleep(chance.uniform(0.0, 0.5))  # a moment of its run, not a wait
            keepers[number % 2].kill()
            since, beyond = time.monotonic(), await rig.first()
            keepers[number % 2] = await stack.enter_async_context(running(*command))
            await rig.until_moved(beyond)
            slowest_s = max(slowest_s, time.monotonic() - since)
        enough.set()
    report = await rig.hold()
    record(
        "62b",
        "SIGKILL of one of two keepers in turn at random moments, under load",
        faults=f"{KILLS}, {rig.throttled} waits for room",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
        worst_recovery=f"{slowest_s:.1f} s until events moved again (the lease is 3 s)",
    )


async def test_of_two_keepers_at_once_one_run_wins(rig: Rig, record: Recorder) -> None:
    await rig.begin()
    rounds = 4
    for number in range(rounds):
        await rig.run_jobs(60)
        before = await rig.first()
        one, two = await asyncio.gather(*(KeeperChild(rig.ledger, rig.projection).work() for _ in range(2)))
        assert one.events + two.events >= await rig.first() - before > 0
        await rig.hold()
        # The other one may have helped to finish it, or left an export that nothing names: one is recorded.
        assert await rig.recorded() == number + 1
    report = await rig.hold()
    record(
        "62c",
        "two keepers without a lease begin the same run at once",
        faults=f"{rounds}, one run won each time",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
    )


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    place = tmp_path / "place"
    place.mkdir()
    try:
        made = Mount(place, mib=1)
    except OSError as error:
        pytest.skip(str(error))
    yield made
    made.close()


async def test_a_place_that_is_full_closed_or_unmounted_takes_nothing_from_the_ledger(
    rig: Rig, mount: Mount, record: Recorder
) -> None:
    await rig.begin(mount.folder)
    once = rig.command("retention", "run", "--once", "--projection", str(rig.projection))
    proof = rig.command("audit", "verify", "--archive", str(mount.folder))

    async def moves() -> None:
        before = await rig.first()
        code, output = await said(*mount.enter, *once)
        assert (code, await rig.first() > before) == (0, True), output
        code, output = await said(*mount.enter, *proof)
        assert code == 0, output

    async def moves_nothing(why: str) -> None:
        before = await rig.first()
        code, output = await said(*mount.enter, *once)
        assert code == 4, output
        assert why in " ".join(output.split())
        assert await rig.first() == before

    faults = (
        (mount.fill, "No space left on device", mount.free),
        (mount.close_to_writes, "Read-only file system", mount.open_to_writes),
        (mount.unmount, "is not the archive of this ledger", mount.mount),
    )
    await rig.run_jobs(60)
    for fault, why, mend in faults:
        fault()
        await moves_nothing(why)
        mend()
        await moves()
        await rig.run_jobs(60)
    report = await verify(rig.ledger.log)
    assert report.sound, report.violations
    record(
        "62d",
        "the archive's disk is full, closed to writes, unmounted (a small tmpfs)",
        faults=f"{len(faults)}, 0 events purged before the place was back",
        jobs=rig.jobs,
        events=(await rig.ledger.log.head()).last_sequence,
        now=time.monotonic(),
    )


@pytest.fixture
def disk(tmp_path: Path, nats_server_binary: str) -> Iterator[Tmpfs]:
    try:
        made = Tmpfs(tmp_path, tmp_path / "store" / "jetstream", nats_server_binary, mib=24, room_mib=0)
    except OSError as error:
        pytest.skip(str(error))
    yield made
    made.close()


async def test_a_run_on_a_server_whose_disk_is_full_purges_nothing(
    disk: Tmpfs, server_factory: ServerFactory, environment: str, tmp_path: Path, record: Recorder
) -> None:
    server = server_factory(tmp_path / "store", durability="power", binary=str(disk.binary))
    await server.start()
    async with connect(
        server.url, environment=environment, ledger_bytes_max=8 << 20, append_timeout_s=3.0
    ) as ledger:
        rig = Rig(ledger, tmp_path)
        await rig.begin()
        await rig.run_jobs(60)
        await ledger.do(SetRetention(start=0.005, aim=0.0))
        disk.fill()
        with pytest.raises(UnreachableError):
            await rig.enqueue_large(1_000)
        moved = await rig.move()
        assert (moved.events, await rig.first()) == (0, 1)
        assert moved.trouble
        # As docs/operations.md says: make room, then restart the server.
        disk.free()
        await server.stop()
        await server.start()
        await rig.run_jobs(1)
        moved = await rig.move()
        assert (moved.events > 0, moved.trouble) == (True, "")
        past = await read_past(ledger.log, (rig.archive,))
        report = await verify(past.log, witnesses=[ArchiveWitness(past, ledger.log, is_archive=True)])
        assert report.sound, report.violations
        # The one that got no answer may be stored all the same.
        assert rig.jobs <= report.jobs <= rig.jobs + 1
    record(
        "62e",
        "the server's disk is full when a run begins (a small tmpfs), then free",
        faults="1, 0 events purged until there was room",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
    )
