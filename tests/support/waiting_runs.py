"""Runs in each kind of wait, their events appended by hand: what a worker that has their code would append."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from tests.support.runs import of_holder, step

from jobledger.ledger import Ledger
from jobledger.ledger.model.clock import SystemClock
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    Command,
    CompleteStep,
    DeadLetter,
    Enqueue,
    FailStep,
    Join,
    Pause,
    RequestPause,
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
from jobledger.ledger.nats.leases import LeaseLostError, WorkerInfo

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


async def lease(ledger: Ledger, worker: str = "w1", *tasks: str) -> None:
    """Let a worker of the run's queue live."""
    now = ledger.clock.now()
    info = WorkerInfo(
        worker=worker, host="h", pid=1, queues=("orders",), started_at=now, renewed_at=now, tasks=tasks
    )
    with contextlib.suppress(LeaseLostError):  # it lives already
        await ledger.leases.renew(info, 0)


async def enqueued(ledger: Ledger, job_id: str, **order: Any) -> None:
    ref = ref_of(job_id)
    await ledger.execute(ref, Enqueue(ref=ref, task="order", order=Order(**order)))


async def limited(ledger: Ledger, job_id: str) -> None:
    await enqueued(ledger, job_id, limits=("tenant:acme",))


async def with_a_deadline(ledger: Ledger, job_id: str) -> None:
    await enqueued(ledger, job_id, deadline_s=3_600.0)


async def of_another_version(ledger: Ledger, job_id: str) -> None:
    await lease(ledger, "w2", "order", "order@1")
    await enqueued(ledger, job_id, version="2")


async def in_a_step(ledger: Ledger, job_id: str) -> None:
    await lease(ledger)
    await running(ledger, job_id)
    await do(ledger, job_id, step(StartStep, "wire", kind="once"))


async def asked_to_pause(ledger: Ledger, job_id: str) -> None:
    await running(ledger, job_id)
    await do(ledger, job_id, RequestPause())


async def asked_to_end(ledger: Ledger, job_id: str) -> None:
    await running(ledger, job_id)
    await do(ledger, job_id, CancelJob())


async def on_a_dead_worker(ledger: Ledger, job_id: str) -> None:
    await enqueued(ledger, job_id)
    await do(ledger, job_id, Claim(worker="dead", lease_s=1))


class Earlier(SystemClock):
    """A clock that is behind."""

    def now(self) -> datetime:
        return datetime.now(UTC) - timedelta(minutes=3)


async def late(ledger: Ledger, job_id: str) -> None:
    ledger.clock = Earlier()
    await running(ledger, job_id)
    until = ledger.clock.now() + timedelta(seconds=10)
    await do(ledger, job_id, step(StartStep, "sleep", kind="sleep", until=until))
    await do(ledger, job_id, Pause(epoch=0, steps=("sleep",), until=until))


async def for_a_call(ledger: Ledger, job_id: str) -> None:
    await running(ledger, job_id)
    order, items = ChildOrder(task="fetch", queue="pages", count=1), msgspec.Raw(b"[{}]")
    await do(ledger, job_id, step(StartStep, "pages", kind="call", target="fetch", order=order, items=items))
    await do(ledger, job_id, Pause(epoch=0, steps=("pages",)))
    await child(ledger, job_id, 0)


async def for_a_held_child(ledger: Ledger, job_id: str) -> None:
    await for_children(ledger, job_id, made=0, count=1)
    await child(ledger, job_id, 0, limits=("tenant:acme",))


async def fail_child(ledger: Ledger, job_id: str) -> None:
    """End the first child of a run as a dead letter, and count that."""
    await do(ledger, f"{job_id}-2-0", Claim(worker="w3", lease_s=600), queue="pages")
    dead = DeadLetter(reason="rejected", epoch=0, error=BOOM)
    await do(ledger, f"{job_id}-2-0", dead, queue="pages")
    await do(ledger, job_id, Join(step="pages", failed=((0, 0),)))


async def for_a_child_after_a_failed_one(ledger: Ledger, job_id: str) -> None:
    await for_children(ledger, job_id, count=3, made=2)
    await fail_child(ledger, job_id)


async def for_a_dead_child(ledger: Ledger, job_id: str) -> None:
    await for_children(ledger, job_id, count=3, made=3, on_dead_letter="wait")
    await do(ledger, f"{job_id}-2-1", Claim(worker="w3", lease_s=600), queue="pages")
    dead = DeadLetter(reason="rejected", epoch=0, error=BOOM)
    await do(ledger, f"{job_id}-2-1", dead, queue="pages")


async def dead_by_a_child(ledger: Ledger, job_id: str) -> None:
    await for_children(ledger, job_id, count=1, made=1)
    await fail_child(ledger, job_id)
    await do(ledger, job_id, Claim(worker="w1", lease_s=600))
    error = ErrorInfo(kind="exception", type="ChildFailedError", message="item 0 of step 'pages' failed")
    await do(ledger, job_id, DeadLetter(reason="rejected", epoch=0, error=error))


async def diverged(ledger: Ledger, job_id: str) -> None:
    await running(ledger, job_id)
    error = ErrorInfo(kind="exception", type="DivergedError", message="step 'wire' was recorded")
    await do(ledger, job_id, DeadLetter(reason="diverged", epoch=0, error=error))


async def paused(ledger: Ledger, job_id: str) -> None:
    await for_signal(ledger, job_id)
    await do(ledger, job_id, RequestPause(reason="the bank is closed"))


async def going_back(ledger: Ledger, job_id: str) -> None:
    await for_signal(ledger, job_id)
    await do(ledger, job_id, CancelJob(reason="the wrong order"))


async def between_tries_of_an_undo(ledger: Ledger, job_id: str) -> None:
    await going_back(ledger, job_id)
    await do(ledger, job_id, Claim(worker="w1", lease_s=600))
    at = ledger.clock.now() + timedelta(minutes=5)
    await do(ledger, job_id, step(FailStep, "undo/refund", kind="undo", error=BOOM, retry_at=at))
    await do(ledger, job_id, Pause(epoch=0, steps=("undo/refund",), until=at, undos=1))


async def for_two_things(ledger: Ledger, job_id: str) -> None:
    await running(ledger, job_id)
    until = ledger.clock.now() + timedelta(days=1)
    await do(ledger, job_id, step(StartStep, "yes/approved", kind="wait", target="approved"))
    await do(ledger, job_id, step(StartStep, "no/sleep", kind="sleep", until=until))
    await do(ledger, job_id, Pause(epoch=0, steps=("yes/approved", "no/sleep"), until=until))


async def own_batch(ledger: Ledger, job_id: str) -> None:
    """Let a batch wait in the queue of the ledger's own, where real ones are."""
    ref = JobRef(queue="jobledger", job_id=job_id)
    await ledger.execute(ref, Enqueue(ref=ref, task=RUN_BATCH, order=Order(input=msgspec.Raw(b"{}"))))
    order = ChildOrder(task="mail", queue="pages", count=0, is_open=True)
    for command in (
        Claim(worker="w1", lease_s=600),
        step(StartStep, BATCH_STEP, kind="map", target="mail", order=order),
        step(StartStep, BATCH_CLOSED, kind="wait"),
        Pause(epoch=0, steps=(BATCH_CLOSED,)),
    ):
        await do(ledger, job_id, command, queue=ref.queue)


async def own_dead_letter(ledger: Ledger, job_id: str) -> None:
    """End a batch as a dead letter."""
    await own_batch(ledger, job_id)
    ref = JobRef(queue="jobledger", job_id=job_id)
    await ledger.retry(ref)
    await do(ledger, job_id, DeadLetter(reason="max_deliver", epoch=0), queue=ref.queue)


async def scheduled(ledger: Ledger, job_id: str) -> None:
    ref = ref_of(job_id)
    order = Order(input=msgspec.Raw(b"{}"))
    at = ledger.clock.now() + timedelta(hours=1)
    await ledger.execute(ref, Enqueue(ref=ref, task="send", order=order, run_at=at))


async def claimed(ledger: Ledger, job_id: str) -> None:
    """Let a plain job run."""
    await plain(ledger, job_id)
    await do(ledger, job_id, Claim(worker="w1", lease_s=600))


async def ended(ledger: Ledger, job_id: str, *commands: Command) -> None:
    """Let an attempt of a plain job end."""
    await claimed(ledger, job_id)
    for command in commands:
        await do(ledger, job_id, command)


async def dead_run(ledger: Ledger, job_id: str) -> None:
    """End a run of several steps as a dead letter."""
    await running(ledger, job_id)
    await do(ledger, job_id, step(FailStep, "wire", error=BOOM))
    await do(ledger, job_id, DeadLetter(reason="rejected", epoch=0, error=BOOM))


async def doubtful_run(ledger: Ledger, job_id: str) -> None:
    """End a run while it does what may be done only once."""
    await running(ledger, job_id)
    await do(ledger, job_id, step(StartStep, "wire", kind="once"))
    await do(ledger, job_id, DeadLetter(reason="exhausted", epoch=0, error=BOOM))


async def undone(ledger: Ledger, job_id: str) -> None:
    """End a run that took back what it had done."""
    await running(ledger, job_id)
    await do(ledger, job_id, step(CompleteStep, "wire"))
    await do(ledger, job_id, step(CompleteStep, "undo/wire", kind="undo"))
    await do(ledger, job_id, DeadLetter(reason="rejected", epoch=0, error=BOOM))
