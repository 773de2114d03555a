"""Row 61: `jobledger backup --every` is killed while it writes, and goes on; the newest whole one is restored."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest
from tests.conftest import ServerFactory
from tests.fault.test_keeper_dies import running, said
from tests.support.figures import Recorder
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.admin.backup import BACKUP_FILE, check_files, find_backup, read_backup
from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, connect, task

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

KILLS: Final = 12
ROOM: Final = 256 << 20


@task(queue="work")
async def work(text: str) -> int:
    return len(text)


class Load:
    """Jobs that come in and run; when each was acknowledged, by the ledger's clock."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.acknowledged: dict[str, datetime] = {}

    async def run(self) -> None:
        while True:
            # Large values make a back-up long enough to be killed in the middle.
            text = "x" * (200_000 if len(self.acknowledged) % 10 == 0 else 300)
            job = await self.ledger.enqueue(work, text=f"{len(self.acknowledged)}{text}")
            self.acknowledged[job.id] = self.ledger.clock.now()
            await asyncio.sleep(0.01)


def whole(folder: Path) -> list[Path]:
    return sorted(each.parent for each in folder.glob(f"*/{BACKUP_FILE}"))


def unfinished(folder: Path) -> list[Path]:
    return [each for each in folder.glob("*Z") if not (each / BACKUP_FILE).exists()]


async def killed_while_writing(command: list[str], folder: Path, pause_s: float) -> None:
    """Let the command write at least one whole back-up, and kill it so long after it began another one."""
    before = whole(folder)
    async with running(*command), asyncio.timeout(LIMIT_S):
        while not (set(whole(folder)) - set(before) and unfinished(folder)):
            await asyncio.sleep(0.002)
        await asyncio.sleep(pause_s)  # a moment of its work


async def test_a_backup_that_is_killed_costs_only_itself_and_the_newest_whole_one_is_restored(
    server_factory: ServerFactory, tmp_path: Path, chance: random.Random, record: Recorder
) -> None:
    old, new, folder = server_factory(durability="power"), server_factory(), tmp_path / "backups"
    await old.start()
    await new.start()
    command = [sys.executable, "-P", "-m", "jobledger.cli", "backup", str(folder), "--every", "1s"]
    command += ["--keep", "3", "--url", old.url]
    half = 0
    async with connect(old.url, ledger_bytes_max=ROOM) as ledger, working(ledger, work, concurrency=10):
        load = Load(ledger)
        loading = asyncio.create_task(load.run())
        for _ in range(KILLS):
            await killed_while_writing(command, folder, chance.uniform(0.0, 0.1))
            half += len(unfinished(folder))
            assert len(unfinished(folder)) <= 1, "each one removes what the one before left"
            for each in whole(folder):
                check_files(each, read_backup(each))
            assert 0 < len(whole(folder)) <= 4, "the three, and a new one whose oldest is not removed yet"
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
    await old.stop()
    assert half > KILLS // 3, "most were killed while they wrote"
    backup = read_backup(find_backup(folder))
    began = time.monotonic()
    code, output = await said(
        sys.executable, "-P", "-m", "jobledger.cli", "restore", str(folder), "--url", new.url
    )
    assert code == 0, output
    async with connect(new.url) as ledger:
        missing = {job for job, at in load.acknowledged.items() if at < backup.at}
        assert len(missing) > 20
        async for batch in ledger.log.read():
            missing -= {each.event.job for each in batch}
        assert not missing
        async with working(ledger, work, concurrency=10), asyncio.timeout(LIMIT_S):
            while (report := await verify(ledger.log)).states.keys() != {"completed"}:
                await asyncio.sleep(0.1)
        assert report.sound, report.violations
        assert report.types["completed"] == report.jobs, "none ended twice"
    record(
        "61",
        "SIGKILL of `jobledger backup --every` while it writes, under load, then `restore` on an empty server",
        faults=f"{KILLS} kills, {half} left a part of a back-up; every whole one agrees with its checksums, and has "
        "all that was acknowledged before it",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
        worst_recovery=f"{time.monotonic() - began:.1f} s until every job of the back-up had ended",
    )
