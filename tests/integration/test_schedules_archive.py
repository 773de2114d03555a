"""An archive run carries schedules over: they tick on as they were, nothing of them is forgotten or made twice."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, ScheduleNotFoundError, task
from jobledger.ledger.model.commands import CancelJob, Stamp
from jobledger.ledger.model.schedules.decisions import Tick, decide
from jobledger.ledger.model.schedules.events import Carried, Ticked
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.schedules.changes import KnownSchedule
from jobledger.projections import Projector, Store
from jobledger.projections.tables.schedules import read_schedules

pytestmark = pytest.mark.anyio


@task(queue="reports")
async def report() -> None: ...


async def _archive(ledger: Ledger, folder: Path) -> None:
    deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
    await Archiver(ledger.log, folder, deps).run(datetime.now(UTC))


async def _check(ledger: Ledger, folder: Path) -> None:
    for log in (ledger.log, await open_archive(ledger.log, folder)):
        found = await verify(log)
        assert found.sound, found.text()


async def _tick(ledger: Ledger, name: str, *, with_job: bool = True) -> Ticked:
    """Append the next tick, as at its moment; without its job, as a process does that dies before it makes that."""
    known: KnownSchedule = await ledger.schedules.read(name)
    assert known.schedule is not None
    assert known.schedule.next_at is not None
    event = decide(name, known.schedule, Tick(), Stamp(at=known.schedule.next_at, by="test"))
    assert isinstance(event, Ticked)
    if with_job:
        await ledger.schedules.append(known, event)
    else:
        await ledger.log.append(SCHEDULE.link(ledger.names, [event], known.view))
    return event


async def test_schedules_are_carried_over_whole(ledger: Ledger, tmp_path: Path) -> None:
    schedules = ledger.schedules
    for name in ("hourly", "paused", "gone", "cut"):
        await schedules.add(name, report, every_s=3600, overlap="allow")
    await _tick(ledger, "hourly")
    ended = await _tick(ledger, "hourly")
    await ledger.execute((await ledger.job(ended.job)).ref, CancelJob())
    await schedules.pause("paused", reason="why", by="ann")
    await schedules.remove("gone")
    unmade = await _tick(ledger, "cut", with_job=False)
    before = {name: await schedules.get(name) for name in ("hourly", "paused", "cut")}

    await _archive(ledger, tmp_path)
    for name, schedule in before.items():
        known = await schedules.read(name)
        assert isinstance(known.event, Carried)
        assert known.schedule == schedule
    with pytest.raises(ScheduleNotFoundError):
        await schedules.get("gone")
    assert (await ledger.job(unmade.job)).id == unmade.job  # made before its tick went away
    await _check(ledger, tmp_path)

    # Again, and on: the job of a tick that is archived by now is not made once more.
    await _archive(ledger, tmp_path)
    assert {name: await schedules.get(name) for name in before} == before
    await schedules.pause("hourly")
    assert await ledger.log.last(f"{ledger.names.ledger_root}.job.*.{ended.job}.>") is None
    await schedules.resume("hourly")
    later = await _tick(ledger, "hourly")
    assert later.number == 3
    assert later.tick is not None
    assert later.tick > ledger.clock.now()  # ticks of the future, as those above, are forgotten by `resume`
    await _check(ledger, tmp_path)


async def test_rows_of_carried_schedules_say_what_they_said(ledger: Ledger, tmp_path: Path) -> None:
    await ledger.schedules.add("hourly", report, every_s=3600)
    await _tick(ledger, "hourly")

    async def row(file: str) -> object:
        with Projector(ledger.log, tmp_path / file) as projector:
            await projector.catch_up()
        with Store.open(tmp_path / file) as store:
            (found,) = read_schedules(store.select)
        return replace(found, updated_at="", declared_at=None, declared_by=None)

    before = await row("first.db")
    await _archive(ledger, tmp_path / "archive")
    assert await row("first.db") == before
    assert await row("second.db") == before
