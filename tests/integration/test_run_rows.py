"""The rows of runs: their steps, signals and children, the same however events are cut; without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.orders import enqueue_of
from tests.support.projections import finish
from tests.support.runs import of_holder, step

from jobledger.admin.runs import recorded, run_tree
from jobledger.ledger.model.chain import commit, load, transact
from jobledger.ledger.model.commands import (
    Carry,
    Claim,
    Command,
    Complete,
    CompleteStep,
    Fail,
    FailStep,
    GiveSignal,
    Join,
    Pause,
    RequestPause,
    Requeue,
    ResumeJob,
    Stamp,
    StartStep,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import ErrorInfo, Member
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.runs.orders import ChildOrder, child_id
from jobledger.ledger.model.runs.wait_words import AWAITED
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import Projector, ProjectorConfig, Store, difference, rebuild
from jobledger.projections.metrics.runs import read_running, running_metrics
from jobledger.projections.tables.steps import SIGNALS, SignalRow, StepRow, read_steps, signal_of

pytestmark = pytest.mark.anyio

BEGIN = datetime(2026, 1, 2, 8, tzinfo=UTC)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom")
NAME = ("orders", "order-77")
RUN = JobRef(queue="orders", job_id="order-77")
LATER = BEGIN + timedelta(hours=1)
PAGES = ChildOrder(task="fetch", queue="pages", count=3, limit=2, on_failure="collect")


class World:
    """A log in memory, in which each event is one second after the one before."""

    def __init__(self) -> None:
        self.at = BEGIN
        self.log = MemoryLog(clock=self)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - BEGIN).total_seconds()

    async def begin(self, ref: JobRef, task: str, **order: Any) -> None:
        chain = await load(self.log, ref)
        command = enqueue_of(ref, task=task, **order)
        await commit(self.log, chain, decide(chain.job, command, Stamp(at=self.at, by="shop")))
        self.at += timedelta(seconds=1)

    async def do(self, command: Command, ref: JobRef = RUN, by: str = "w1") -> Job:
        command = of_holder(command, (await load(self.log, ref)).job)
        after = (await transact(self.log, ref, command, lambda: Stamp(at=self.at, by=by))).job
        self.at += timedelta(seconds=1)
        assert after is not None
        return after

    async def claim(self, ref: JobRef = RUN) -> None:
        await self.do(Claim(worker="w1", lease_s=15), ref)

    async def child(self, item: int, *, fails: bool = False) -> JobRef:
        ref = JobRef(queue="pages", job_id=child_id(RUN.job_id, 3, item))
        member = Member(queue=RUN.queue, job=RUN.job_id, step="pages", item=item)
        await self.begin(ref, "fetch", member=member)
        await self.claim(ref)
        await self.do(Fail(epoch=0, error=BOOM) if fails else Complete(epoch=0), ref)
        return ref


async def story(world: World) -> None:
    """A run that has met everything there is; the rows are right after each event of it."""
    await world.begin(RUN, "order", version="2", max_attempts=9)
    await world.claim()
    value = msgspec.Raw(b'"ch_77"')
    await world.do(step(CompleteStep, "charge", result=value, tries=2, duration_ms=1_500.0))
    await world.do(step(StartStep, "approved", kind="wait", until=LATER))
    await world.do(Pause(epoch=0, steps=("approved",), until=LATER, undos=1))
    await world.do(GiveSignal(name="other", id="o-1"), by="eve")
    await world.do(GiveSignal(name="approved", id="click-1", value=msgspec.Raw(b"true")), by="eve")
    await world.claim()
    (_, told) = (await world.do(RequestPause(reason="wait a little"), by="ann")).signals
    await world.do(step(CompleteStep, "approved", kind="wait", signal=told.sequence))
    await world.do(Pause(epoch=0, event="operator"))
    await world.do(ResumeJob(), by="ann")
    await world.claim()
    items = msgspec.Raw(b'[{"n":0},{"n":1},{"n":2}]')
    await world.do(step(StartStep, "pages", kind="map", target="fetch", order=PAGES, items=items))
    await world.do(Pause(epoch=0, steps=("pages",)))
    await world.child(0)
    failed = await world.child(1, fails=True)
    await world.do(Join(step="pages", completed=((0, 0),)))
    await world.do(Join(step="pages", failed=((1, 1),)))
    await world.do(Requeue(), failed)
    await world.claim(failed)
    await world.do(Complete(epoch=0), failed)
    await world.child(2)
    await world.do(Join(step="pages", completed=((2, 2),)))
    await world.claim()
    done = msgspec.Raw(b"[1,null,3]")
    await world.do(step(CompleteStep, "pages", kind="map", target="fetch", result=done))
    await world.do(step(FailStep, "report", error=BOOM, retry_at=LATER))
    await world.do(step(FailStep, "report", error=BOOM, tries=2))
    await world.do(Fail(epoch=0, error=BOOM, retry_at=world.at))
    await world.do(Carry(through=4))


def _signals(store: Store) -> list[SignalRow]:
    columns = ", ".join(SIGNALS.columns)
    found = store.select(
        f"SELECT {columns} FROM signals WHERE queue = ? AND job_id = ? ORDER BY sequence", NAME
    )
    return [signal_of(row) for row in found]


def by_key(steps: list[StepRow]) -> dict[str, StepRow]:
    return {row.key: row for row in steps}


async def test_the_rows_of_a_run_tell_all_its_steps_signals_and_children(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "p.db"
    await story(world)
    await finish(world.log, path)
    with Store.open(path) as store:
        steps = read_steps(store.select, *NAME)
        signals = _signals(store)
        rows = {row.id: row for row in store.jobs()}
        (run,) = store.select("SELECT id, version, steps, steps_completed, children_open FROM runs")
        tree = store.select(
            "SELECT root_id, depth, id, parent_item FROM run_tree ORDER BY depth, parent_item"
        )
        alone = [row.id for row in store.jobs(members=False)]
    assert [(row.key, row.kind, row.status, row.tries) for row in steps] == [
        ("charge", "step", "completed", 2),
        ("approved", "wait", "completed", 1),
        ("pages", "map", "completed", 1),
        ("report", "step", "retrying", 0),  # its attempt failed: the next one tries it anew
    ]
    found = by_key(steps)
    assert (found["charge"].started_at, found["charge"].finished_at) == (
        "2026-01-02T08:00:00.500000Z",
        "2026-01-02T08:00:02.000000Z",
    )
    assert (found["charge"].result_bytes, found["charge"].attempt) == (len('"ch_77"'), 1)
    # From the step's beginning to its end, as is shown of all that waits; their events carry no duration.
    assert [found[key].duration_ms for key in ("charge", "approved", "pages")] == [1_500.0, 6_000.0, 18_000.0]
    assert (found["approved"].attempt, found["approved"].until) == (2, "2026-01-02T09:00:00.000000Z")
    pages = found["pages"]
    assert (pages.items, pages.items_completed, pages.items_failed, pages.items_open) == (3, 2, 1, 0)
    assert (found["report"].error_type, found["report"].finished_at) == ("ValueError", None)
    assert [(each.name, each.id, each.by, each.taken_by) for each in signals] == [
        ("other", "o-1", "eve", None),
        ("approved", "click-1", "eve", "approved"),
    ]
    assert (rows["order-77"].version, rows["order-77"].parent_id, rows["order-77"].awaiting) == (
        "2",
        None,
        None,
    )
    child = rows["order-77-3-1"]
    assert (child.parent_queue, child.parent_id, child.parent_step, child.parent_item) == (*NAME, "pages", 1)
    assert run == ("order-77", "2", 4, 3, 0)
    assert tree == [("order-77", 0, "order-77", None)] + [
        ("order-77", 1, f"order-77-3-{item}", item) for item in range(3)
    ]
    assert alone == ["order-77"]


async def test_rows_of_runs_are_the_same_however_events_are_cut(tmp_path: Path) -> None:
    world = World()
    await story(world)
    await rebuild(world.log, tmp_path / "whole.db")

    async def cut(events: int, jobs: int) -> None:
        path = tmp_path / f"{events}-{jobs}.db"
        await finish(
            world.log, path, ProjectorConfig(batch_events_max=events, cache_jobs_max=jobs, linger_s=0.0)
        )
        assert difference(path, tmp_path / "whole.db") is None

    for events, jobs in ((1, 1), (1, 100), (2, 1), (3, 100), (7, 1), (20, 2)):
        await cut(events, jobs)


async def test_the_projection_says_of_a_run_what_its_chain_says_after_each_event(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "p.db"
    await story(world)
    history = await world.log.read_chain(world.log.names.chain(RUN))
    awaiting: dict[str, str | None] = {}
    head = (await world.log.head()).last_sequence
    with Projector(world.log, path) as projector:
        for sequence in range(1, head + 1):
            await projector.catch_up(until=sequence)
            seen = [stored for stored in history if stored.stream_sequence <= sequence]
            told = recorded(seen)
            with Store.open(path) as store:
                assert read_steps(store.select, *NAME) == told.steps
                assert _signals(store) == told.signals
                row = store.job(*NAME)
            assert row is not None
            awaiting[row.awaiting or row.status] = row.awaiting
    assert list(awaiting) == ["queued", "running", "signal", "operator", "children", "retry_wait"]


async def test_a_tree_shows_runs_below_runs_and_a_child_that_completed_too_late(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "p.db"
    await story(world)
    await finish(world.log, path)
    with Store.open(path) as store:
        tree = run_tree(store, "order-7")
    pages = {each.step.key: each for each in tree.steps}["pages"]
    assert [(child.id, child.status, child.late) for child in pages.children] == [
        ("order-77-3-0", "completed", False),
        ("order-77-3-1", "completed", True),
        ("order-77-3-2", "completed", False),
    ]
    assert (tree.undos, pages.hidden) == (0, 0)  # its newest pause named no undo


async def test_steps_joins_and_waits_of_runs_are_counted_once_however_events_are_cut(tmp_path: Path) -> None:
    world = World()
    await story(world)
    await finish(world.log, tmp_path / "p.db", ProjectorConfig(batch_events_max=2, cache_jobs_max=1))
    with Store.open(tmp_path / "p.db") as store:
        running = read_running(store, 200)
        folded = read_running(store, 2)
    completed, failed, retried = 0, 1, 2
    charge, report = running.steps["orders", "charge"], running.steps["orders", "report"]
    assert (charge[completed], *charge[-3:]) == (1, 1, 1_500_000, '[1500000,1500000,{"1610510":1}]')
    assert (report[failed], report[retried], report[-3]) == (1, 1, 0)
    assert (running.steps["orders", "approved"][completed], running.steps["orders", "approved"][-3]) == (1, 0)
    joins, children_completed, children_failed, diverged = running.runs["orders",][:4]
    assert (joins, children_completed, children_failed, diverged) == (3, 2, 1, 0)
    # The first child ended four seconds before it was counted, the others two and one.
    assert running.runs["orders",][-3:-1] == (3, 7_000_000)
    assert running.waiting == dict.fromkeys(AWAITED, 0)
    assert (len(folded.steps), folded.steps_folded) == (3, 2)
    metrics = {metric.name: metric for metric in running_metrics(running)}
    assert set(metrics) == {
        "jobledger_steps",
        "jobledger_step_run_seconds",
        "jobledger_joins",
        "jobledger_children_joined",
        "jobledger_join_lag_seconds",
        "jobledger_runs_waiting",
        "jobledger_runs_diverged",
    }
