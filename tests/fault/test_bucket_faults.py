"""Row 62f: the bucket of an archive refuses, is silent and goes away while a keeper moves events into it.

At each moment, what the ledger has lost lies whole in the bucket: the manifest of an export, and each file that it names.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec
import pytest
from tests.fault.conftest import ConnectTo
from tests.fault.test_keeper_dies import SMALL, running, said, work
from tests.integration.test_archive_remote import s3
from tests.support.figures import Recorder
from tests.support.s3 import S3
from tests.support.working import ended, working

from jobledger.admin.verbs.retention import SetRetention, ShowRetention
from jobledger.audit.archive.chain import read_past
from jobledger.audit.archive.mirror import local_folder
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.export.manifest import MANIFEST, Manifest
from jobledger.audit.verify import verify
from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import LedgerThrottledError

__all__ = ["s3"]
pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

#: A bucket that is silent is told of after three tries of 5 s; the keeper looks at it twice.
AWAY_S: Final = 90.0
ROUNDS: Final = 2


class Rig:
    """A small ledger whose archive is in a bucket, and how many jobs it ever had."""

    def __init__(self, ledger: Ledger, s3: S3, folder: Path) -> None:
        self.ledger = ledger
        self.s3 = s3
        self.uri = s3.uri("ledger")
        self.projection = folder / "jobs.db"
        self.jobs = 0
        self.looks = 0

    def command(self, *words: str) -> list[str]:
        place = ("--url", self.ledger.config.url, "--environment", self.ledger.names.environment)
        return [sys.executable, "-P", "-m", "jobledger.cli", *words, *place]

    @contextlib.asynccontextmanager
    async def load(self) -> AsyncGenerator[None]:
        """Enqueue and run jobs in the block, as many as there is room for, and look after the bucket."""
        enough = asyncio.Event()

        async def enqueue() -> None:
            while not enough.is_set():
                with contextlib.suppress(LedgerThrottledError):
                    await ended(await self.ledger.enqueue(work, text="x" * 300))
                    self.jobs += 1
                await asyncio.sleep(0.01)

        async def look() -> None:
            while not enough.is_set():
                await self.look()
                await asyncio.sleep(0.05)

        async with working(self.ledger, work), asyncio.TaskGroup() as group:
            group.create_task(enqueue())
            group.create_task(look())
            try:
                yield
            finally:
                enough.set()

    async def look(self) -> None:
        """What the ledger lost lies in the bucket, each file with the bytes that its manifest names."""
        first = (await self.ledger.log.head()).first_sequence
        there = 1
        for name, data in sorted(self.s3.objects.items()):
            if name.endswith(f"/{MANIFEST}"):
                manifest = msgspec.json.decode(data, type=Manifest)
                for file in manifest.files:
                    kept = self.s3.objects[f"{name.removesuffix(MANIFEST)}{file.name}"]
                    assert hashlib.sha256(kept).hexdigest() == file.sha256
                if manifest.first_sequence <= there:
                    there = max(there, manifest.last_sequence + 1)
        assert first <= there, f"events {there} to {first - 1} were purged and are not in the bucket"
        self.looks += 1

    async def until_moved(self) -> None:
        beyond = (await self.ledger.log.head()).first_sequence
        async with asyncio.timeout(AWAY_S):
            while (await self.ledger.log.head()).first_sequence <= beyond:
                await asyncio.sleep(0.05)

    async def until_told(self, *, is_away: bool) -> None:
        """Wait until the keeper says that it cannot use the bucket, or nothing more of that."""
        async with asyncio.timeout(AWAY_S):
            while ("cannot be used" in (await self.ledger.do(ShowRetention())).trouble) is not is_away:
                await asyncio.sleep(0.05)


@pytest.fixture
async def rig(connected: ConnectTo, s3: S3, tmp_path: Path) -> AsyncGenerator[Rig]:
    async with connected(ledger_bytes_max=SMALL, room_timeout_s=0) as ledger:
        yield Rig(ledger, s3, tmp_path)


async def test_a_bucket_that_refuses_is_silent_or_gone_takes_nothing_from_the_ledger(
    rig: Rig, chance: random.Random, record: Recorder
) -> None:
    await rig.ledger.do(SetRetention(keep_s=0.0, every_s=1.0, start=0.04, aim=0.02, to=rig.uri))
    slowest_s = 0.0
    faults: list[Callable[[], AbstractContextManager[None]]] = [
        rig.s3.away,
        lambda: refusing(rig.s3, "GET"),
        lambda: refusing(rig.s3, "PUT"),
        lambda: refusing(rig.s3, ""),
    ] * ROUNDS
    faults.append(rig.s3.silent)  # takes half a minute
    chance.shuffle(faults)
    command = rig.command("retention", "run", "--projection", str(rig.projection))
    async with rig.load(), running(*command):
        await rig.until_moved()
        for fault in faults:
            await asyncio.sleep(chance.uniform(0.0, 0.5))  # a moment of a run
            with fault():
                await rig.until_told(is_away=True)
            since = time.monotonic()
            await rig.until_moved()
            slowest_s = max(slowest_s, time.monotonic() - since)
            await rig.until_told(is_away=False)
    await rig.look()
    code, output = await said(*rig.command("audit", "verify", "--archive", rig.uri))
    assert code == 0, output
    past = await read_past(rig.ledger.log, (await anyio.to_thread.run_sync(local_folder, rig.uri),))
    report = await verify(past.log, witnesses=[ArchiveWitness(past, rig.ledger.log, is_archive=True)])
    assert report.sound, report.violations
    assert dict(report.states) == {"completed": rig.jobs}
    record(
        "62f",
        "the bucket of the archive refuses, is silent, and goes away, under load",
        faults=f"{len(faults)}, 0 events purged that were not in the bucket, in {rig.looks:,} looks",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
        worst_recovery=f"{slowest_s:.1f} s until events moved again",
    )


@contextlib.contextmanager
def refusing(service: S3, method: str) -> Generator[None]:
    """Refuse the requests of one method in the block, "" for all."""
    service.refuses = lambda asked, _key: not method or asked == method
    try:
        yield
    finally:
        service.refuses = lambda _asked, _key: False
