"""Who did what to jobs, and reports as files: without a server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.archiving import CLAIM, World, populate
from tests.support.orders import enqueue_of

from jobledger.audit.acts import Act, acts
from jobledger.audit.archive.chain import open_archive
from jobledger.audit.export import ExportLog, JoinedLog, write_export
from jobledger.audit.verify import Checker, Report, verify
from jobledger.audit.verify.file import read_report, write_report
from jobledger.ledger.model.chain import commit, load, transact
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    Command,
    ConfirmCancel,
    DeadLetter,
    Discard,
    Dispatch,
    Fail,
    Interrupt,
    Requeue,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import InvalidInputError, NotFoundError
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef, Names

pytestmark = pytest.mark.anyio

BEGIN = datetime(2026, 1, 2, 8, tzinfo=UTC)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom")


class Place:
    """A log in memory; everything that happens there is one second after the one before."""

    def __init__(self) -> None:
        self.at = BEGIN
        self.log = MemoryLog(clock=self)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - BEGIN).total_seconds()

    async def enqueue(self, job: str, **options: Any) -> None:
        ref = JobRef(queue="q", job_id=job)
        chain = await load(self.log, ref)
        order = enqueue_of(ref, task="t", **options)
        await commit(self.log, chain, decide(None, order, Stamp(at=self.at, by="shop")))
        self.at += timedelta(seconds=1)

    async def do(self, job: str, command: Command, by: str = "w1") -> int:
        ref = JobRef(queue="q", job_id=job)
        chain = await transact(self.log, ref, command, lambda: Stamp(at=self.at, by=by))
        self.at += timedelta(seconds=1)
        assert chain.job is not None
        return chain.job.claim_epoch

    async def acts(self, **options: Any) -> list[Act]:
        return await acts_in(self.log, **options)


async def acts_in(log: Log, **options: Any) -> list[Act]:
    async with contextlib.aclosing(acts(log, **options)) as found:
        return [act async for act in found]


def shown(found: Sequence[Act]) -> list[tuple[str, str, str, str]]:
    return [(act.by, act.act, act.job, act.reason) for act in found]


async def _people(place: Place) -> None:
    """Every act of a person there is, among what looks like one and is none."""
    claim = Claim(worker="w1", lease_s=15)
    await place.enqueue("waiting")
    await place.do("waiting", CancelJob(reason="not needed"), by="alice")
    await place.enqueue("running", max_attempts=2)
    held = await place.do("running", claim)
    await place.do("running", CancelJob(), by="bob")
    await place.do("running", ConfirmCancel(epoch=held))
    await place.enqueue("failing", max_attempts=2)
    held = await place.do("failing", claim)
    await place.do("failing", CancelJob(reason="stop"), by="bob")
    await place.do("failing", Fail(epoch=held, error=BOOM))  # its batch ends with `cancelled`
    await place.enqueue("by-itself")
    held = await place.do("by-itself", claim)
    await place.do("by-itself", ConfirmCancel(epoch=held, reason="nothing to do"))
    await place.enqueue("taken-over", max_attempts=2)
    held = await place.do("taken-over", claim)
    await place.do("taken-over", CancelJob(), by="carol")
    await place.do("taken-over", TakeOver(worker="w2", lease_s=15, lost_epoch=held), by="w2")
    await place.enqueue("later", run_at=place.at + timedelta(hours=1))
    await place.do("later", Dispatch(cause="due", reason="retried by hand"), by="alice")
    await place.enqueue("in-time", run_at=place.at + timedelta(seconds=1))
    await place.do("in-time", Dispatch(cause="due"))
    held = await place.do("in-time", claim)
    await place.do("in-time", Interrupt(epoch=held, reason="deploy"))
    await place.do("in-time", DeadLetter(reason="max_deliver"))
    await place.do("in-time", Requeue(input=msgspec.Raw(b"{}"), reason="fixed"), by="alice")
    await place.do("in-time", DeadLetter(reason="max_deliver"))
    await place.do("in-time", Discard(reason="test data"), by="bob")


async def test_acts_of_people_are_told_from_what_workers_do() -> None:
    place = Place()
    await _people(place)
    found = await place.acts()
    assert shown(found) == [
        ("alice", "cancel", "waiting", "not needed"),
        ("bob", "cancel", "running", ""),
        ("bob", "cancel", "failing", "stop"),
        ("carol", "cancel", "taken-over", ""),
        ("alice", "retry", "later", "retried by hand"),
        ("alice", "requeue", "in-time", "fixed"),
        ("bob", "discard", "in-time", "test data"),
    ]
    assert [act.job for act in found if act.new_input] == ["in-time"]
    assert [act.stream_sequence for act in found] == sorted(act.stream_sequence for act in found)


async def test_acts_are_chosen_by_actor_and_by_time() -> None:
    place = Place()
    await _people(place)
    whole = await place.acts()
    assert await place.acts(by="bob") == [act for act in whole if act.by == "bob"]
    assert await place.acts(since=whole[3].at) == whole[3:]
    assert await place.acts(since=place.at + timedelta(days=1)) == []
    assert await place.acts(by="nobody") == []


async def test_acts_are_read_from_an_empty_ledger_and_refuse_a_time_without_a_zone() -> None:
    place = Place()
    assert await place.acts() == []
    with pytest.raises(InvalidInputError, match="no time zone"):
        await place.acts(since=BEGIN.replace(tzinfo=None))


async def test_more_acts_than_are_looked_at_at_once_keep_their_order() -> None:
    place = Place()
    for number in range(150):
        await place.enqueue(f"j{number}")
        await place.do(f"j{number}", CancelJob(), by="alice")
    reached: list[tuple[int, int]] = []

    def on_progress(done: int, total: int) -> None:
        reached.append((done, total))

    found = await place.acts(on_progress=on_progress)
    assert [act.job for act in found] == [f"j{number}" for number in range(150)]
    assert reached[-1] == (299, 300), "the newest dispatch and the head"


async def test_acts_in_exports_are_told_as_those_in_the_ledger(tmp_path: Path) -> None:
    place = Place()
    await _people(place)
    whole = await place.acts()
    for last in range(1, (await place.log.head()).last_sequence + 1):
        await write_export(place.log, tmp_path / str(last), last=last)
        joined = JoinedLog([ExportLog(tmp_path / str(last))], place.log)
        assert await acts_in(joined) == whole
    joined = JoinedLog([ExportLog(tmp_path / "17")], place.log)
    assert await acts_in(joined, by="bob") == [act for act in whole if act.by == "bob"]
    assert await acts_in(joined, since=whole[3].at) == whole[3:]


async def test_acts_are_looked_up_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobledger.audit.acts._WAITING_MAX", 2)
    place = Place()
    await _people(place)
    await write_export(place.log, tmp_path / "all")
    assert await acts_in(ExportLog(tmp_path / "all")) == await place.acts()


async def test_acts_outlive_an_archive_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    for job in ("waits", "asked", "by-itself"):
        await world.enqueue(job, *(() if job == "waits" else (CLAIM,)))
    await populate(world)
    # These are over when the run comes to carry them: what the ledger holds of them begins with their end.
    await world.do("waits", CancelJob(reason="too late"))
    await world.do("asked", CancelJob(), ConfirmCancel(epoch=0))
    await world.do("by-itself", ConfirmCancel(epoch=0, reason="nothing to do"))
    whole = await acts_in(world.log)
    await world.archive()
    first = (await world.log.head()).first_sequence
    held = [act for act in whole if act.stream_sequence >= first]
    assert [act.job for act in held] == ["waits", "asked"]
    assert await acts_in(world.log) == held
    await world.enqueue(
        "cancelled", CLAIM, ConfirmCancel(epoch=0)
    )  # an id that is free again, for another job
    assert [act.job for act in whole].count("cancelled") == 1
    assert await acts_in(await open_archive(world.log, tmp_path)) == whole


# Reports as files.


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def _report() -> Report:
    place = Place()
    await place.enqueue("a")
    return await verify(place.log)


async def test_a_report_is_read_as_it_was_written_and_replaced_as_a_whole(tmp_path: Path) -> None:
    report = await _report()
    path = tmp_path / "report.json"
    path.write_text("something older", encoding="utf-8")
    write_report(report, path)
    assert read_report(path) == report
    assert names_in(tmp_path) == ["report.json"]


async def test_a_report_that_cannot_take_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    report = await _report()
    path = tmp_path / "report.json"
    path.mkdir()
    with pytest.raises(OSError, match=r"report\.json"):
        write_report(report, path)
    assert names_in(tmp_path) == ["report.json"]


def test_a_missing_report_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="make one with --report"):
        read_report(tmp_path / "none.json")


@pytest.mark.parametrize(
    "change",
    [
        None,
        {"head_sequence": -7},
        {"from_sequence": 0},
        {"from_sequence": 9},
        {"digest": "zz"},
        {"digest": 7},
        {"violations": None},
    ],
)
async def test_what_is_no_report_is_refused(tmp_path: Path, change: dict[str, Any] | None) -> None:
    path = tmp_path / "report.json"
    body = msgspec.to_builtins(await _report())
    path.write_bytes(b"[" * 5_000 if change is None else msgspec.json.encode(body | change))
    with pytest.raises(InvalidInputError, match="is not a report of `jobledger audit verify`"):
        read_report(path)


def test_a_file_that_cannot_be_a_report_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 1 << 30)
    with pytest.raises(InvalidInputError, match="too large"):
        read_report(path)


# What an earlier report asks of a check.


async def test_a_report_of_an_empty_ledger_is_continued_by_any(tmp_path: Path) -> None:
    empty = Checker(Names()).finish()
    place = Place()
    await place.enqueue("a")
    assert (await verify(place.log, before=empty)).sound
    assert Checker(Names(), before=empty).finish().sound


async def test_a_check_that_ends_before_the_earlier_report_is_refused() -> None:
    place = Place()
    for job in "abc":
        await place.enqueue(job)
    before = await verify(place.log)
    with pytest.raises(InvalidInputError, match="to_sequence is 2, and the earlier report goes up to 3"):
        await verify(place.log, to_sequence=2, before=before)
