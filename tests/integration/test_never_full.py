"""A ledger with a keeper never fills: its oldest events are moved while work goes on, and ids are remembered."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.working import LIMIT_S, Connect, ended, until, working

from jobledger.admin.keeper import Keeper, keeper_of, move, retention_of
from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.admin.verbs.retention import SetRetention, ShowRetention
from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.archive.chain import export_name
from jobledger.audit.archive.mirror import MARK
from jobledger.audit.archive.plan import unread
from jobledger.audit.errors import ArchiveRefusedError
from jobledger.audit.verify import verify
from jobledger.gateway.process.children import KeeperChild
from jobledger.ledger import Ledger, task
from jobledger.ledger.metrics.exposition import Measure
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.retention import EVERY_S_MAX, Retention
from jobledger.ledger.nats.leases import LeaseLostError, WorkerInfo
from jobledger.projections import counting
from jobledger.projections.metrics.facts import server_facts
from jobledger.projections.metrics.metrics import audit_metrics
from jobledger.projections.metrics.names import PLACE_UP, RETENTION_SUCCESS

pytestmark = pytest.mark.anyio
SMALL = 256 << 10
LARGE = 4 << 20


@task(queue="work")
async def work(text: str) -> int:
    return len(text)


def _ignore(*_: object) -> None:
    """Take progress, and say nothing."""


class Rig:
    """A ledger, its archive and its projection."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.archive = folder / "archive"
        self.archive.mkdir()
        self.projection = folder / "jobs.db"
        self.moves = 0  #: that moved events

    async def set(self, **terms: Any) -> None:
        given: dict[str, Any] = {"keep_s": 0.0, "every_s": 1.0, "to": str(self.archive), **terms}
        await self.ledger.do(SetRetention(**given))

    async def move(self) -> MoveOutcome:
        moved = await move(self.ledger, self.projection, await retention_of(self.ledger))
        self.moves += bool(moved.events)
        return moved

    async def until_moved(self) -> None:
        """Wait until events have moved once more."""
        before = self.moves
        await until(lambda: self.moves > before)

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncGenerator[Keeper]:
        at_work = asyncio.Lock()

        async def work() -> MoveOutcome:
            async with at_work:
                return await self.move()

        keeper = Keeper(self.ledger, work)
        running = asyncio.create_task(keeper.run())
        try:
            yield keeper
        finally:
            async with at_work:  # in this process the thread of a run that is cancelled may leave a file open
                running.cancel()
            await asyncio.wait({running})

    async def share(self) -> float:
        head = await self.ledger.log.head()
        assert head.bytes_max
        return head.stored_bytes / head.bytes_max

    async def check(self) -> None:
        """The archive and the ledger together are sound."""
        report = await verify(await open_archive(self.ledger.log, self.archive))
        assert report.sound, report.violations


@pytest.fixture
async def rig(connected: Connect, tmp_path: Path) -> AsyncIterator[Rig]:
    async with connected(ledger_bytes_max=SMALL) as ledger:
        yield Rig(ledger, tmp_path)


async def run_jobs(ledger: Ledger, count: int, *, size: int = 300) -> None:
    """Run so many jobs to their end: a hundred take 0.73 of the room, and from 0.9 on the ledger takes none."""
    async with working(ledger, work):
        for job in [await ledger.enqueue(work, text="x" * size) for _ in range(count)]:
            await ended(job)
        last = (await ledger.log.head()).last_sequence
        async with asyncio.timeout(
            LIMIT_S
        ):  # a run is refused while nobody has looked for children that ended
            while await unread(ledger.log, ledger.inbox, last):
                await asyncio.sleep(0.02)


@pytest.mark.timeout(180)
async def test_ten_ledgers_worth_of_jobs_go_through_one(connected: Connect, tmp_path: Path) -> None:
    """Large jobs, so that few make ten ledgers: 40 MiB through one of 4 MiB, while a worker runs them.

    The ledger is large enough for its load: above `start`, no more than a tenth of its room comes in before the keeper has
    moved events, however long that takes on this machine.
    """
    text, peak, added, above, job = "x" * 60_000, 0.0, 0, 0, None
    async with connected(ledger_bytes_max=LARGE, room_timeout_s=0) as ledger:
        rig = Rig(ledger, tmp_path)
        await rig.set(start=0.5, aim=0.2)
        async with working(ledger, work, concurrency=20), rig.keeping():
            while added * len(text) < 10 * LARGE:
                job = await ledger.enqueue(work, text=text)  # a refusal would fail the test
                added += 1
                share = await rig.share()
                peak = max(peak, share)
                above = above + len(text) if share > 0.5 else 0
                if above > 0.1 * LARGE:
                    await rig.until_moved()
                    above = 0
            assert job is not None
            await ended(job)
        assert peak <= 0.5 + 0.15, peak
        assert (await ledger.log.head()).first_sequence > 2 * added
        report = await verify(await open_archive(ledger.log, rig.archive))
        assert report.sound, report.violations
        assert dict(report.states) == {"completed": added}


async def test_an_id_that_is_younger_than_it_is_kept_is_known_under_pressure(rig: Rig) -> None:
    await rig.set(keep_s=3600.0, start=0.2, aim=0.1)
    await run_jobs(rig.ledger, 80)
    mine = await rig.ledger.enqueue(work.options(id="mine"), text="x")
    moved = await rig.move()
    assert (moved.events, moved.is_due) == (0, True)
    assert "all of it is younger than the 1 h that it is kept" in moved.trouble
    assert not (await rig.ledger.enqueue(work.options(id="mine"), text="x")).created
    assert mine.created


async def test_a_run_moves_down_to_the_aim_and_what_is_there_is_sound(rig: Rig) -> None:
    await rig.set(start=0.3, aim=0.2)
    await run_jobs(rig.ledger, 80)
    before = await rig.share()
    moved = await rig.move()
    assert (bool(moved.events), moved.trouble) == (True, "")
    assert await rig.share() < 0.25 < before
    assert (await rig.move()).is_due is False
    await rig.check()


async def test_what_is_older_than_its_age_is_moved_though_there_is_room(rig: Rig) -> None:
    await rig.set(max_age_s=0.5)
    await run_jobs(rig.ledger, 20)
    async with asyncio.timeout(LIMIT_S):
        while not (await rig.move()).events:
            await asyncio.sleep(0.1)
    await rig.check()


async def test_many_waiting_jobs_do_not_eat_up_the_gain(rig: Rig) -> None:
    await rig.set(start=0.3, aim=0.1)
    for _ in range(120):
        await rig.ledger.enqueue(work.options(queue="later"), text="x" * 300)
    stored = (await rig.ledger.log.head()).stored_bytes
    moved = await rig.move()
    assert moved.events == 0
    assert "120 unfinished jobs would have to be carried on" in moved.trouble
    assert (await rig.ledger.log.head()).stored_bytes == stored


async def test_a_folder_that_is_not_the_archive_is_left_alone(rig: Rig) -> None:
    await rig.set(start=0.3, aim=0.1, to=str(rig.archive / "missing"))
    await run_jobs(rig.ledger, 100)
    assert "there is no folder" in (await rig.move()).trouble
    await rig.set(to=str(rig.archive))
    assert (await rig.move()).events
    await run_jobs(rig.ledger, 60)
    elsewhere = rig.archive.rename(rig.archive.with_name("away"))
    rig.archive.mkdir()  # as an unmounted disk leaves it
    first = (await rig.ledger.log.head()).first_sequence
    assert "is not the archive of this ledger" in (await rig.move()).trouble
    assert ((await rig.ledger.log.head()).first_sequence, list(rig.archive.iterdir())) == (first, [])
    rig.archive.rmdir()
    elsewhere.rename(rig.archive)
    assert (await rig.move()).events
    await rig.check()


async def test_one_process_is_the_keeper_and_the_next_one_takes_over(rig: Rig) -> None:
    await rig.set(start=0.3, aim=0.2)
    assert await keeper_of(rig.ledger) is None
    other = Keeper(rig.ledger, rig.move)
    async with rig.keeping() as keeper:
        async with asyncio.timeout(LIMIT_S):
            while (found := await keeper_of(rig.ledger)) is None:
                await asyncio.sleep(0.01)
        with pytest.raises(LeaseLostError, match="is held by process"):
            await rig.ledger.leases.take(other._info())
        await until(lambda: keeper._archive != "")
        assert found.kind == "client"
    assert await keeper_of(rig.ledger) is None
    assert await rig.ledger.leases.take(other._info()) > 0


async def _kept(ledger: Ledger) -> WorkerInfo:
    async with asyncio.timeout(LIMIT_S):
        while (found := await keeper_of(ledger)) is None:
            await asyncio.sleep(0.01)
    return found


async def test_a_keeper_without_a_place_keeps_nobody_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobledger.admin.keeper._GLANCE_S", 0.05)
    placeless = asyncio.create_task(Keeper(rig.ledger, rig.move).run())
    placed = asyncio.create_task(Keeper(rig.ledger, rig.move, default_to=str(rig.archive)).run())
    try:
        assert (await _kept(rig.ledger)).archive == str(rig.archive)
    finally:
        for each in (placeless, placed):
            each.cancel()
        await asyncio.wait({placeless, placed})


async def _moved(ledger: Ledger) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await ledger.log.head()).first_sequence == 1:
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def _resting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """A keeper that has looked, and will look again in a day."""
    rests, rest = asyncio.Event(), Keeper._rest

    async def noted(self: Keeper, terms: Retention, pause_s: float, *, is_full: bool) -> None:
        rests.set()
        await rest(self, terms, max(pause_s, EVERY_S_MAX), is_full=is_full)

    monkeypatch.setattr("jobledger.admin.keeper._GLANCE_S", 0.05)
    monkeypatch.setattr(Keeper, "_rest", noted)
    async with rig.keeping():
        await asyncio.wait_for(rests.wait(), LIMIT_S)
        yield


async def test_a_keeper_that_rests_notices_a_sudden_load(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.set(start=0.2, aim=0.1, every_s=EVERY_S_MAX)
    async with _resting(rig, monkeypatch), working(rig.ledger, work):
        for _ in range(100):
            await rig.ledger.enqueue(work, text="x" * 300)
        await _moved(rig.ledger)
    await rig.check()


async def test_a_keeper_that_rests_notices_a_change_of_the_setting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.set(start=0.9, aim=0.8, keep_s=0.0, every_s=EVERY_S_MAX)
    async with _resting(rig, monkeypatch):
        await run_jobs(rig.ledger, 20)
        assert (await rig.ledger.log.head()).first_sequence == 1
        await rig.set(start=0.02, aim=0.01, every_s=EVERY_S_MAX)
        await _moved(rig.ledger)
    await rig.check()


async def _told(rig: Rig, measure: Measure) -> float | None:
    """Return what the exporter says of one figure."""
    facts = await server_facts(rig.ledger, 0)
    (found,) = [each for each in audit_metrics(facts, rig.ledger.clock.now()) if each.name == measure.name]
    return found.samples[0].value if found.samples else None


async def test_a_disk_that_is_away_is_told_before_anything_is_to_be_moved(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.set(start=0.9, aim=0.8, every_s=EVERY_S_MAX)
    assert await _told(rig, PLACE_UP) is None
    assert await _told(rig, RETENTION_SUCCESS) is None
    async with _resting(rig, monkeypatch):

        async def until_up(up: float) -> None:
            async with asyncio.timeout(LIMIT_S):
                while await _told(rig, PLACE_UP) != up:
                    await asyncio.sleep(0.02)

        await until_up(1.0)
        away = rig.archive.rename(rig.archive.with_name("away"))
        await until_up(0.0)
        looked_at = await _told(rig, RETENTION_SUCCESS)
        assert looked_at is not None
        assert "there is no folder" in (await rig.ledger.do(ShowRetention())).trouble
        away.rename(rig.archive)
        await until_up(1.0)
        async with asyncio.timeout(LIMIT_S):
            while (await _told(rig, RETENTION_SUCCESS) or 0.0) <= looked_at:
                await asyncio.sleep(0.02)
    assert not list(rig.archive.iterdir()), "a look changes nothing"


async def test_a_disk_that_hangs_holds_up_one_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, looks = threading.Event(), 0

    def look(*_: object, **_given: object) -> bool:
        nonlocal looks
        looks += 1
        hangs.wait(LIMIT_S)
        return True

    monkeypatch.setattr("jobledger.admin.keeper.is_marked", look)
    monkeypatch.setattr("jobledger.admin.keeper._PLACE_S", 0.05)
    await rig.set(start=0.9, aim=0.8)
    keeper, terms, head = (
        Keeper(rig.ledger, rig.move),
        await retention_of(rig.ledger),
        await rig.ledger.log.head(),
    )
    try:
        for _ in range(3):
            assert "gave no answer within 0.05 s" in await keeper._why_no_place(terms, head)
        assert looks == 1
    finally:
        hangs.set()


async def test_the_keeper_of_another_user_is_shown(rig: Rig) -> None:
    own = Keeper(rig.ledger, rig.move)._info()
    await rig.ledger.leases.renew(msgspec.structs.replace(own, worker="archiver.keeper", archive="/a"), 0)
    assert (await rig.ledger.do(ShowRetention())).archive == "/a"


async def test_nothing_is_moved_where_the_place_was_taken_away_meanwhile(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await rig.set(start=0.01, aim=0.0, to=None)
    await run_jobs(rig.ledger, 20)
    assert "no place is set" in (await rig.move()).trouble
    assert not (tmp_path / MARK).exists()


async def test_an_empty_place_takes_none_away(rig: Rig) -> None:
    await rig.set()
    with pytest.raises(InvalidInputError, match="to is empty: give the whole path"):
        SetRetention(to="")
    assert (await rig.ledger.do(SetRetention(to=None))).terms.to == ""


async def test_what_holds_is_shown(rig: Rig) -> None:
    shown = await rig.ledger.do(ShowRetention())
    assert (shown.sequence, shown.keeper, shown.archived_at) == (0, "", None)
    await rig.set(start=0.3, aim=0.2)
    await run_jobs(rig.ledger, 100)
    assert (await rig.move()).events
    shown = await rig.ledger.do(ShowRetention())
    assert shown.terms.start == 0.3
    assert shown.sequence > 1, "an archive run says once more what is set"
    assert shown.archived_through


async def test_the_child_of_a_keeper_moves_events(rig: Rig) -> None:
    """It is a process that looks once; that of `up` knows a folder where the setting names none, and makes it."""
    ledger, default = rig.ledger, rig.archive / "made"
    await rig.set(start=0.3, aim=0.2, to=None)
    await run_jobs(ledger, 100)
    moved = await KeeperChild(ledger, rig.projection, str(default)).work()
    assert (bool(moved.events), moved.trouble) == (True, "")
    assert (default / MARK).exists()
    await rig.set(to=str(default))
    await run_jobs(ledger, 60)
    moved = await KeeperChild(ledger, rig.projection).work()
    assert (bool(moved.events), moved.trouble) == (True, "")
    rig.archive = default
    await rig.check()


async def test_the_child_of_a_keeper_says_what_is_wrong(rig: Rig) -> None:
    await rig.set(start=0.3, aim=0.2, to="/nowhere/at/all")
    await run_jobs(rig.ledger, 100)
    moved = await KeeperChild(rig.ledger, rig.projection).work()
    assert "there is no folder /nowhere/at/all" in moved.trouble
    assert (await rig.ledger.log.head()).first_sequence == 1


@pytest.mark.parametrize("through", [None, 20])
async def test_a_run_that_was_cut_off_is_finished_or_begun_anew(rig: Rig, through: int | None) -> None:
    """A keeper finishes it; where its export goes further than may be moved now, that is removed and made again."""
    await rig.set(start=0.3, aim=0.0)  # so that a keeper moves as much as the run that is cut off
    await run_jobs(rig.ledger, 100)

    def cut_off(step: str, _done: int, _total: int) -> None:
        if step == "record":
            raise ConnectionAbortedError

    deps = archive_deps(rig.ledger, by="ann", on_progress=cut_off)
    with pytest.raises(ConnectionAbortedError):
        await Archiver(rig.ledger.log, rig.archive, deps).run(rig.ledger.clock.now())
    (left,) = rig.archive.iterdir()
    assert (await rig.ledger.log.head()).first_sequence == 1
    if through is None:
        assert left.name in (await rig.move()).exports
    else:
        deps = archive_deps(rig.ledger, by="bob", on_progress=_ignore)
        done = await Archiver(rig.ledger.log, rig.archive, deps).run(rig.ledger.clock.now(), through=through)
        assert [each.name for each in done.exports] == [export_name(1, through)]
        assert not left.exists()
    await rig.check()


async def test_an_export_of_an_unfinished_run_stays_while_another_run_is_at_work(rig: Rig) -> None:
    await rig.set(start=0.3, aim=0.2)
    await run_jobs(rig.ledger, 100)
    found = []

    async def meanwhile(folder: Path) -> None:
        deps = archive_deps(rig.ledger, by="bob", on_progress=_ignore)
        with pytest.raises(ArchiveRefusedError, match="another run may be at work"):
            await Archiver(rig.ledger.log, folder, deps).run(rig.ledger.clock.now(), through=2)
        found.append(folder)

    async def count(_progress: object) -> Any:  # after the export is made, before it is recorded
        await meanwhile(rig.archive)
        return await counting(rig.ledger.log, rig.projection)(_ignore)

    deps = archive_deps(rig.ledger, by="ann", on_progress=_ignore, count=count)
    done = await Archiver(rig.ledger.log, rig.archive, deps).run(rig.ledger.clock.now())
    assert done.events
    assert found == [rig.archive]
    await rig.check()
