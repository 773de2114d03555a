"""Workflows that must type-check; checked by test_typing.py, never run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_type
from uuid import UUID

from jobledger.ledger import (
    NOT_DONE,
    Backoff,
    Child,
    JobHandle,
    Ledger,
    Outcome,
    Retry,
    Run,
    RunEnd,
    Signal,
    step,
    sync,
    task,
    workflow,
)
from jobledger.testing import RunReport, after, run_in_memory


@dataclass
class Approval:
    by: str
    yes: bool


approved = Signal("approved", Approval)
counted = Signal("counted", int)


def find_wire(order: str) -> object:
    return NOT_DONE if order else "wire-1"


@step(max_attempts=5, timeout_s=10, backoff=Backoff(base_s=0.1), retry_on=(OSError,))
async def charge(order: str, cents: int) -> str:
    return f"ch_{order}_{cents}"


@step(once=True, on_doubt=find_wire)
async def wire(order: str) -> str:
    return f"wire-{order}"


@step
def refund(charge_id: str) -> None:
    assert charge_id


@step(run_in="process")
def render(order: str, *, pages: int = 1) -> bytes:
    return order.encode() * pages


@step
async def measure(text: str) -> int:
    return len(text)


async def plain(number: int) -> list[int]:
    return [number]


def plain_in_thread(number: int) -> dict[str, int]:
    return {"n": number}


@task
async def tell(end: RunEnd) -> None:
    assert_type(end.error, str)


@workflow(
    queue="orders",
    version="2",
    parallel=4,
    deadline_s=86_400,
    max_attempts=3,
    timeout_s=60,
    on_success=tell,
    on_fail=tell.options(),
)
async def order(run: Run, order: str, cents: int = 5) -> str:
    charge_id = await run.step(charge, order, cents)
    assert_type(charge_id, str)
    assert_type(await run.step(charge, order, cents=cents), str)
    assert_type(await run.step(charge.options(name="second", max_attempts=2), order, 7), str)
    run.on_failure(refund, charge_id)
    run.on_failure(refund, charge_id=charge_id)
    assert_type(await run.step(wire, order), str)
    assert_type(await run.step(refund, charge_id), None)
    assert_type(await run.step(render, order, pages=2), bytes)
    assert_type(await run.step(plain, 1), list[int])
    assert_type(await run.step(plain_in_thread, number=1), dict[str, int])
    await run.sleep(1.5)
    await run.sleep(timedelta(days=1))
    await run.sleep_until(await run.now())
    assert_type(await run.wait(approved), Approval)
    assert_type(await run.wait(counted, timeout_s=3), int)
    assert_type(await run.now(), datetime)
    assert_type(await run.uuid(), UUID)
    assert_type(await run.random(), float)
    assert_type(await run.patched("wire-first"), bool)
    assert_type((run.id, run.queue, run.version), tuple[str, str, str])
    assert_type(run.attempt, int)
    assert_type(run.replaying, bool)
    if run.long:
        return run.again(order, cents=7)
    return charge_id


@workflow
async def side_by_side(run: Run) -> int:
    async def pages() -> int:
        return len(await run.step(plain, 1))

    async def text() -> str:
        return await run.step(charge, "a", 1)

    async def wired() -> bytes:
        return await run.step(render, "a")

    assert_type(await run.gather(pages, text), tuple[int, str])
    assert_type(await run.gather(pages, text, wired), tuple[int, str, bytes])
    assert_type(await run.gather(pages, text, wired, pages), tuple[int, str, bytes, int])
    assert_type(await run.gather(pages, text, limit=1), tuple[int, str])
    assert_type(await run.gather(*[pages] * 9, limit=3), tuple[int, ...])
    assert_type(await run.race(pages, pages), int)
    return 1


@task(queue="pages")
async def fetch_page(page: int, size: int = 100) -> list[str] | Retry:
    return [str(page)] * size


@workflow(queue="imports")
async def import_all(run: Run, pages: int) -> int:
    assert_type(await run.call(fetch_page, 1), list[str])
    assert_type(await run.call(fetch_page.options(priority="high"), page=1, size=2), list[str])
    assert_type(await run.call(order, "77", cents=3), str)
    child = await run.start(fetch_page, 1, size=3)
    assert_type(child, Child[list[str]])
    assert_type(child.id, str)
    assert_type(await child.result(), list[str])
    assert_type(await run.map(fetch_page, range(pages), limit=4), list[list[str]])
    assert_type(await run.map(fetch_page.options(queue="other"), [1, 2], name="again"), list[list[str]])
    assert_type(await run.options(on_dead_letter="fail").call(fetch_page, 1), list[str])
    outcomes = await run.map_settled(fetch_page, [1])
    assert_type(outcomes, list[Outcome[list[str]]])
    assert_type(outcomes[0].value(), list[str])
    assert_type(outcomes[0].error, str)
    assert_type(await run.each(measure, ["a", "b"], chunk=100, limit=4), list[int])
    return 1


async def use(ledger: Ledger, run: Run) -> None:
    job = await ledger.enqueue(order, "77", cents=7)
    assert_type(job, JobHandle[str])
    assert_type(await ledger.enqueue(order.options(id="order-77"), order="77"), JobHandle[str])
    assert_type(await job.result(), str)
    assert_type(await order(run, "77", 5), str)
    assert_type(await ledger.signal(job, approved, Approval(by="eve", yes=True), id="click-1"), bool)
    assert_type(await ledger.signal("order-77", counted, 3, queue="orders"), bool)
    started = order.options(id="order-77").with_input("77", cents=5)
    assert_type(await ledger.signal("order-77", counted, 3, start=started), bool)
    assert_type(await ledger.signal("order-77", counted, 3, start=order.with_input("77")), bool)
    await charge.function("a", 1)


def blocking(ledger: sync.Ledger) -> None:
    assert_type(ledger.signal("order-77", approved, Approval(by="eve", yes=True)), bool)
    assert_type(ledger.signal("order-77", counted, 3, start=order.with_input("77")), bool)
    assert_type(ledger.enqueue(order, "77").result(), str)


def fake_charge(order: str, cents: int) -> str:
    return f"{order} {cents}"


async def tested() -> None:
    signals = [after(approved, Approval(by="eve", yes=True), days=2), after(counted, 3, id="a")]
    report = await run_in_memory(
        order, "77", 5, tasks=[fetch_page], signals=signals, fakes={charge: fake_charge}, crash_after="charge"
    )
    assert_type(report, RunReport[str])
    assert_type(report.result, str)
    assert_type(report.virtual, timedelta)
    assert_type((await run_in_memory(import_all.options(id="a"), pages=3)).result, int)
