"""Ids that follow from something else: nobody takes one from outside, and who finds one taken says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import Asker, Doorman, send, someone
from tests.support.working import LIMIT_S, until, working

from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.api_request import keyed_id
from jobledger.ledger import Graph, Ledger, Run, RunEnd, task, workflow
from jobledger.ledger.graphs.batch_end import end_jobs
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.delivery import job_id as derived_of
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.model.hooks.webhook import SetWebhook
from jobledger.ledger.model.reserved_ids import check_unreserved, instead_of
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE, child_id
from jobledger.ledger.model.schedules.decisions import Tick, decide
from jobledger.ledger.model.schedules.events import Ticked
from jobledger.ledger.model.schedules.jobs import hooks_job_id, jobs_of, manual_job_id, tick_job_id
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.runs.successor import successor_id
from jobledger.ledger.webhooks.changes import change_webhook
from jobledger.ledger.webhooks.deliveries import make
from jobledger.ledger.webhooks.redelivery import plan_redelivery

pytestmark = pytest.mark.anyio

RUN = "01890a5d-ac96-774b-bcce-b302099a8057"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
DERIVED = (
    tick_job_id("nightly", NOON),
    tick_job_id("nightly", NOON.replace(microsecond=5)),
    tick_job_id("n" * 60, NOON),
    hooks_job_id(tick_job_id("nightly", NOON)),
    manual_job_id("nightly", 77),
    "webhook-shop-12",
    "webhook-shop-12-r3",
    f"{RUN}-end",
    f"{RUN}-end-of-mail",
    child_id(RUN, 2, 14),
    child_id("x" * 64, 2, 14),
    child_id(child_id(RUN, 2, 14), 1, 0),
    f"{child_id(RUN, 2, 14)}-end-of-runs",
    successor_id(RUN),
    child_id(successor_id(RUN), 1, 0),
    f"{tick_job_id('nightly', NOON)}-end",
    child_id(tick_job_id("nightly", NOON), 1, 0),
    child_id(tick_job_id("n" * 60, NOON), 1, 0),
    f"{manual_job_id('nightly', 77)}-end",
    child_id("w-" + "a" * 43, 1, 0),
    keyed_id("key:ops/abc", "order-77"),
    keyed_id("key:ops/abc", "order-77") + "-3",
    keyed_id("key:ops/abc", "order-77") + "-end",
    child_id(keyed_id("key:ops/abc", "order-77"), 1, 0),
    "w-" + "a" * 43,
    instead_of(JobRef(queue="mail", job_id="a")).job_id,
)
FREE = (
    "week-end",
    "week-r2",
    "order-77",
    "order-1-2",
    "nightly-manual",
    "report-20260504",
    "webhook-shop",
    "i-7",
    RUN,
    f"{RUN}-invoice",
    "backup-20260504T120000Z-eu",
    "t" * 41,
)


@pytest.fixture
async def asker(gateway: Gateway, tmp_path: Path) -> Asker:
    gateway.access = door = Doorman()
    return Asker(gateway, ENDPOINTS, door, tmp_path)


@pytest.mark.parametrize("job_id", DERIVED)
def test_the_form_of_a_derived_id_is_kept(job_id: str) -> None:
    with pytest.raises(InvalidInputError, match="has the form that is kept for"):
        check_unreserved(job_id)


@pytest.mark.parametrize("job_id", FREE)
def test_ordinary_ids_are_anybodys(job_id: str) -> None:
    check_unreserved(job_id)


async def test_no_client_takes_a_derived_id_by_any_door(asker: Asker) -> None:
    await asker.announced(send)
    who, refused = someone("queue", "view", "manage", "cancel"), "JOB_INVALID_INPUT"
    before = (await asker.ledger.log.head()).last_sequence
    node = {"name": "a", "task": "send"}
    for taken in DERIVED:
        asked: list[tuple[str, str, Any]] = [
            ("POST", "/v1/jobs", {"task": "send", "id": taken}),
            ("POST", "/v1/graphs", {"id": taken, "name": "g", "nodes": [node]}),
            ("PUT", f"/v1/batches/{taken}", {"task": "send"}),
        ]
        for method, path, body in asked:
            await asker.sees(method, path, refused, json=body, who=who)
        lines = f'{{"task": "send", "input": {{}}, "id": "{taken}"}}\n'
        head = {"content-type": "application/x-ndjson"}
        answer = await asker.sees("POST", "/v1/jobs/bulk", refused, content=lines, headers=head, who=who)
        assert "is kept for" in answer.json()["detail"]
    assert (await asker.ledger.log.head()).last_sequence == before
    for free in FREE:
        await asker.post("/v1/jobs", {"task": "send", "id": free}, 202, who=who)


async def test_a_key_names_the_job_of_its_own_request_alone(asker: Asker) -> None:
    await asker.announced(send)
    who, mine, other = someone("queue", "view"), {"idempotency-key": "k1"}, keyed_id("eve", "k2")
    made = await asker.post("/v1/jobs", {"task": "send"}, 202, who=who, headers=mine)
    assert made["id"] == keyed_id("eve", "k1")
    again = await asker.post("/v1/jobs", {"task": "send"}, 200, who=who, headers=mine)
    assert (again["id"], again["created"]) == (made["id"], False)
    await asker.post("/v1/jobs", {"task": "send", "id": other}, "JOB_INVALID_INPUT", who=who)
    lines = '{"task": "send", "input": {}}\n' * 3
    head = {"content-type": "application/x-ndjson", "idempotency-key": "k3"}
    bulk = await asker.sees("POST", "/v1/jobs/bulk", 202, content=lines, headers=head, who=who)
    assert bulk.json()["created"] == 3


# Who derives an id and finds a job of somebody else: each of these jobs was taken for the one that was to be made.


async def _taken(ledger: Ledger, job_id: str, queue: str = "mail") -> JobRef:
    """Let a program that speaks to the ledger itself give away an id; return where the job is made that should have it."""
    await ledger.enqueue(send.options(id=job_id, queue=queue), to="mallory")
    return instead_of(JobRef(queue=queue, job_id=job_id))


async def test_a_schedule_makes_its_jobs_where_another_job_has_the_id(asker: Asker) -> None:
    ledger, hour = asker.ledger, timedelta(hours=1)
    await ledger.schedules.add("nightly", send, every_s=3600)
    past = ledger.clock.now() - 5 * hour
    ticks = await ledger.schedules.backfill("nightly", past, past + hour)
    tick = ticks[0].job_id.removeprefix("nightly-")
    await ledger.schedules.add("weekly", send, every_s=3600, input={"to": "ann"})
    place = await _taken(ledger, f"weekly-{tick}")
    await ledger.enqueue(
        send.options(id=f"weekly-{tick}", queue="elsewhere")
    )  # nor is any queue's the tick's
    for _ in range(2):  # the second time it is there
        assert place in await ledger.schedules.backfill("weekly", past, past + hour)
    made = await ledger.handle_of(place).snapshot()
    assert made.order.tick == f"weekly-{tick}"
    assert made.order.metadata == {"instead_of": f"weekly-{tick}"}
    manual = manual_job_id("weekly", (await ledger.log.head()).last_sequence + 2)
    place = await _taken(ledger, manual)
    assert await ledger.schedules.trigger("weekly") == place
    named = [each for each in (await asker.get("/v1/diagnoses"))["items"] if each["kind"] == "id_taken"]
    assert sorted(each["object"] for each in named) == sorted(
        f"job mail/{instead_of(JobRef(queue='mail', job_id=each)).job_id}"
        for each in (manual, f"weekly-{tick}")
    )
    assert any(f"its id was to be {manual}, which another job has" in each["found"] for each in named)


async def test_a_job_of_somebody_else_does_not_stop_a_schedule_that_skips(ledger: Ledger) -> None:
    await ledger.schedules.add("s", send, every_s=1, overlap="skip")
    known = await ledger.schedules.read("s")
    assert known.schedule is not None
    assert known.schedule.next_tick is not None
    first = known.schedule.next_tick
    place = await _taken(ledger, tick_job_id("s", first))
    known = await ledger.schedules.tick("s", known)
    job = await ledger.handle_of(place).snapshot()
    assert job.order.tick == tick_job_id("s", first)
    await ledger.cancel(place)
    known = await ledger.schedules.tick("s", known)
    assert isinstance(known.event, Ticked)
    assert known.event.skipped == "", "the job of its tick has ended, and no other counts"


async def test_a_webhook_makes_its_task_where_another_job_has_the_id(ledger: Ledger) -> None:
    definition = WebhookDefinition(
        events=("queued",), queue="parcels", target=WebhookTarget(task="send", queue="mail")
    )
    webhook = await change_webhook(ledger, "shop", SetWebhook(definition=definition), by="ann")
    about = await ledger.enqueue(send.options(queue="parcels"))
    message = await ledger.log.get(about.sequence)
    assert message is not None
    place = await _taken(ledger, f"webhook-shop-{about.sequence}")
    assert await make(ledger, "shop", webhook.definition, message)
    assert not await make(ledger, "shop", webhook.definition, message)
    job = await ledger.handle_of(place).snapshot()
    assert (job.task, job.created_by) == ("send", "webhook:shop")
    plan = await plan_redelivery(ledger, webhook, since=ledger.clock.now() - timedelta(minutes=1))
    assert plan.under_way == 1


ENDS: list[str] = []


@task(queue="told")
async def tell(end: RunEnd) -> None:
    """Keep how a run ended."""
    ENDS.append(f"{end.id} {end.state}")


@workflow(queue="runs", on_success=tell, on_fail=tell)
async def order(_run: Run) -> None:
    """Do nothing."""


async def test_the_end_of_a_run_is_told_where_another_job_has_the_id(ledger: Ledger) -> None:
    ENDS.clear()
    for run in ("done", "gone"):
        await _taken(ledger, f"{run}-end", "told")
    gone = await ledger.enqueue(order.options(id="gone"))
    await ledger.cancel(gone.ref)
    async with working(ledger, order, tell, queues=("runs", "told")):
        await (await ledger.enqueue(order.options(id="done"))).wait(timeout_s=LIMIT_S)
        await until(lambda: len(ENDS) == 2)
    assert sorted(ENDS) == ["done completed", "gone cancelled"]


async def test_the_job_of_a_tick_is_made_though_its_id_is_taken_before_it_is_begun(ledger: Ledger) -> None:
    """Its process died between the two appends, and somebody gave the id away before another one looked."""
    await ledger.schedules.add("s", send, every_s=3600, overlap="allow")
    known = await ledger.schedules.read("s")
    event = decide("s", known.schedule, Tick(), ledger.stamp())
    assert isinstance(event, Ticked)
    await ledger.log.append(SCHEDULE.link(ledger.names, [event], known.view))
    (job,) = jobs_of(event, 0)
    place = await _taken(ledger, job.ref.job_id)
    for _ in range(2):  # the second time it is there
        await ledger.schedules.healed(await ledger.schedules.read("s"))
        assert (await ledger.handle_of(place).snapshot()).order.tick == job.ref.job_id
    assert (await ledger.log.head()).last_sequence == (await ledger.handle_of(place).snapshot()).last_sequence


async def test_a_delivery_makes_its_job_where_another_job_has_the_id(ledger: Ledger) -> None:
    await ledger.routes.set(
        "shop", RouteDefinition(scheme="internal", rules=(RouteRule(name="r", task="send"),))
    )
    first = derived_of("shop", "order-1", "r", 1)
    place = await _taken(ledger, first, "default")
    again = await _taken(ledger, place.job_id, "default")  # nor does it help to take the other one
    for repeated in (False, True):
        told = await ledger.emit("shop", {"n": 1}, id="order-1")
        assert (told.repeated, [each.job for each in told.matched]) == (repeated, [again.job_id])
    assert (await ledger.handle_of(again).snapshot()).created_by == "route:shop"
    assert (await ledger.handle_of(again).snapshot()).order.metadata == {"instead_of": place.job_id}


@task(queue="told")
async def fetch(n: int) -> int:
    """Be a child."""
    return n


@workflow(queue="runs")
async def gather(run: Run) -> list[int]:
    """Have children one after the other."""
    return await run.map(fetch, range(3), limit=1)


@pytest.mark.parametrize("item", [0, 1])
async def test_a_run_ends_and_is_named_where_another_job_has_the_id_of_a_child(
    asker: Asker, item: int
) -> None:
    ledger = asker.ledger
    taken = await ledger.enqueue(send.options(id=f"week-1-{item}-of-runs", queue="told"), to="mallory")
    run = await ledger.enqueue(gather.options(id="week"))
    async with working(ledger, gather, fetch, queues=("runs", "told")):
        ended = await run.wait(timeout_s=LIMIT_S)
    assert ended.state == "dead_lettered"
    assert ended.error is not None
    assert f"job told/week-1-{item}-of-runs is not the child of run week" in ended.error.message
    named = [each for each in (await asker.get("/v1/diagnoses"))["items"] if each["kind"] == "id_taken"]
    assert [each["object"] for each in named] == ["run runs/week"]
    assert (await taken.snapshot()).task == "send", "it is left alone"


async def test_a_graph_and_a_batch_end_and_are_named_where_another_job_has_the_id_of_a_node(
    asker: Asker,
) -> None:
    ledger = asker.ledger
    graph = Graph("week")
    graph.add(fetch, graph.add(fetch, 1))
    await asker.announced(send)
    await asker.sees("PUT", "/v1/batches/month", 201, json={"task": "send", "on_end": {"task": "send"}})
    for taken, queue in (("week-1-1-of-jobledger", "told"), ("month-end", "mail")):
        await ledger.enqueue(send.options(id=taken, queue=queue), to="mallory")
    batch = ledger.handle_of(JobRef(queue=BUILT_IN_QUEUE, job_id="month"))
    runs = [await ledger.run_graph(graph, id="week"), batch]
    await asker.post("/v1/batches/month/close", {"count": 0})
    async with working(ledger, fetch, queues=("told", BUILT_IN_QUEUE)):
        for run in runs:
            ended = await run.wait(timeout_s=LIMIT_S)
            assert ended.error is not None
            assert (ended.state, ended.error.type) == ("dead_lettered", "ChildIdTakenError")
    named = [each for each in (await asker.get("/v1/diagnoses"))["items"] if each["kind"] == "id_taken"]
    assert sorted(each["object"] for each in named) == ["run jobledger/month", "run jobledger/week"]


async def test_a_key_whose_id_somebody_took_is_refused(asker: Asker) -> None:
    await asker.announced(send)
    await asker.ledger.enqueue(send.options(id=keyed_id("ann", "k1")), to="ann", cents=1)
    key, body = {"idempotency-key": "k1"}, {"task": "send", "input": {"to": "ann", "cents": 1}}
    told = await asker.post("/v1/jobs", body, "IDEMPOTENCY_KEY_REUSED", headers=key)
    assert "was given to a job that this key did not make" in told["detail"]


async def test_what_ends_a_batch_leaves_other_jobs_alone(asker: Asker) -> None:
    await asker.announced(send)
    await asker.sees("PUT", "/v1/batches/b", 201, json={"task": "send"})
    await _taken(asker.ledger, "b-1-0")
    await asker.post("/v1/batches/b/cancel", {})
    await end_jobs(asker.ledger, JobRef(queue="jobledger", job_id="b"))
    assert (await asker.ledger.handle_of(JobRef(queue="mail", job_id="b-1-0")).snapshot()).state == "queued"
