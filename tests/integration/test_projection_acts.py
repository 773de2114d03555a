"""Who did what to jobs: the rows that tell it, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.archiving import CLAIM, World, populate
from tests.support.orders import enqueue_of
from tests.support.projections import SMALL, assert_true, finish

from jobledger.audit.archive.chain import open_archive
from jobledger.audit.export import ExportLog, JoinedLog, write_export
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.chain import commit, load, transact
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    Command,
    CompleteStep,
    ConfirmCancel,
    DeadLetter,
    Discard,
    Dispatch,
    Fail,
    GiveSignal,
    Interrupt,
    Note,
    Pause,
    RequestPause,
    Requeue,
    ResumeJob,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import ErrorInfo, RerunOf
from jobledger.ledger.model.job import OPERATOR
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.queue_pause import QUEUE, PauseQueue, QueueState
from jobledger.ledger.model.queue_pause import decide as decide_pause
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.unreadable import UNREADABLE, Acknowledged
from jobledger.projections import ActFilter, ActRow, Projector, ProjectorConfig, Store, rebuild

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

    async def enqueue(self, job: str, by: str = "shop", **options: Any) -> None:
        ref = JobRef(queue="q", job_id=job)
        chain = await load(self.log, ref)
        order = enqueue_of(ref, task="t", **options)
        await commit(self.log, chain, decide(None, order, Stamp(at=self.at, by=by)))
        self.at += timedelta(seconds=1)

    async def do(self, job: str, command: Command, by: str = "w1") -> int:
        ref = JobRef(queue="q", job_id=job)
        chain = await transact(self.log, ref, command, lambda: Stamp(at=self.at, by=by))
        self.at += timedelta(seconds=1)
        assert chain.job is not None
        return chain.job.claim_epoch


async def acts_in(log: Log, path: Path, config: ProjectorConfig = SMALL) -> list[ActRow]:
    """Bring the projection at `path` up to the log; return its acts, the oldest first."""
    await finish(log, path, config)
    with Store.open(path) as store:
        return store.acts(1_000)[::-1]


def shown(found: Sequence[ActRow]) -> list[tuple[str, str, str, str]]:
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


async def test_acts_of_people_are_told_from_what_workers_do(tmp_path: Path) -> None:
    place = Place()
    await _people(place)
    found = await acts_in(place.log, tmp_path / "p")
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
    first = await place.log.get(found[0].stream_sequence)
    assert first is not None
    assert (found[0].at, found[0].queue, found[0].task) == ("2026-01-02T08:00:01.000000Z", "q", "t")
    assert first.stored_at == BEGIN + timedelta(seconds=1)


async def test_acts_on_a_job_with_limits_are_acts_though_it_is_held(tmp_path: Path) -> None:
    place = Place()
    await place.enqueue("limited", limits=("api",), run_at=place.at + timedelta(hours=1))
    await place.do("limited", Dispatch(cause="due", reason="now, please"), by="alice")
    await place.do("limited", Dispatch(cause="admitted", grant=1))
    await place.do("limited", DeadLetter(reason="max_deliver"))
    await place.do("limited", Requeue(reason="fixed"), by="bob")
    await place.do("limited", Dispatch(cause="admitted", grant=1))
    assert shown(await acts_in(place.log, tmp_path / "p")) == [
        ("alice", "retry", "limited", "now, please"),
        ("bob", "requeue", "limited", "fixed"),
    ]


async def test_pauses_resumes_signals_reruns_and_notes_are_acts(tmp_path: Path) -> None:
    place = Place()
    claim = Claim(worker="w1", lease_s=15)
    await place.enqueue("waits")
    await place.do("waits", RequestPause(reason="closed"), by="alice")
    await place.do("waits", ResumeJob(reason="open again"), by="bob")  # no `retry`
    await place.do("waits", RequestPause(), by="alice")
    await place.do("waits", ResumeJob(), by="bob")  # though nobody says why
    await place.enqueue("later", run_at=place.at + timedelta(hours=1))
    await place.do("later", RequestPause(), by="alice")
    await place.do("later", ResumeJob(), by="bob")  # it waits for its time again: no `reschedule`
    await place.enqueue("runs")
    held = await place.do("runs", claim)
    await place.do("runs", RequestPause(reason="deploy"), by="alice")
    await place.do("runs", Pause(epoch=held, event=OPERATOR), by="w1")  # it obeys
    await place.do("runs", ResumeJob(), by="alice")
    await place.enqueue("fails", max_attempts=2)
    held = await place.do("fails", claim)
    await place.do("fails", RequestPause(), by="alice")
    await place.do("fails", Fail(epoch=held, error=BOOM), by="w1")  # and so does this one
    await place.enqueue("child")
    await place.do("child", RequestPause(reason="its run r1 is paused"), by="w1")
    await place.do("child", ResumeJob(reason="its run goes on"), by="w1")
    await place.enqueue("run")
    held = await place.do("run", claim)
    step: dict[str, Any] = {"step": "pay", "kind": "step", "target": "pay"}
    await place.do("run", CompleteStep(epoch=held, **step))
    await place.do("run", GiveSignal(name="approved", id="click-1"), by="carol")
    await place.do("run", GiveSignal(name="ticked"), by="host-17-0a1b2c3d")  # a program's
    await place.do("run", Interrupt(epoch=held, reason="deploy"))
    await place.do("run", Note(text="look at this"), by="dana")
    source = RerunOf(queue="q", job="run", sequence=9, hash="", from_step="pay", steps=0, reason="a late fix")
    await place.enqueue("again", rerun_of=source, by="erin")
    assert shown(await acts_in(place.log, tmp_path / "p")) == [
        ("alice", "pause", "waits", "closed"),
        ("bob", "resume", "waits", "open again"),
        ("alice", "pause", "waits", "closed"),  # a pause without a reason keeps the one before
        ("bob", "resume", "waits", ""),
        ("alice", "pause", "later", ""),
        ("bob", "resume", "later", ""),
        ("alice", "pause", "runs", "deploy"),
        ("alice", "resume", "runs", ""),
        ("alice", "pause", "fails", ""),
        ("carol", "signal", "run", "approved"),
        ("dana", "note", "run", "look at this"),
        ("erin", "rerun", "again", "of q/run from step pay: a late fix"),
    ]
    await assert_true(place.log, tmp_path / "p")


async def test_a_cancel_that_begins_with_undos_is_a_cancel(tmp_path: Path) -> None:
    place = Place()
    await place.enqueue("run")
    held = await place.do("run", Claim(worker="w1", lease_s=15))
    await place.do("run", CompleteStep(epoch=held, step="pay", kind="step", target="pay"))
    await place.do("run", Pause(epoch=held, until=place.at + timedelta(hours=1), undos=1))
    await place.do("run", CancelJob(reason="refunded"), by="alice")
    assert shown(await acts_in(place.log, tmp_path / "p")) == [("alice", "cancel", "run", "refunded")]


async def test_pauses_of_queues_and_acknowledgements_are_acts_about_no_job(tmp_path: Path) -> None:
    place = Place()
    stamp = Stamp(at=place.at, by="alice")
    paused = decide_pause("mail", QueueState(), PauseQueue(reason="smtp is down"), stamp)
    (entry,) = QUEUE.link(place.log.names, [paused], View[QueueState]())
    await place.log.append([entry])
    accepted = Acknowledged(
        at=place.at, by="bob", sequence=7, sha256="0" * 64, stored_as="x", why="y", reason="looked at"
    )
    (entry,) = UNREADABLE.link(place.log.names, [accepted], View[Acknowledged]())
    await place.log.append([entry])
    found = await acts_in(place.log, tmp_path / "p")
    assert [(act.by, act.act, act.queue, act.job, act.reason) for act in found] == [
        ("alice", "pause", "mail", "", "smtp is down"),
        ("bob", "acknowledge", "", "", "stream sequence 7: looked at"),
    ]
    await assert_true(place.log, tmp_path / "p")


async def test_acts_are_chosen_by_actor_by_time_and_by_place(tmp_path: Path) -> None:
    place = Place()
    await _people(place)
    whole = (await acts_in(place.log, tmp_path / "p"))[::-1]
    with Store.open(tmp_path / "p") as store:

        def chosen(**conditions: Any) -> list[ActRow]:
            chosen = ActFilter(**conditions)
            assert store.act_count(chosen) == len(store.acts(1_000, chosen=chosen))
            return store.acts(1_000, chosen=chosen)

        assert chosen() == whole
        assert chosen(by="bob") == [act for act in whole if act.by == "bob"]
        third = whole[3]
        assert chosen(since=datetime.fromisoformat(third.at)) == whole[:4]
        assert chosen(from_sequence=third.stream_sequence) == whole[:4]
        assert chosen(from_sequence=third.stream_sequence + 1, by="bob") == whole[:1]
        assert chosen(since=place.at + timedelta(days=1)) == []
        assert chosen(by="nobody") == []
        assert store.acts(2) == whole[:2]


@pytest.mark.parametrize("batch", [1, 2, 5, 4_000])
async def test_acts_are_the_same_however_events_are_cut(tmp_path: Path, batch: int) -> None:
    place = Place()
    await _people(place)
    found = await acts_in(place.log, tmp_path / "p", ProjectorConfig(batch_events_max=batch))
    assert len(found) == 7
    await assert_true(place.log, tmp_path / "p")


async def test_acts_in_exports_are_told_as_those_in_the_ledger(tmp_path: Path) -> None:
    place = Place()
    await _people(place)
    whole = await acts_in(place.log, tmp_path / "p")
    for last in range(1, (await place.log.head()).last_sequence + 1, 4):
        await write_export(place.log, tmp_path / str(last), last=last)
        joined = JoinedLog([ExportLog(tmp_path / str(last))], place.log)
        assert await acts_in(joined, tmp_path / f"{last}.db") == whole


async def test_acts_outlive_an_archive_run(tmp_path: Path) -> None:
    world = World(tmp_path / "archive")
    for job in ("waits", "asked", "by-itself"):
        await world.enqueue(job, *(() if job == "waits" else (CLAIM,)))
    await populate(world)
    # These are over when the run comes to carry them: what the ledger holds of them begins with their end.
    await world.do("waits", CancelJob(reason="too late"))
    await world.do("asked", CancelJob(), ConfirmCancel(epoch=0))
    await world.do("by-itself", ConfirmCancel(epoch=0, reason="nothing to do"))
    ended = (await world.log.head()).last_sequence
    followed = tmp_path / "followed"
    whole = await acts_in(world.log, followed)
    await world.archive()
    first = (await world.log.head()).first_sequence
    held = [act for act in whole if act.stream_sequence >= first]
    assert [act.job for act in held] == ["waits", "asked"]
    assert await acts_in(world.log, followed) == whole, "what was read before stays"

    fresh = tmp_path / "fresh"
    with Projector(world.log, fresh, config=SMALL) as projector:
        await projector.catch_up(until=ended)
        with Store.open(fresh) as store:
            assert [act.job for act in store.acts()] == ["asked"], "of the others their `carried` will tell"
            unsure = store.select("SELECT job FROM acts WHERE unsure = 1 ORDER BY job")
            assert unsure == [("asked",), ("by-itself",), ("waits",)]
    assert await acts_in(world.log, fresh) == held
    await rebuild(world.log, tmp_path / "rebuilt")  # both in one transaction
    assert await acts_in(world.log, tmp_path / "rebuilt") == held
    await assert_true(world.log, fresh)

    await world.enqueue("cancelled", CLAIM, ConfirmCancel(epoch=0))  # an id that is free again
    assert [act.job for act in whole].count("cancelled") == 1
    joined = await open_archive(world.log, tmp_path / "archive")
    assert await acts_in(joined, tmp_path / "joined") == whole
    assert await acts_in(world.log, followed) == whole
