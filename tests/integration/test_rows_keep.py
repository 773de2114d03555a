"""Rows of jobs that were moved into the archive go from a projection when the setting says so, and no others."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.working import Connect, bury, ended, working

from jobledger.admin.verbs.retention import SetRetention
from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.archive.plan import unread
from jobledger.ledger import Ledger, Run, task, workflow
from jobledger.projections import Projector, counting, verify

pytestmark = pytest.mark.anyio
ROWS = ("jobs", "attempts", "steps", "signals", "dead_letters")


@task(queue="work", max_attempts=1)
async def work(text: str) -> int:
    return len(text)


async def one() -> int:
    return 1


@workflow(queue="work")
async def flow(run: Run) -> int:
    return await run.step(one)


class Rig:
    """A ledger, its archive and a projection that follows it."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger, self.archive, self.path = ledger, folder / "archive", folder / "jobs.db"

    async def run_jobs(self, *names: str) -> None:
        async with working(self.ledger, work, flow):
            jobs = [await self.ledger.enqueue(work.options(id=name), text="x") for name in names]
            run = await self.ledger.enqueue(flow.options(id=f"{names[0]}-run"))
            for job in jobs:
                await ended(job)
            await ended(run)
        await self.settled()

    async def settled(self) -> None:
        """Return when an archive run would not be refused for children that nobody has counted."""
        last = (await self.ledger.log.head()).last_sequence
        async with working(self.ledger, work):
            with anyio.fail_after(30):
                while await unread(self.ledger.log, self.ledger.inbox, last):
                    await anyio.sleep(0.02)

    async def follow(self) -> None:
        with Projector(self.ledger.log, self.path) as projector:
            await projector.catch_up()

    async def move(self, cut_off_at: str = "") -> None:
        def on_progress(step: str, _done: int, _total: int) -> None:
            if step == cut_off_at:
                raise ConnectionAbortedError

        log = self.ledger.log
        count = counting(log, self.path, past=lambda: open_archive(log, self.archive))
        deps = archive_deps(self.ledger, by="ann", on_progress=on_progress, count=count)
        await Archiver(log, self.archive, deps).run(self.ledger.clock.now())

    async def keep_rows(self, seconds: float | None) -> None:
        await self.ledger.do(SetRetention(rows_keep_s=seconds))

    def ids(self) -> set[str]:
        return {row[0] for row in self.select("SELECT id FROM jobs")}

    def select(self, statement: str) -> list[Any]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    async def check(self) -> None:
        """A file that is made of the archive and the ledger has the same rows."""
        _, difference = await verify(await open_archive(self.ledger.log, self.archive), self.path)
        assert difference is None, difference


@pytest.fixture
async def rig(connected: Connect, tmp_path: Path) -> AsyncIterator[Rig]:
    async with connected() as ledger:
        yield Rig(ledger, tmp_path)


@pytest.mark.parametrize("kept_s", [None, 3_600.0])
async def test_rows_stay_where_nobody_says_else_or_not_yet(rig: Rig, kept_s: float | None) -> None:
    await rig.keep_rows(0.0)
    await rig.keep_rows(kept_s)
    await rig.run_jobs("a", "b")
    await rig.follow()
    await rig.move()
    await rig.follow()
    assert rig.ids() == {"a", "b", "a-run"}
    await rig.check()


async def test_rows_of_moved_jobs_go_and_what_was_counted_stays(rig: Rig) -> None:
    await rig.run_jobs("a", "b")
    dead = await rig.ledger.enqueue(work.options(id="dead"), text="x")
    await bury(rig.ledger, dead)
    await rig.ledger.enqueue(work.options(id="waits", queue="later"), text="x")
    await rig.follow()
    counted = rig.select("SELECT * FROM totals ORDER BY 1, 2, 3")
    assert rig.select("SELECT count(*) FROM steps") == [(1,)]
    await rig.keep_rows(0.0)
    await rig.settled()
    await rig.move()
    await rig.follow()
    assert rig.ids() == {"dead", "waits"}
    assert [rig.select(f"SELECT count(*) FROM {name}")[0][0] for name in ROWS] == [2, 1, 0, 0, 1]
    assert rig.select("SELECT * FROM totals ORDER BY 1, 2, 3") == counted
    assert rig.select("SELECT rows_keep_s FROM retention") == [(0.0,)]
    await rig.check()
    await rig.run_jobs("a")  # its id is free again
    await rig.move()
    await rig.follow()
    assert rig.ids() == {"dead", "waits"}
    await rig.check()


async def test_rows_that_stayed_go_with_the_next_run_once_the_setting_says_so(rig: Rig) -> None:
    await rig.run_jobs("a")
    await rig.move()
    await rig.keep_rows(0.0)
    await rig.follow()
    assert rig.ids() == {"a", "a-run"}
    await rig.run_jobs("b")
    await rig.move()
    await rig.follow()
    assert rig.ids() == set()
    await rig.check()


async def test_a_note_between_the_record_and_the_purge_brings_a_whole_row_back(rig: Rig) -> None:
    """The run carries such a job on, so its row is there until the next run moves it."""
    await rig.run_jobs("a", "b")
    await rig.keep_rows(0.0)
    await rig.settled()
    with pytest.raises(ConnectionAbortedError):
        await rig.move(cut_off_at="purge")
    await rig.ledger.note("a", "seen", queue="work")
    await rig.move()
    await rig.follow()
    assert rig.ids() == {"a"}
    assert rig.select("SELECT task, status FROM jobs") == [("work", "completed")]
    await rig.check()
    await rig.move()
    await rig.follow()
    assert rig.ids() == set()
    await rig.check()


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
async def test_rows_are_the_same_however_events_are_cut_into_calls(rig: Rig, cut: int) -> None:
    await rig.keep_rows(0.0)
    await rig.run_jobs("a", "b")
    await rig.move()
    await rig.run_jobs("c")
    await rig.move()
    log = await open_archive(rig.ledger.log, rig.archive)
    last = (await log.head()).last_sequence
    with Projector(log, rig.path) as projector:
        for until in range(cut, last + cut, cut):
            await projector.catch_up(until=min(until, last))
    await rig.check()
