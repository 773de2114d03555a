"""The seeded simulation of runs: no schedule breaks an invariant, and every bug that is planted is found.

A failure names its seed; `python -m tests.model.run_simulation --seed N` replays it with its events. `make simulate` goes
on where these schedules end. JOBLEDGER_SIM_COUNT shortens the test while you work on something else.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest
from tests.model.run_simulation.mutations import MUTATIONS, Planted, enqueue_without_a_look_back
from tests.model.run_simulation.others import SimReactor, ask
from tests.model.run_simulation.run import COUNT, run_one, run_seeds
from tests.model.run_simulation.stage import RUN, Stage

from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import CancelJob, Claim, Complete, Enqueue, Join, Pause, StartStep
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.runs.orders import ChildOrder
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.protocols import Client
from jobledger.workers.reactors.children.creation import ChildOpener

SEEDS_TO_FIND_A_BUG = 500
FIRST, SECOND = (JobRef(queue="children", job_id=f"r-1-{item}") for item in range(2))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What planted bugs log is not worth reading."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(disabled)


@pytest.mark.timeout(300)
def test_no_schedule_of_a_run_breaks_an_invariant(record_property: Callable[[str, object], None]) -> None:
    count = min(COUNT, int(os.environ.get("JOBLEDGER_SIM_COUNT", str(COUNT))))
    totals = run_seeds(range(count))
    assert totals.failed == [], totals.report()
    assert totals.schedules == count
    if count == COUNT:
        assert totals.states.keys() >= {"completed", "cancelled", "dead_lettered"}
    record_property("simulation of runs", totals.report())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("plant", MUTATIONS, ids=lambda plant: plant.__name__)
def test_a_bug_of_runs_is_found(plant: Callable[[], Planted]) -> None:
    with plant():
        totals = run_seeds(range(SEEDS_TO_FIND_A_BUG), failures_max=1)
    assert totals.failed, f"{totals.schedules} schedules did not find it"


def test_a_seed_is_one_schedule_of_a_run() -> None:
    assert run_one(5).trace == run_one(5).trace
    assert run_one(5).trace != run_one(6).trace


# What chance finds late.


class Told:
    """A run of two children, one at a time, that waits for them; told step by step, nobody dies."""

    def __init__(self) -> None:
        self.stage = stage = Stage(0)
        stage.death = stage.stale = stage.freeze = stage.hurry = 0.0
        order = ChildOrder(task="child", queue="children", count=2, limit=1)
        self.do(lambda client: ask(client, RUN, Enqueue(ref=RUN, task="run")))
        self.do(lambda client: ask(client, RUN, Claim(worker="w", lease_s=1.0)))
        start = StartStep(
            epoch=2, step="m", kind="map", target="child", order=order, items=msgspec.Raw(b"[{},{}]")
        )
        self.do(lambda client: ask(client, RUN, start))
        self.do(lambda client: self.open(client, 1))
        self.do(lambda client: ask(client, RUN, Pause(epoch=2, steps=("m",))))

    def close(self) -> None:
        """Let go of the world, which has been the running loop."""
        self.stage.world.end()

    def do(self, what: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        process, client = self.stage.process("p")
        self.stage.start(process, what(client))
        self.stage.drain()
        assert self.stage.errors == []

    async def open(self, client: Client, items: int) -> None:
        await ChildOpener(client).open(RUN, await load(client.log, RUN), "m", items, again=False)

    def deliver(self) -> None:
        for handed in list(self.stage.waiting.values()):
            process, client = self.stage.process("reactor")
            self.stage.start(process, SimReactor(self.stage, client).deal_with(process, handed))
            self.stage.drain()
        assert self.stage.errors == []
        assert not self.stage.waiting

    def end_first_child(self) -> None:
        self.do(lambda client: ask(client, FIRST, Claim(worker="w", lease_s=1.0)))
        epoch = self.stage.jobs[FIRST].claim_epoch
        self.do(lambda client: ask(client, FIRST, Complete(epoch=epoch)))


def test_whoever_finds_an_end_counted_makes_the_children_that_follow() -> None:
    """Another process got the end later, counted it and died; this one was asleep, and its ack counts for both."""
    with contextlib.closing(Told()) as told:
        told.end_first_child()
        told.do(lambda client: ask(client, RUN, Join(step="m", completed=((0, 0),))))
        assert SECOND not in told.stage.jobs
        told.deliver()
        assert told.stage.jobs[SECOND].state is JobState.QUEUED


def late_child() -> JobState:
    """Let a run be cancelled, and its children, between the event that opens a child and its making."""
    with contextlib.closing(Told()) as told:
        told.end_first_child()
        told.do(lambda client: ask(client, RUN, Join(step="m", completed=((0, 0),))))

        async def slow(client: Client) -> None:
            view = await load(client.log, RUN)
            await ask(client, RUN, CancelJob())
            process, other = told.stage.process("reactor")
            handed = list(told.stage.waiting.values())[-1]
            await SimReactor(told.stage, other).deal_with(process, handed)
            await ChildOpener(client).open(RUN, view, "m", 2, again=False)

        told.do(slow)
        return told.stage.jobs[SECOND].state


def test_a_child_that_is_made_after_its_run_has_ended_ends_at_once() -> None:
    assert late_child() is JobState.CANCELLED
    with enqueue_without_a_look_back():
        assert late_child() is JobState.QUEUED, "the planted bug is not found"
