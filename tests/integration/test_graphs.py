"""Graphs on a real server: nodes over several queues, results passed on, failures, and workers without slots to spare."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.groups import Groups
from tests.support.working import LIMIT_S, ended, types, working

from jobledger.audit.verify import verify
from jobledger.ledger import (
    Graph,
    InvalidInputError,
    JobFailedError,
    JobState,
    Ledger,
    Limit,
    ScheduleExistsError,
    ScheduleNotFoundError,
    sync,
    task,
)
from jobledger.ledger.model.commands import Claim, TakeOver
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE

pytestmark = pytest.mark.anyio


@task(queue="web")
async def fetch(page: int) -> list[str]:
    return [f"{page}.{n}" for n in range(page)]


@task(queue="merge")
def merge(a: list[str], b: list[str], *, sep: str = "") -> str:
    return sep.join(a + b)


@task(queue="web", max_attempts=1)
async def fail(why: str) -> int:
    raise ValueError(why)


@task(queue="mail")
async def tell(lines: list[str | None]) -> int:
    return len([line for line in lines if line])


@task(queue="mail")
async def tidy() -> str:
    return "tidy"


@task(queue="mail")
async def count(batch: str, counts: dict[str, int]) -> str:
    return f"{batch}: {sum(counts.values())}"


ALL = (fetch, merge, fail, tell, tidy)


async def test_a_graph_passes_results_on_over_several_queues_and_returns_those_of_all(ledger: Ledger) -> None:
    graph = Graph("nightly", limit=2)
    text = graph.add(merge, graph.add(fetch, 2), graph.add(fetch, 1), sep="+")
    graph.after(text).add(tidy)
    graph.add(tell, [text, "x"])
    async with working(ledger, *ALL):
        job = await ledger.run_graph(graph, id="nightly-1")
        assert await job.result(timeout_s=LIMIT_S) == {
            "fetch": ["2.0", "2.1"],
            "fetch#2": ["1.0"],
            "merge": "2.0+2.1+1.0",
            "tidy": "tidy",
            "tell": 2,
        }
        again = await ledger.run_graph(graph, id="nightly-1")
    assert (job.ref.queue, again.created) == (BUILT_IN_QUEUE, False)
    found = await Groups.of(ledger.log)
    assert (found.wrong, found.made["nightly-1"], found.peaks["nightly-1", "nightly"]) == ([], 5, 2)
    assert (await verify(ledger.log)).violations == ()


async def test_a_failed_node_is_named_and_stops_all_but_what_runs_always(ledger: Ledger) -> None:
    graph = Graph("g", on_dead_letter="fail")
    broken = graph.add(fail, "broken")
    graph.add(tell, [])
    after = graph.after(broken).add(tidy)
    graph.after(broken, after, always=True).add(tidy)
    async with working(ledger, *ALL):
        job = await ledger.run_graph(graph)
        with pytest.raises(JobFailedError, match="node fail: ValueError: broken"):
            await job.result(timeout_s=LIMIT_S)
    found = await Groups.of(ledger.log)
    children = {each.id: each.state for each in found.jobs.values() if each.member is not None}
    assert found.wrong == []
    assert children[f"{job.id}-1-3-of-jobledger"] is JobState.COMPLETED
    assert f"{job.id}-1-2-of-jobledger" not in children
    assert (await job.snapshot()).state is JobState.DEAD_LETTERED
    assert (await types(job)).count("started") <= 2


async def test_a_graph_that_continues_runs_all_that_waits_for_no_failed_node(ledger: Ledger) -> None:
    graph = Graph("g", limit=1, on_failure="continue", on_dead_letter="fail")
    broken: Any = graph.add(fail, "broken")
    graph.add(tell, [broken])
    graph.add(merge, graph.add(fetch, 1), [])
    graph.after(broken, always=True).add(tidy)
    async with working(ledger, *ALL):
        job = await ledger.run_graph(graph)
        assert (await ended(job)).state is JobState.DEAD_LETTERED
    found = await Groups.of(ledger.log)
    ran = sorted(each.task for each in found.jobs.values() if each.member is not None)
    assert (found.wrong, ran) == ([], ["fail", "fetch", "merge", "tidy"])
    assert (await verify(ledger.log)).violations == ()


async def test_graphs_go_on_where_every_worker_has_one_slot(ledger: Ledger) -> None:
    graphs: list[Graph] = []
    for _ in range(5):
        graph = Graph("g", limit=3)
        pages = [graph.add(fetch, n) for n in range(6)]
        graph.add(merge, pages[4], pages[5])
        graphs.append(graph)
    async with working(ledger, *ALL, concurrency=1):
        jobs = [await ledger.run_graph(graph) for graph in graphs]
        for job in jobs:
            assert len(await job.result(timeout_s=LIMIT_S)) == 7
    assert (await Groups.of(ledger.log)).wrong == []


async def test_a_graph_that_is_stored_under_a_name_runs_whenever_its_schedule_says_so(ledger: Ledger) -> None:
    def graph(page: int) -> Graph:
        made = Graph("g")
        made.add(merge.options(limits=[Limit("merges", slots=2)]), made.add(fetch, page), [])
        return made

    stored = await ledger.schedules.add("nightly", graph(2), cron="30 2 * * *")
    again = await ledger.schedules.add("nightly", graph(2), cron="30 2 * * *")
    await ledger.schedules.add("by-hand", graph(1), on_demand=True)
    assert (again, stored.definition.queue) == (stored, BUILT_IN_QUEUE)
    assert await ledger.schedules.next("by-hand") == []
    with pytest.raises(ScheduleExistsError):
        await ledger.schedules.add("nightly", graph(3), cron="30 2 * * *")
    with pytest.raises(InvalidInputError, match="leave input out"):
        await ledger.schedules.add("other", graph(3), input={}, on_demand=True)
    with pytest.raises(ScheduleNotFoundError, match="nigthly"):
        await ledger.schedules.trigger("nigthly")
    async with working(ledger, *ALL):
        for name, lines in (("nightly", ["2.0", "2.1"]), ("by-hand", ["1.0"])):
            job = await ledger.job(await ledger.schedules.trigger(name))
            assert await job.result(timeout_s=LIMIT_S) == {"fetch": lines, "merge": "".join(lines)}
    assert (await verify(ledger.log)).violations == ()


async def test_blocking_code_runs_graphs_and_batches(ledger: Ledger) -> None:
    graph = Graph("g", on_dead_letter="fail")
    graph.add(fetch, 1)

    def call() -> list[Any]:
        config = ledger.config
        with sync.connect(config.url, environment=config.environment, create=False) as blocking:
            run = blocking.run_graph(graph, id="g-1")
            pages = ({"page": page} for page in range(3))
            made = blocking.enqueue_many(fetch, pages, batch="pages", on_end=count)
            blocking.schedules.add("stored", graph, on_demand=True)
            stored = blocking.job(blocking.schedules.trigger("stored"))
            ends = [blocking.job(name).result(timeout_s=LIMIT_S) for name in ("pages", "pages-end")]
            return [run.result(timeout_s=LIMIT_S), stored.result(timeout_s=LIMIT_S), made.created, *ends]

    async with working(ledger, *ALL, count):
        found = await asyncio.to_thread(call)
    result = {"fetch": ["1.0"]}
    assert found == [result, result, 3, {"completed": 3}, "pages: 3"]


async def test_a_graph_and_a_batch_outlive_many_workers_that_die_before_they_wait(ledger: Ledger) -> None:
    graph = Graph("g", on_dead_letter="fail")
    graph.add(tidy)
    job = await ledger.run_graph(graph)
    await ledger.enqueue_many(tidy, [{}], batch="b")
    batch = await ledger.job("b")
    for run in (job, batch):
        claimed = await ledger.execute(run.ref, Claim(worker="dead-0", lease_s=1))
        for number in range(1, 20):
            command = TakeOver(worker=f"dead-{number}", lease_s=1, lost_epoch=claimed.claim_epoch)
            claimed = await ledger.execute(run.ref, command)
    async with working(ledger, *ALL):
        assert await job.result(timeout_s=LIMIT_S) == {"tidy": "tidy"}
        assert await batch.result(timeout_s=LIMIT_S) == {"completed": 1}


async def test_a_graph_without_nodes_is_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidInputError, match="graph g has 0 nodes"):
        await ledger.run_graph(Graph("g"))
    assert (await ledger.log.head()).last_sequence == 0
