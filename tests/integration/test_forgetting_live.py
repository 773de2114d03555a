"""Exports that processes on a real server forget: killed at each step, two at once, and by a keeper that goes on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from tests.support.working import Connect

from jobledger.admin.keeper import Keeper, clear_once, keeper_of
from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.admin.verbs.retention import SetRetention, ShowRetention
from jobledger.audit.archive import Archiver, archive_deps
from jobledger.audit.archive.chain import open_archive, read_past
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.verify import verify
from jobledger.audit.verify.checker import Checker
from jobledger.gateway.process.children import KeeperChild
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR

pytestmark = pytest.mark.anyio

#: A look of a keeper that kills itself at one step: before or after the record, or after some files went.
_MORTAL: Final = """
import asyncio, os, signal, sys
from jobledger.admin import keeper
from jobledger.audit.archive import forgetter
from jobledger.ledger import connect

url, environment, fatal = sys.argv[1:]
record, strip = forgetter.Forgetter._record, forgetter.strip_export

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def recorded(self, fact):
    if fatal == "record":
        die()
    await record(self, fact)
    if fatal == "recorded":
        die()

def stripped(export):
    next(each for each in export.iterdir() if each.name != "manifest.json").unlink()
    if fatal == "strip":
        die()
    strip(export)
    die()

async def main():
    async with connect(url, environment=environment) as ledger:
        print(await keeper.clear_once(ledger))

forgetter.Forgetter._record, forgetter.strip_export = recorded, stripped
asyncio.run(main())
"""


@task(queue="work")
async def work(text: str) -> int:
    return len(text)


class Rig:
    """A ledger whose events are moved into an archive after each few jobs, and forgotten as soon as may be."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger, self.archive, self.projection = ledger, folder / "archive", folder / "jobs.db"

    async def export(self, *, cancels: bool = True) -> None:
        """Make one more export, of two jobs that are cancelled; of one, if not `cancels`, that waits."""
        for _ in range(2 if cancels else 1):
            job = await self.ledger.enqueue(work, text="x")
            if cancels:
                await self.ledger.cancel(job.ref)
        deps = archive_deps(self.ledger, by="ann", on_progress=lambda _step, _done, _total: None)
        await Archiver(self.ledger.log, self.archive, deps).run(self.ledger.clock.now())

    async def facts(self) -> list[int]:
        """Return the last sequence of each export that is recorded as forgotten."""
        log = await open_archive(self.ledger.log, self.archive)
        subject = REACTOR.of_type(log.names, "forgotten", ARCHIVE)
        found: list[Any] = [each async for batch in log.read_messages(subject=subject) for each in batch]
        return [REACTOR.decode(each).last_sequence for each in found]  # type: ignore[union-attr]

    def kept(self) -> list[bool]:
        """Whether each export has its files."""
        places = sorted(each for each in self.archive.iterdir() if each.is_dir())
        return [len(list(each.iterdir())) > 1 for each in places]

    async def check(self) -> None:
        past = await read_past(self.ledger.log, [self.archive])
        report = await verify(past.log, witnesses=[ArchiveWitness(past, self.ledger.log)])
        assert report.sound, report.text()


@pytest.fixture
async def rig(connected: Connect, tmp_path: Path) -> AsyncIterator[Rig]:
    async with connected() as ledger:
        rig = Rig(ledger, tmp_path)
        await rig.export()
        await ledger.do(SetRetention(keep_s=0.0, forget_after_s=0.0, to=str(rig.archive)))
        yield rig


@pytest.mark.parametrize("fatal", ["record", "recorded", "strip", "stripped"])
async def test_a_process_that_is_killed_at_a_step_leaves_what_the_next_one_ends(rig: Rig, fatal: str) -> None:
    await rig.export()
    words = (rig.ledger.config.url, rig.ledger.names.environment, fatal)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _MORTAL,
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL, output.decode()
    await rig.check()
    done = await KeeperChild(rig.ledger, rig.projection).clear()
    assert (len(done.forgotten), done.trouble) == (fatal == "record", "")
    assert (len(await rig.facts()), rig.kept()) == (1, [False, True])
    await rig.check()


async def test_two_processes_at_once_forget_each_export_once(rig: Rig) -> None:
    for _ in range(3):
        await rig.export()
    child = KeeperChild(rig.ledger, rig.projection)
    both = await asyncio.gather(child.clear(), child.clear())
    assert any(each.forgotten for each in both)
    await child.clear()
    facts = await rig.facts()
    assert (len(facts), facts, rig.kept()) == (3, sorted(set(facts)), [False, False, False, True])
    await rig.check()


class _Looks:
    """A witness of a check: a keeper looks at the archive when all events are read, and nothing else."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.forgotten = 0

    def feed(self, batch: Sequence[Message]) -> None: ...

    async def finish(self, checker: Checker) -> None:
        self.forgotten = len((await clear_once(self._ledger)).forgotten)


async def test_large_values_that_are_forgotten_while_a_check_is_at_work_are_not_missed(rig: Rig) -> None:
    large = await rig.ledger.enqueue(work, text="x" * 200_000)
    await rig.ledger.cancel(large.ref)
    await rig.export()
    await rig.export()
    past = await read_past(rig.ledger.log, [rig.archive])
    assert len(list(rig.archive.glob("*/payloads/*"))) == 1
    looks = _Looks(rig.ledger)
    report = await verify(past.log, witnesses=[looks, ArchiveWitness(past, rig.ledger.log)])
    assert (looks.forgotten, list(rig.archive.glob("*/payloads/*"))) == (2, [])
    assert report.sound, report.text()


async def test_a_keeper_forgets_and_says_what_it_keeps_and_why(rig: Rig) -> None:
    await rig.export(cancels=False)
    await rig.export()

    async def work_nothing() -> MoveOutcome:
        return MoveOutcome()

    keeper = Keeper(rig.ledger, work_nothing, clear=lambda: clear_once(rig.ledger))
    running = asyncio.create_task(keeper.run())
    try:
        with anyio.fail_after(30):
            while (info := await keeper_of(rig.ledger)) is None or not info.trouble:
                await asyncio.sleep(0.05)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert "is not forgotten, though its events are old enough: job " in info.trouble
    assert rig.kept() == [False, True, True]
    shown = await rig.ledger.do(ShowRetention())
    assert (shown.forgotten_through, shown.forgotten_at is None) == ((await rig.facts())[-1], False)
    await rig.check()


async def test_a_place_that_is_not_the_archive_keeps_its_exports(rig: Rig, tmp_path: Path) -> None:
    await rig.export()
    (tmp_path / "other").mkdir()
    await rig.ledger.do(SetRetention(to=str(tmp_path / "other")))
    done = await clear_once(rig.ledger)
    assert done.trouble.startswith("no export is forgotten: ")
    assert "is not the archive of this ledger" in done.trouble
    await rig.ledger.do(SetRetention(to=str(rig.archive), forget_after_s=None))
    assert (await clear_once(rig.ledger)).forgotten == ()
    assert (await rig.facts(), rig.kept()) == ([], [True, True])
