"""Graphs and batches that must type-check; checked by test_typing.py, never run."""

from __future__ import annotations

from typing import Any, assert_type

from jobledger.ledger import BulkResult, Graph, JobHandle, Ledger, Retry, sync, task


@task(queue="web")
async def fetch(page: int, size: int = 100) -> list[str] | Retry:
    return [str(page)] * size


@task
def merge(a: list[str], b: list[str]) -> int:
    return len(a) + len(b)


@task
async def report(batch: str, counts: dict[str, int]) -> None:
    assert counts[batch]


def use_blocking(ledger: sync.Ledger) -> None:
    graph = Graph("nightly")
    graph.add(fetch, 1)
    assert_type(ledger.run_graph(graph), sync.JobHandle[dict[str, Any]])
    assert_type(ledger.enqueue_many(fetch, [{"page": 1}], batch="b", on_end=report), BulkResult)
    ledger.schedules.add("nightly", graph, on_demand=True)


async def use(ledger: Ledger) -> None:
    graph = Graph("nightly", limit=5, on_failure="continue")
    page = graph.add(fetch, 1)
    assert_type(page, list[str])
    total = graph.add(merge, page, b=graph.add(fetch.options(queue="slow"), 2, size=3))
    assert_type(total, int)
    assert_type(graph.after(total, always=True).add(merge, page, page), int)
    graph.edge(page, total)
    assert_type(await ledger.run_graph(graph, id="n"), JobHandle[dict[str, Any]])
    await ledger.schedules.add("nightly", graph, cron="30 2 * * *", replace=True)
    assert_type(await ledger.enqueue_many(fetch, [{"page": 1}], batch="b", on_end=report), BulkResult)
