"""Ids and tenants that a task declares once: every way to enqueue makes the same of the same input."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import date
from typing import Any

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger import (
    ConfigurationError,
    Context,
    InputMismatchError,
    InvalidInputError,
    JobRef,
    TaskDefinitionError,
    TaskRegistry,
    Unique,
    task,
    workflow,
)
from jobledger.ledger.children import Parent
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.named.verbs import NamedJob
from jobledger.ledger.runs.run import Run
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio


@task(queue="bills", id="charge-{tenant_id}-{invoice}", tenant="{tenant_id}")
async def charge(context: Context, tenant_id: str, invoice: int, cents: int = 5) -> int:
    return cents


@task(queue="bills", id="report-{tenant}-{metadata.region}-{day}")
async def report(day: date) -> None: ...


INPUT: dict[str, Any] = {"tenant_id": "acme", "invoice": 7}


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(charge, report)


async def test_each_way_to_enqueue_makes_the_one_job_of_an_input(ledger: MemoryLedger) -> None:
    first = await ledger.enqueue(charge, "acme", 7)
    assert first.id == "charge-acme-7"
    own = ledger.on_behalf_of(Parent(job_id="p", worker="w", tenant="other"))
    for again in (
        await ledger.enqueue(charge, invoice=7, tenant_id="acme", cents=5),
        await own.enqueue(charge, "acme", 7),
        await ledger.enqueue_named("charge", msgspec.json.encode(INPUT)),
    ):
        assert (again.id, again.created) == (first.id, False)
    text = msgspec.Raw(msgspec.json.encode(INPUT))
    other = msgspec.Raw(b'{"tenant_id":"acme","invoice":8}')
    done = await ledger.enqueue_named_many([NamedJob(task="charge", input=each) for each in (text, other)])
    assert (done.created, done.existing) == (1, 1)
    done = await ledger.enqueue_many(charge, [INPUT, {"tenant_id": "b", "invoice": 1}])
    assert (done.created, done.existing) == (1, 1)
    for job_id, tenant in (("charge-acme-7", "acme"), ("charge-acme-8", "acme"), ("charge-b-1", "b")):
        assert (await (await ledger.job(job_id)).snapshot()).order.tenant == tenant


async def test_another_input_of_one_identity_is_refused_by_each_way(ledger: MemoryLedger) -> None:
    await ledger.enqueue(charge, "acme", 7)
    other: dict[str, Any] = {**INPUT, "cents": 9}
    text = msgspec.json.encode(other)
    with pytest.raises(InputMismatchError, match=r"job charge-acme-7 .*\(cents\)"):
        await ledger.enqueue(charge, **other)
    with pytest.raises(InputMismatchError, match=r"job charge-acme-7 .*\(cents\)"):
        await ledger.enqueue_named("charge", text)
    with pytest.raises(InputMismatchError, match=r"job charge-acme-7 .*\(cents\)"):
        await ledger.enqueue_many(charge, [other])
    with pytest.raises(InputMismatchError, match=r"job charge-acme-7 .*\(cents\)"):
        await ledger.enqueue_named_many([NamedJob(task="charge", input=msgspec.Raw(text))])


async def test_what_one_job_says_goes_before_what_the_task_declares(ledger: MemoryLedger) -> None:
    made = await ledger.enqueue(charge.options(id="mine", tenant="ops"), "acme", 7)
    assert (made.id, (await made.snapshot()).order.tenant) == ("mine", "ops")
    named = await ledger.enqueue(report.options(tenant="ops", metadata={"region": "eu"}), date(2026, 1, 2))
    assert named.id == "report-ops-eu-2026-01-02"
    own = ledger.on_behalf_of(Parent(job_id="p", worker="w", tenant="acme"))
    inherited = await own.enqueue(report.options(metadata={"region": "eu"}), date(2026, 1, 2))
    assert inherited.id == "report-acme-eu-2026-01-02"


async def test_schedules_batches_and_rules_give_the_declared_tenant(ledger: MemoryLedger) -> None:
    await ledger.schedules.add("nightly", charge, cron="0 2 * * *", input=INPUT)
    schedule = (await ledger.schedules.read("nightly")).schedule
    assert schedule is not None
    assert schedule.definition.order.tenant == "acme"
    await ledger.enqueue_many(charge, [INPUT], batch="lot")
    batched = await (await ledger.job("lot-1-0")).snapshot()
    assert batched.order.tenant == "acme"
    rules = tuple(
        RouteRule(name=name, task="charge", input={"tenant_id": "/who", "invoice": "/number"})
        for name in ("pay", "pay-too")
    )
    await ledger.routes.set("shop", RouteDefinition(scheme="bearer", secrets=("env:TOKEN",), rules=rules))
    for number in (7, 8, 7):
        outcome = await ledger.emit("shop", {"who": "acme", "number": number})
        assert {job.job for job in outcome.matched} == {f"charge-acme-{number}"}
    assert (await (await ledger.job("charge-acme-8")).snapshot()).order.tenant == "acme"
    made = [
        each async for each in ledger.events(types=["queued"], queue="bills", from_sequence=1, follow=False)
    ]
    assert sorted(each.event.job for each in made) == ["charge-acme-7", "charge-acme-8", "lot-1-0"]


@each_row(
    "values, why",
    [
        ({"tenant_id": "a/b", "invoice": 1}, "task charge makes its ids by 'charge-{tenant_id}-{invoice}'"),
        ({"tenant_id": "a" * 80, "invoice": 1}, "and this input gives none"),
        ({"tenant_id": "a b", "invoice": 1}, "printable characters without spaces"),
    ],
)
async def test_an_input_that_makes_no_id_is_refused(values: dict[str, Any], why: str) -> None:
    ledger = MemoryLedger(charge)
    with pytest.raises(InvalidInputError) as caught:
        await ledger.enqueue(charge, **values)
    assert why in str(caught.value)
    assert (await ledger.log.head()).last_sequence == 0


async def test_a_missing_value_is_told(ledger: MemoryLedger) -> None:
    with pytest.raises(
        InvalidInputError, match="the id of task report takes its key from tenant, and the job has none"
    ):
        await ledger.enqueue(report.options(metadata={"region": "eu"}), date(2026, 1, 2))
    with pytest.raises(
        InvalidInputError, match=r"from metadata.region, and the job has none: give metadata="
    ):
        await ledger.enqueue(report.options(tenant="a"), date(2026, 1, 2))


def _defined(**options: Any) -> Callable[[], object]:
    def send(to: str) -> None: ...

    return lambda: task(**options)(send)


@each_row(
    "define, kind, why",
    [
        (_defined(id="send-{too}"), TaskDefinitionError, "the id of task send takes its key from 'too'"),
        (_defined(tenant="{too}"), TaskDefinitionError, "the tenant of task send takes its key from 'too'"),
        (_defined(id="send"), ConfigurationError, "names no argument, so all its jobs would be one"),
        (_defined(id="send-{to"), ConfigurationError, "a brace without its other one"),
        (_defined(id="send-{}"), ConfigurationError, "nothing between two"),
        (_defined(id="send {to}"), ConfigurationError, "can be no id"),
        (_defined(id=""), ConfigurationError, "must be a text such as"),
        (_defined(id="s-{to}", unique=Unique(for_s=5)), ConfigurationError, "give id or Unique(for_s=...)"),
    ],
)
def test_a_wrong_template_is_refused_where_the_task_is_defined(
    define: Callable[[], object], kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind) as caught:
        define()
    assert why in str(caught.value)


def test_what_the_worker_gives_is_no_argument() -> None:
    @task(id="x-{context}")
    async def told(context: Context, n: int) -> None: ...

    with pytest.raises(TaskDefinitionError, match="the id of task told takes its key from 'context'"):
        TaskRegistry([told])


async def test_runs_are_named_by_their_workflow(ledger: MemoryLedger) -> None:
    @workflow(queue="runs", id="order-{number}", tenant="shop")
    async def order(run: Run, number: uuid.UUID) -> None: ...

    number = uuid.UUID(int=7)
    made = await ledger.enqueue(order, number)
    assert made.ref == JobRef(queue="runs", job_id=f"order-{number}")
    assert (await made.snapshot()).order.tenant == "shop"
