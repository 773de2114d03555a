"""The reactor of runs' children on a real server: ends are counted once, children opened once, runs woken once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.groups import KEY, Groups, begin
from tests.support.jetstream import api
from tests.support.limited import define
from tests.support.stranded import reacting
from tests.support.working import LIMIT_S, Connect, becomes, ended, types, working

from jobledger.audit.verify import verify
from jobledger.ledger import JobHandle, JobState, Ledger, task
from jobledger.ledger.children import child_ref
from jobledger.ledger.model.chain import JobView, load
from jobledger.ledger.model.commands import Claim, Complete, Discard, Enqueue, Pause, RequestPause, ResumeJob
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import Order, Queued
from jobledger.ledger.model.job import OPERATOR, Job
from jobledger.ledger.model.runs.orders import ChildNode, ChildOrder, Take, items_of
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import CHILDREN_CONSUMER, JobRef
from jobledger.workers.reactors.children.creation import ChildIdTakenError, ChildOpener
from jobledger.workers.reactors.children.reach import ChildFollower
from jobledger.workers.reactors.children.reactor import ChildrenReactor

pytestmark = pytest.mark.anyio


@task(queue="pages", max_attempts=1)
async def fetch(n: int, fails: bool = False) -> int:
    if fails:
        raise ValueError(n)
    return n * n


def pages(count: int, **changes: Any) -> ChildOrder:
    return ChildOrder(task=fetch.name, queue="pages", count=count, **changes)


async def step_of(run: JobHandle[Any]) -> Step:
    return (await run.snapshot()).steps[KEY]


async def open_all(ledger: Ledger, run: JobHandle[Any], *, again: bool = False) -> None:
    """Make the children that may exist, as the holder of the claim does."""
    view = await load(ledger.log, run.ref)
    assert view.job is not None
    await ChildOpener(ledger).open(run.ref, view, KEY, view.job.steps[KEY].open, again=again)


async def child(ledger: Ledger, run: JobHandle[Any], item: int) -> JobHandle[Any]:
    return ledger.handle_of(child_ref(run.ref, await step_of(run), item))


async def finish(ledger: Ledger, *jobs: JobHandle[Any]) -> None:
    """Let jobs complete, without a worker."""
    for job in jobs:
        claimed = await ledger.execute(job.ref, Claim(worker="w", lease_s=15))
        await ledger.execute(job.ref, Complete(epoch=claimed.claim_epoch))


async def wakes(run: JobHandle[Any]) -> int:
    """Return how often the run was woken."""
    return sum(
        isinstance(each.event, Queued) and each.event.cause == "resumed" for each in await run.history()
    )


@pytest.mark.parametrize("limit", [0, 1, 7])
async def test_a_map_runs_each_child_once_within_its_limit_and_wakes_its_run_once(
    ledger: Ledger, limit: int
) -> None:
    run = await begin(ledger, pages(30, limit=limit))
    async with working(ledger, fetch, concurrency=10):
        await open_all(ledger, run)
        job = await becomes(run, JobState.QUEUED)
    found = await Groups.of(ledger.log)
    assert found.wrong == []
    assert (found.made[run.id], len(found.counted), await wakes(run)) == (30, 30, 1)
    assert found.peaks[run.id, KEY] == limit or not limit
    assert job.steps[KEY].is_joined
    first = await (await child(ledger, run, 4)).result(timeout_s=LIMIT_S)
    assert first == 16
    assert (await (await child(ledger, run, 4)).snapshot()).order.correlation == run.id


async def test_a_graph_opens_each_item_once_those_before_it_have_ended(ledger: Ledger) -> None:
    run = await begin(ledger, pages(5, after=((), (0,), (0,), (0,), (1, 2, 3)), limit=2))
    async with working(ledger, fetch, concurrency=10):
        await open_all(ledger, run)
        await becomes(run, JobState.QUEUED)
    found = await Groups.of(ledger.log)
    assert (found.wrong, found.made[run.id], len(found.counted)) == ([], 5, 5)
    assert found.peaks[run.id, KEY] == 2


async def test_results_of_a_graphs_nodes_go_into_the_inputs_of_those_that_take_them(ledger: Ledger) -> None:
    @task(queue="sums")
    async def add(parts: list[int | None], name: str = "") -> int:
        return sum(part or 0 for part in parts)

    fails = ChildNode(task=fetch.name, queue="pages")
    takes = (Take(at=("parts", 0), of=0), Take(at=("parts", 2), of=1))
    nodes = (fails, fails, ChildNode(task=add.name, queue="sums", takes=takes))
    order = pages(3, after=((), (), (0, 1)), always=(2,), nodes=nodes, on_failure="collect")
    run = await begin(ledger, order, [{"n": 5}, {"n": 1, "fails": True}, {"parts": [None, 7, None]}])
    async with working(ledger, fetch, add):
        await open_all(ledger, run)
        await becomes(run, JobState.QUEUED)
        assert await (await child(ledger, run, 2)).result(timeout_s=LIMIT_S) == 25 + 7
    assert (await Groups.of(ledger.log)).wrong == []


async def test_two_reactors_that_hear_of_the_last_two_ends_at_once_wake_the_run_once(
    connected: Connect,
) -> None:
    async with connected() as one, connected() as two:
        runs = [await begin(one, pages(2)) for _ in range(20)]
        for run in runs:
            await open_all(one, run)
            await finish(one, *[await child(one, run, item) for item in range(2)])
        async with reacting(ChildrenReactor(one), ledger=one), reacting(ChildrenReactor(two), ledger=two):
            for run in runs:
                await becomes(run, JobState.QUEUED)
        found = await Groups.of(one.log)
        assert found.wrong == []
        assert [await wakes(run) for run in runs] == [1] * 20


class Stopping(ChildOpener):
    """Comes no further than to the moment between counting ends and enqueueing what they open."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.reached = asyncio.Event()

    async def open(self, *_: Any, **__: Any) -> JobView:
        self.reached.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_what_a_reactor_counted_before_it_died_the_next_one_opens(connected: Connect) -> None:
    async with connected() as one, connected() as two:
        run = await begin(one, pages(6, limit=2))
        await open_all(one, run)
        await finish(one, await child(one, run, 0))
        stopping = Stopping(one)
        async with reacting(ChildrenReactor(one, stopping), ledger=one), asyncio.timeout(LIMIT_S):
            await stopping.reached.wait()
        assert (await step_of(run)).opened == 0b111  # counted, and nobody made it
        assert (await Groups.of(one.log)).made[run.id] == 2
        async with working(two, fetch, concurrency=10):
            await becomes(run, JobState.QUEUED)
        found = await Groups.of(one.log)
        assert (found.wrong, found.made[run.id], len(found.counted), await wakes(run)) == ([], 6, 6, 1)
        assert (await verify(one.log)).violations == ()


async def test_a_holder_that_died_before_it_made_its_children_is_followed_by_the_next(ledger: Ledger) -> None:
    run = await begin(ledger, pages(5), parks=False)
    opening = ChildOpener(ledger)
    view = await load(ledger.log, run.ref)
    await opening.open(run.ref, view, KEY, 0b00101, again=False)  # it died here
    await opening.open(run.ref, view, KEY, 0b11111, again=True)
    await opening.open(run.ref, view, KEY, 0b11111, again=False)  # whoever comes second leaves them alone
    assert (await Groups.of(ledger.log)).made[run.id] == 5


async def test_a_cancelled_run_cancels_its_open_children_those_that_wait_and_those_that_run(
    ledger: Ledger,
) -> None:
    begun = asyncio.Event()

    @task(name=fetch.name, queue="pages")
    async def slow(n: int) -> None:
        begun.set()
        await asyncio.sleep(LIMIT_S)

    run = await begin(ledger, pages(4))
    kept = await begin(ledger, pages(1, on_parent_end="abandon"))
    async with working(ledger, slow, concurrency=1, cancel_grace_s=1.0):
        await open_all(ledger, run)
        await open_all(ledger, kept)
        await begun.wait()
        await run.cancel(reason="enough")
        await kept.cancel()
        children = [await child(ledger, run, item) for item in range(4)]
        states = [(await ended(each)).state for each in children]
        assert states == [JobState.CANCELLED] * 4
        said = (await children[3].snapshot()).cancel_reason
    assert said == f"its run {run.id} was cancelled"
    assert not (await (await child(ledger, kept, 0)).snapshot()).is_final
    assert (await Groups.of(ledger.log)).wrong == []


class Late(ChildOpener):
    """Enqueues only when it is told to."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def _enqueue(self, ref: JobRef, job: Job, step: Step, items: int) -> None:
        self.reached.set()
        await self.go_on.wait()
        await super()._enqueue(ref, job, step, items)


async def test_a_child_that_is_enqueued_after_its_run_was_cancelled_and_swept_is_cancelled_too(
    ledger: Ledger,
) -> None:
    run = await begin(ledger, pages(3, limit=1))
    await open_all(ledger, run)
    await finish(ledger, await child(ledger, run, 0))
    late = Late(ledger)
    async with reacting(ChildrenReactor(ledger, late), ledger=ledger), asyncio.timeout(LIMIT_S):
        await late.reached.wait()
        await run.cancel()
        consumer = f"CONSUMER.INFO.{ledger.names.ledger_stream}.{CHILDREN_CONSUMER}"
        while (info := await api(ledger.inbox, consumer, {}))["num_pending"] or info["num_ack_pending"] > 1:
            await asyncio.sleep(0.01)  # until the sweep is done
        late.go_on.set()
        job = await becomes(await child(ledger, run, 1), JobState.CANCELLED)
    assert await types(await child(ledger, run, 1)) == ["queued", "cancelled"]
    assert job.cancel_reason == f"its run {run.id} was cancelled"


async def test_children_pause_and_go_on_with_their_run_but_for_those_that_a_person_paused(
    ledger: Ledger,
) -> None:
    run = await begin(ledger, pages(4, limit=3, on_failure="collect"))
    await open_all(ledger, run)
    children = [await child(ledger, run, item) for item in range(3)]
    await ledger.execute(children[1].ref, RequestPause(reason="mine"))
    async with reacting(ChildrenReactor(ledger), ledger=ledger):
        await ledger.execute(run.ref, RequestPause())
        for each in children:
            await becomes(each, JobState.PAUSED)
        await children[0].cancel()  # counted, and makes room that nobody takes while the run is paused
        await _is_settled(ledger)
        paused = await run.snapshot()
        assert (paused.state, items_of(paused.steps[KEY].opened)) == (JobState.PAUSED, [0, 1, 2])
        await ChildFollower(ledger).resume(run.ref, paused)
        resumed = await ledger.execute(run.ref, ResumeJob())
        await _is_settled(ledger)
        states = [(await each.snapshot()).state for each in children]
    assert states == [JobState.CANCELLED, JobState.PAUSED, JobState.QUEUED]
    assert resumed.state is JobState.QUEUED  # to open the next one
    await ledger.execute(run.ref, Claim(worker="w", lease_s=15))
    await open_all(ledger, run, again=True)
    assert items_of((await step_of(run)).opened) == [0, 1, 2, 3]
    assert (await Groups.of(ledger.log)).made[run.id] == 4


async def test_a_child_that_is_enqueued_after_its_run_paused_pauses_too(ledger: Ledger) -> None:
    run = await begin(ledger, pages(3, limit=1))
    await open_all(ledger, run)
    await finish(ledger, await child(ledger, run, 0))
    late = Late(ledger)
    async with reacting(ChildrenReactor(ledger, late), ledger=ledger), asyncio.timeout(LIMIT_S):
        await late.reached.wait()
        await ledger.execute(run.ref, RequestPause())
        late.go_on.set()
        await _is_there(await child(ledger, run, 1))
        await becomes(await child(ledger, run, 1), JobState.PAUSED)


async def test_a_child_that_obeys_a_pause_after_its_run_goes_on_again_goes_on_too(ledger: Ledger) -> None:
    run = await begin(ledger, pages(1))
    await open_all(ledger, run)
    only = await child(ledger, run, 0)
    claimed = await ledger.execute(only.ref, Claim(worker="w", lease_s=15))
    async with reacting(ChildrenReactor(ledger), ledger=ledger):
        await ledger.execute(run.ref, RequestPause())
        async with asyncio.timeout(LIMIT_S):
            while not (await only.snapshot()).pause_requested:
                await asyncio.sleep(0.01)
        await ChildFollower(ledger).resume(run.ref, await run.snapshot())
        await ledger.execute(run.ref, ResumeJob())
        await ledger.execute(only.ref, Pause(epoch=claimed.claim_epoch, event=OPERATOR))  # only now
        await becomes(only, JobState.QUEUED)


async def _is_there(job: JobHandle[Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await job._client.log.newest_sequence(job._client.log.names.chain(job.ref)):
            await asyncio.sleep(0.01)


async def test_a_group_that_stops_opens_nothing_after_a_failure_and_one_that_collects_goes_on(
    ledger: Ledger,
) -> None:
    given = [{"n": n, "fails": n == 1} for n in range(6)]
    stops = await begin(ledger, pages(6, limit=1), given)
    collects = await begin(ledger, pages(6, limit=2, on_failure="collect"), given)
    async with working(ledger, fetch):
        for run in (stops, collects):
            await open_all(ledger, run)
        stopped = (await becomes(stops, JobState.QUEUED)).steps[KEY]
        collected = (await becomes(collects, JobState.QUEUED)).steps[KEY]
    assert (items_of(stopped.opened), items_of(stopped.failed)) == ([0, 1], [1])
    assert (len(items_of(collected.ended)), items_of(collected.failed)) == (6, [1])
    found = await Groups.of(ledger.log)
    assert found.wrong == []
    buried = await child(ledger, stops, 1)
    await ledger.execute(buried.ref, Discard())  # told already
    async with working(ledger, fetch):
        await _is_settled(ledger)
    assert (await Groups.of(ledger.log)).counted == found.counted


async def _is_settled(ledger: Ledger) -> None:
    consumer = f"CONSUMER.INFO.{ledger.names.ledger_stream}.{CHILDREN_CONSUMER}"
    async with asyncio.timeout(LIMIT_S):
        while True:
            info = await api(ledger.inbox, consumer, {})
            if not info["num_pending"] and not info["num_ack_pending"]:
                return
            await asyncio.sleep(0.01)


async def test_a_child_whose_id_somebody_gave_away_is_refused_by_name(ledger: Ledger) -> None:
    run = await begin(ledger, pages(3), parks=False)
    other = (await child(ledger, run, 1)).ref
    await ledger.execute(other, Enqueue(ref=other, task=fetch.name, order=Order(input=NO_VALUE)))
    with pytest.raises(ChildIdTakenError, match=f"job pages/{run.id}-1-1 is not the child of run {run.id}"):
        await open_all(ledger, run)
    assert (await Groups.of(ledger.log)).made[run.id] == 2  # the others are there


async def test_inputs_of_a_large_group_are_read_from_where_they_lie(ledger: Ledger) -> None:
    run = await begin(ledger, pages(3, limit=1), [{"n": n, "fails": False} for n in range(3)])
    text = "x" * 30_000

    @task(queue="texts")
    async def length(text: str) -> int:
        return len(text)

    order = ChildOrder(task=length.name, queue="texts", count=5, limit=2)
    large = await begin(ledger, order, [{"text": text + "y" * n} for n in range(5)])
    assert (await step_of(large)).items_ref is not None
    async with working(ledger, fetch, length):
        await open_all(ledger, run)
        await open_all(ledger, large)
        await becomes(large, JobState.QUEUED)
        results = [await (await child(ledger, large, n)).result(timeout_s=LIMIT_S) for n in range(5)]
    assert results == [30_000 + n for n in range(5)]


async def test_children_that_wait_for_a_limit_count_as_open(ledger: Ledger) -> None:
    await define(ledger, "site", slots=1)
    run = await begin(ledger, pages(12, limit=4, limits=("site",)))
    async with working(ledger, fetch, concurrency=10):
        await open_all(ledger, run)
        await becomes(run, JobState.QUEUED)
    found = await Groups.of(ledger.log)
    assert (found.wrong, found.made[run.id], len(found.counted)) == ([], 12, 12)
    assert found.peaks[run.id, KEY] == 4


async def test_ordinary_jobs_are_never_delivered_to_the_reactor(ledger: Ledger) -> None:
    @task(queue="plain")
    async def plain() -> None:
        return None

    async with working(ledger, plain):
        jobs = [await ledger.enqueue(plain) for _ in range(30)]
        for job in jobs:
            await job.result(timeout_s=LIMIT_S)
        name = f"CONSUMER.INFO.{ledger.names.ledger_stream}.{CHILDREN_CONSUMER}"
        async with asyncio.timeout(LIMIT_S):
            while "error" in (info := await api(ledger.inbox, name, {})):
                await asyncio.sleep(0.02)
    assert (info["delivered"]["consumer_seq"], info["num_pending"]) == (0, 0)
