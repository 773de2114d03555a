"""Runs in each kind of wait, their events appended by hand: what a worker that has their code would append."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
from tests.support.runs import of_holder, step

from jobledger.ledger import Ledger
from jobledger.ledger.model.commands import (
    Claim,
    Command,
    CompleteStep,
    Enqueue,
    FailStep,
    Pause,
    StartStep,
)
from jobledger.ledger.model.events import ErrorInfo, Member, Order
from jobledger.ledger.model.graphs.spec import GraphNode, GraphSpec
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import (
    BATCH_CLOSED,
    BATCH_STEP,
    RUN_BATCH,
    ChildNode,
    ChildOrder,
    OnDeadLetter,
    child_id,
)
from jobledger.ledger.model.subjects import JobRef

QUEUE = "orders"
BOOM = ErrorInfo(kind="exception", type="ConnectionError", message="the bank does not answer")


def ref_of(job_id: str) -> JobRef:
    return JobRef(queue=QUEUE, job_id=job_id)


async def do(ledger: Ledger, job_id: str, command: Command, *, queue: str = QUEUE) -> Job:
    """Record what follows from a command; one of the claim's holder is by the claim that holds."""
    ref = JobRef(queue=queue, job_id=job_id)
    job = await (await ledger.job(job_id, queue=queue)).snapshot()
    return await ledger.execute(ref, of_holder(command, job), by="w1")


async def running(
    ledger: Ledger, job_id: str, *, task: str = "order", given: bytes = b"{}", **order: Any
) -> None:
    """Begin a run that has done its first step, `charge`."""
    ref = ref_of(job_id)
    whole = Order(input=msgspec.Raw(given), max_attempts=9, **order)
    await ledger.execute(ref, Enqueue(ref=ref, task=task, order=whole))
    await do(ledger, job_id, Claim(worker="w1", lease_s=600))
    result = msgspec.Raw(b'"ch_77"')
    await do(ledger, job_id, step(CompleteStep, "charge", result=result, tries=2, duration_ms=1_200.0))


async def for_signal(ledger: Ledger, job_id: str, *, days: float = 3.0) -> None:
    """Let a run wait for signal `approved`; its undo is registered."""
    await running(ledger, job_id, version="2")
    until = ledger.clock.now() + timedelta(days=days)
    await do(ledger, job_id, step(StartStep, "approved", kind="wait", until=until))
    await do(ledger, job_id, Pause(epoch=0, steps=("approved",), until=until, undos=1))


async def for_time(ledger: Ledger, job_id: str) -> None:
    """Let a run sleep for a day."""
    await running(ledger, job_id)
    until = ledger.clock.now() + timedelta(days=1)
    await do(ledger, job_id, step(StartStep, "sleep", kind="sleep", until=until))
    await do(ledger, job_id, Pause(epoch=0, steps=("sleep",), until=until))


async def for_retry(ledger: Ledger, job_id: str) -> None:
    """Let a run wait for the next try of step `wire`."""
    await running(ledger, job_id)
    at = ledger.clock.now() + timedelta(minutes=5)
    await do(ledger, job_id, step(FailStep, "wire", error=BOOM, retry_at=at))
    await do(ledger, job_id, Pause(epoch=0, steps=("wire",), until=at))


async def for_children(
    ledger: Ledger, job_id: str, *, count: int = 4, made: int = 3, on_dead_letter: OnDeadLetter = "fail"
) -> None:
    """Let a run wait for children of task `fetch`, of which some were made."""
    await running(ledger, job_id)
    order = ChildOrder(task="fetch", queue="pages", count=count, limit=made, on_dead_letter=on_dead_letter)
    items = msgspec.Raw(msgspec.json.encode([{"n": n} for n in range(count)]))
    await do(ledger, job_id, step(StartStep, "pages", kind="map", target="fetch", order=order, items=items))
    await do(ledger, job_id, Pause(epoch=0, steps=("pages",)))
    for item in range(made):
        await child(ledger, job_id, item)


async def child(ledger: Ledger, job_id: str, item: int, *, step_number: int = 2, **order: Any) -> JobRef:
    """Make a child of step `pages` of a run."""
    ref = JobRef(queue="pages", job_id=child_id(job_id, step_number, item))
    member = Member(queue=QUEUE, job=job_id, step="pages", item=item)
    whole = Order(input=msgspec.Raw(b"{}"), member=member, **order)
    await ledger.execute(ref, Enqueue(ref=ref, task="fetch", order=whole))
    return ref


async def for_graph(ledger: Ledger, job_id: str) -> None:
    """Let a run wait for a diamond of four jobs."""
    after = ((), (0,), (0,), (1, 2))
    nodes = tuple(ChildNode(task=task, queue="pages") for task in ("plan", "fetch", "fetch", "merge"))
    labels = ("plan", "fetch", "fetch#2", "merge")
    graph = GraphSpec(
        name="nightly",
        nodes=tuple(GraphNode(label=label, node=node) for label, node in zip(labels, nodes, strict=True)),
    )
    await running(ledger, job_id, given=msgspec.json.encode({"graph": graph}))
    order = ChildOrder(task="graph", queue="pages", count=4, after=after, nodes=nodes)
    await do(ledger, job_id, step(StartStep, "nightly", kind="graph", target="nightly", order=order))
    await do(ledger, job_id, Pause(epoch=0, steps=("nightly",)))


async def for_batch(ledger: Ledger, job_id: str) -> None:
    """Let a batch wait for the client that makes its jobs."""
    await running(ledger, job_id, task=RUN_BATCH)
    order = ChildOrder(task="mail", queue="pages", count=0, is_open=True)
    await do(ledger, job_id, step(StartStep, BATCH_STEP, kind="map", target="mail", order=order))
    await do(ledger, job_id, step(StartStep, BATCH_CLOSED, kind="wait"))
    await do(ledger, job_id, Pause(epoch=0, steps=(BATCH_CLOSED,)))


async def plain(ledger: Ledger, job_id: str) -> None:
    """Make a job that is no run."""
    ref = ref_of(job_id)
    await ledger.execute(ref, Enqueue(ref=ref, task="send", order=Order(input=msgspec.Raw(b"{}"))))
