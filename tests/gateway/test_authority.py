"""Rights are asked where a command is decided: attacks on it by every door, each of which once went through."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.support.gateway import Asker, Doorman, send, someone
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.admin import bulk
from jobledger.admin.keys import Grant, create_key, revoke_key
from jobledger.audit.verify import verify
from jobledger.gateway.acts import bulk_act as acts
from jobledger.gateway.acts.bulk_act import begin_act, bulk_act
from jobledger.gateway.acts.bulk_input import QUEUE, TASK, Job, ToDo
from jobledger.gateway.acts.verification import verify_task
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.api_request import keyed_id
from jobledger.ledger import Ledger, TaskRegistry, Unique, task
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.graphs.batch_run import run_batch
from jobledger.ledger.graphs.graph_run import run_graph, run_stored_graph
from jobledger.ledger.job_orders import new_job_id
from jobledger.ledger.model.chain import commit, load
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    Command,
    DeadLetter,
    Discard,
    Dispatch,
    Enqueue,
    GiveSignal,
    Note,
    RequestPause,
    Requeue,
    Reschedule,
    ResumeJob,
    Stamp,
)
from jobledger.ledger.model.decision_parts.permissions import NEEDED
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import AccessDeniedError, InvalidInputError, JobNotFoundError
from jobledger.ledger.model.events import Cancelled
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget, checked_definition
from jobledger.ledger.model.hooks.delivery import job_id as rule_job_id
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.model.hooks.route import check_definition as check_route
from jobledger.ledger.model.job import Job as LedgerJob
from jobledger.ledger.model.job import evolve
from jobledger.ledger.model.reactor import REACTOR, Verified
from jobledger.ledger.model.rights.authority import Principal, principal_of
from jobledger.ledger.model.rights.grants import PERMISSIONS, Permission, Scope
from jobledger.ledger.model.runs.orders import Callback, child_id
from jobledger.ledger.model.schedules.jobs import hooks_task, manual_job_id, tick_job_id
from jobledger.ledger.model.subjects import INNER_TASKS, JobRef
from jobledger.ledger.nats.task_book import task_names, write_tasks
from jobledger.ledger.runs.ends import end_id
from jobledger.ledger.webhooks.deliveries import job_id as webhook_job_id
from jobledger.workers.announcement import announce_tasks

pytestmark = pytest.mark.anyio


@pytest.fixture
async def asker(gateway: Gateway, tmp_path: Path) -> Asker:
    gateway.access = door = Doorman()
    return Asker(gateway, ENDPOINTS, door, tmp_path)


NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
COMMANDS: tuple[Command, ...] = (
    GiveSignal(name="go", id="1", value=msgspec.Raw(b"1")),
    CancelJob(),
    Dispatch(cause="retried"),
    Reschedule(run_at=NOW + timedelta(hours=1)),
    RequestPause(),
    ResumeJob(),
    Requeue(),
    Requeue(attempts=3),
    Requeue(input=msgspec.Raw(b"{}")),
    Discard(reason="old"),
    Note(text="seen"),
)


def _queued() -> LedgerJob:
    begin = Enqueue(ref=JobRef(queue="mail", job_id="a"), task="send")
    (event,) = decide(None, begin, Stamp(at=NOW, by="w"))
    return evolve(None, event, 1)


def _refused(who: Principal, command: Command, job: LedgerJob | None) -> type[Exception] | None:
    """Return how a command is refused for want of rights; None: it is not."""
    try:
        decide(job, command, Stamp(at=NOW, by=who.name, authority=who))
    except (AccessDeniedError, JobNotFoundError) as error:
        return type(error)
    except Exception:  # noqa: BLE001 - whoever may do it is told of the state
        return None
    return None


def test_each_command_on_a_job_asks_for_its_right_and_for_nothing_else() -> None:
    job, tried = _queued(), 0
    for command in COMMANDS:
        needed = {NEEDED[type(command)]}
        if command == Requeue():
            needed.add("cancel")  # `retry` of a dead letter
        both = isinstance(command, Requeue) and bytes(command.input) != b""
        for permission in PERMISSIONS:
            tried += 1
            refused = _refused(someone(permission), command, job)
            assert (refused is None) == (permission in needed and not both), (command, permission)
        assert _refused(someone(*PERMISSIONS), command, job) is None
        for bound in (someone(*PERMISSIONS, queues=("vault",)), someone(*PERMISSIONS, tasks=("x*",))):
            tried += 1
            assert _refused(bound, command, job) is JobNotFoundError, "nothing tells that it exists"
    assert {type(each) for each in COMMANDS} | {Enqueue} == set(NEEDED)
    assert tried == len(COMMANDS) * (len(PERMISSIONS) + 2)


def test_what_workers_do_nobody_else_may() -> None:
    for command in (Claim(worker="w", lease_s=15), DeadLetter(reason="exhausted")):
        assert _refused(someone(*PERMISSIONS), command, _queued()) is AccessDeniedError


def test_a_job_is_begun_where_and_of_what_its_author_may() -> None:
    def begin(queue: str, task: str) -> Command:
        return Enqueue(ref=JobRef(queue=queue, job_id="b"), task=task)

    bound = someone("queue", queues=("mail",), tasks=("send",))
    assert _refused(bound, begin("mail", "send"), None) is None
    for queue, name in (("vault", "send"), ("mail", "open")):
        assert _refused(bound, begin(queue, name), None) is AccessDeniedError
    for queue, name in (("mail", TASK), (QUEUE, "send")):
        with pytest.raises(InvalidInputError, match="own"):
            decide(None, begin(queue, name), Stamp(at=NOW, by="eve", authority=someone(*PERMISSIONS)))


def test_every_task_of_the_ledgers_own_is_named_as_such() -> None:
    own: list[Any] = [run_graph, run_stored_graph, run_batch, bulk_act, verify_task()]
    assert {each.name for each in own} == INNER_TASKS


async def test_nobody_finds_tasks_of_the_ledgers_own_by_their_names(ledger: Ledger) -> None:
    @task(queue="mail")
    async def deliver() -> None:
        """A task of the application's, which has the name of one of the ledger's."""

    hooks = task(name=hooks_task("nightly"), queue="mail")(_call_hooks)
    for tasks in (TaskRegistry([deliver]), TaskRegistry([bulk_act, verify_task(), hooks])):
        async with anyio.create_task_group() as group:
            done = asyncio.Event()
            group.start_soon(partial(announce_tasks, ledger, tasks, "web-1-0a", done=done))
            await done.wait()
            group.cancel_scope.cancel()
    assert await task_names(ledger.inbox, ledger.names) == ["deliver"]
    assert (await ledger.enqueue_named("deliver")).queue == "mail"


async def _call_hooks(job_id: str) -> None:
    """Make the job of a tick, under the id that the input says."""


@pytest.mark.parametrize("name", [*sorted(INNER_TASKS), hooks_task("nightly")])
async def test_no_way_of_making_jobs_names_a_task_of_the_ledgers_own(asker: Asker, name: str) -> None:
    await asker.announced(bulk_act, verify_task(), run_graph, send)  # as gateways and workers do
    hooks = task(name=hooks_task("nightly"), queue="mail")(_call_hooks)
    await write_tasks(  # as a worker of an older release does
        asker.ledger.inbox,
        asker.ledger.names,
        [entry_of(hooks, worker="w", at=asker.ledger.clock.now(), versions=("",))],
        replicas=1,
    )
    forged = {"to_do": {"act": "cancel"}, "jobs": [["mail", "a", "send"]], "by": "user:cfo@shop.example"}
    before = (await asker.ledger.log.head()).last_sequence
    refusals = {"JOB_INVALID_INPUT", "BAD_REQUEST", "TASK_NOT_FOUND"}
    node = {"name": "a", "task": name, "input": forged}
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/jobs", {"task": name, "input": forged}),
        ("POST", "/v1/jobs", {"task": name, "queue": "mail", "input": forged}),
        ("PUT", "/v1/schedules/s", {"task": name, "input": forged, "every_s": 60}),
        ("PUT", "/v1/schedules/s", {"task": name, "queue": "mail", "input": forged, "every_s": 60}),
        ("PUT", "/v1/batches/b", {"task": name}),
        ("PUT", "/v1/batches/b", {"task": "send", "on_end": {"task": name}}),
        ("POST", "/v1/graphs", {"name": "g", "nodes": [node]}),
        ("PUT", "/v1/graphs/g", {"name": "g", "nodes": [node]}),
        (
            "PUT",
            "/v1/routes/r",
            {"scheme": "internal", "rules": [{"name": "r", "task": name, "input": {"*": "/"}}]},
        ),
        ("PUT", "/v1/webhooks/w", {"events": ["completed"], "target": {"task": name}}),
    ]
    for method, path, body in asked:
        answer = await asker.http.request(method, path, json=body)
        assert answer.json().get("code") in refusals, f"{method} {path}: {answer.text[:300]}"
    assert (await asker.ledger.log.head()).last_sequence == before
    rule = RouteRule(name="r", task=name)
    with pytest.raises(InvalidInputError, match="own"):
        check_route(RouteDefinition(scheme="internal", rules=(rule,)))
    with pytest.raises(InvalidInputError, match="own"):
        checked_definition(WebhookDefinition(events=("completed",), target=WebhookTarget(task=name)))


async def test_who_may_not_enqueue_sets_up_nothing_that_does(asker: Asker) -> None:
    await asker.announced(send)
    manager, both = someone("view", "manage"), someone("view", "manage", "queue")
    every = {"task": "send", "input": {"to": "ann"}, "every_s": 3_600}
    await asker.sees("PUT", "/v1/schedules/s", "JOB_ACCESS_DENIED", json=every, who=manager)
    await asker.sees("PUT", "/v1/schedules/s", 200, json=every, who=both)
    await asker.post("/v1/schedules/s/trigger", {}, "JOB_ACCESS_DENIED", who=manager)
    await asker.post("/v1/schedules/s/trigger", {}, 202, who=both)
    rules = {"scheme": "internal", "rules": [{"name": "r", "task": "send"}]}
    await asker.sees("PUT", "/v1/routes/r", "JOB_ACCESS_DENIED", json=rules, who=manager)
    hook = {"events": ["completed"], "task": "other", "target": {"task": "send", "queue": "mail"}}
    await asker.sees("PUT", "/v1/webhooks/w", "JOB_ACCESS_DENIED", json=hook, who=manager)
    triggered = (await asker.get("/v1/jobs?task=send&min_sequence=1"))["items"]
    assert len(triggered) == 1


async def test_who_is_bound_to_a_task_pauses_no_queue(asker: Asker) -> None:
    bound = someone("manage", "view", tasks=("send",))
    for queue in ("mail", "webhooks-out"):
        for verb in ("pause", "resume"):
            await asker.post(f"/v1/queues/{queue}/{verb}", {}, "JOB_ACCESS_DENIED", who=bound)
    with acting_for(bound), pytest.raises(AccessDeniedError, match="bound to some tasks"):
        await asker.ledger.pause_queue("mail")


@task(queue="vault", unique=Unique(args=("to",), on_conflict="replace"))
async def only(to: str) -> None:
    """Be the only one of its kind."""


#: What the ledger derives, each under the name of what makes it: a schedule, webhooks, a run, a graph, a batch, a key.
DERIVED = {
    "tick": tick_job_id("nightly", NOW),
    "triggered": manual_job_id("nightly", 7),
    "task of a webhook": webhook_job_id("webhook-shop", 7),
    "job of a rule": rule_job_id("shop", "order-1", "r", 1),
    "end of a run": end_id(
        JobRef(queue="runs", job_id=new_job_id()),
        Callback(task="send", queue="mail", on="fail", argument="end"),
    ),
    "child": child_id(new_job_id(), 1, 0),
    "node and member": child_id(tick_job_id("nightly", NOW), 1, 0),
    "idempotency": keyed_id("key:ops/abc", "order-77"),
}


async def test_a_key_of_one_queue_gets_at_no_job_elsewhere_by_a_limit_a_unique_key_or_an_id(
    asker: Asker,
) -> None:
    """Each cancelled, starved or kept away a job of somebody else, by what belongs to no queue."""
    await asker.announced(send, only)
    await asker.sees("PUT", "/v1/limits/report", 200, json={"slots": 1, "mode": "replace"})
    theirs = [
        await asker.ledger.enqueue(send.options(queue="vault", limits=("report",))),
        await asker.ledger.enqueue(only, to="ann"),
    ]
    before = [await each.snapshot() for each in theirs]
    head, who = (await asker.ledger.log.head()).last_sequence, someone("queue", "view", queues=("mail",))
    attacks: list[tuple[str, dict[str, Any]]] = [
        ("JOB_ACCESS_DENIED", {"task": "send", "limits": ["report"]}),
        ("JOB_INVALID_INPUT", {"task": "send", "limits": ["webhooks-out:shop"]}),
        ("JOB_ACCESS_DENIED", {"task": "only", "queue": "mail", "input": {"to": "ann"}}),
        *(("JOB_INVALID_INPUT", {"task": "send", "id": each}) for each in DERIVED.values()),
    ]
    for code, body in attacks:
        told = await asker.post("/v1/jobs", body, code, who=who)
        assert not [each.id for each in theirs if each.id in told["detail"]], body
    assert (await asker.ledger.log.head()).last_sequence == head
    assert [await each.snapshot() for each in theirs] == before


async def test_whatever_a_handler_says_an_event_names_who_acts(ledger: Ledger) -> None:
    job = await ledger.enqueue(send)
    with acting_for(someone("cancel")):
        await ledger.cancel(job.ref, by="user:cfo@shop.example")
    assert (await job.history())[-1].event.by == "eve"


async def _key(ledger: Ledger, *permissions: Permission) -> Principal:
    key = (await create_key(ledger, "ops", Grant(permissions=permissions), by="ann")).info
    return principal_of(f"key:{key.name}/{key.key}", frozenset(permissions), Scope(), key.key)


async def test_an_act_on_many_jobs_ends_with_the_key_that_asked_for_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts, "_CHUNK", 5)
    asker = await _key(ledger, "view", "cancel")
    jobs = [await ledger.enqueue(send) for _ in range(60)]
    named = [Job(each.queue, each.id, "send") for each in jobs]
    await begin_act(ledger, asker, "act-1", ToDo(act="cancel"), named)
    portions = 0

    async def one_portion(*given: Any, **more: Any) -> Any:
        nonlocal portions
        portions += 1
        found = await bulk.perform(*given, **more)
        if portions == 2:
            with acting_for(None):
                await revoke_key(ledger, asker.key_id, reason="it was lost", by="ann")
        return found

    monkeypatch.setattr(acts, "perform", one_portion)
    act = ledger.handle_of(JobRef(queue=QUEUE, job_id="act-1"))
    async with working(ledger, bulk_act):
        ended = await act.wait(timeout_s=LIMIT_S)
    assert ended.state == "dead_lettered"
    assert ended.error is not None
    assert "the key is revoked; 10 of 60 were done" in ended.error.message
    states = Counter([(await each.snapshot()).state.value for each in jobs])
    assert states == {"cancelled": 10, "queued": 50}


async def test_an_act_on_many_jobs_may_what_its_author_may(ledger: Ledger) -> None:
    asker = await _key(ledger, "view", "queue")
    job = await ledger.enqueue(send)
    await begin_act(ledger, asker, "act-1", ToDo(act="cancel"), [Job(job.queue, job.id, "send")])
    act = ledger.handle_of(JobRef(queue=QUEUE, job_id="act-1"))
    async with working(ledger, bulk_act):
        result = await act.result(timeout_s=LIMIT_S)
    assert (result["done"], result["refused"]) == (0, 1)
    assert "lacks the permission 'cancel'" in result["others"][0]["message"]
    assert (await job.snapshot()).state == "queued"


async def test_a_check_of_the_ledger_is_recorded_as_that_of_whoever_made_its_job(ledger: Ledger) -> None:
    check = verify_task()
    job = await ledger.enqueue(check.options(by="key:ops/abc"), by="user:cfo@shop.example")
    async with working(ledger, check):
        await job.result(timeout_s=LIMIT_S)
    said = [
        each
        async for batch in ledger.log.read_messages(subject=REACTOR.everything(ledger.names))
        for each in batch
    ]
    events = [REACTOR.decode(each) for each in said]
    assert [each.by for each in events if isinstance(each, Verified)] == ["key:ops/abc"]


@pytest.mark.unsound_ledger("an act is forged")
async def test_an_act_in_the_name_of_somebody_else_is_found(ledger: Ledger) -> None:
    job = await ledger.enqueue(send)
    await ledger.enqueue(bulk_act.options(id="act-1", by="key:ops/abc"), to_do=ToDo(act="cancel"), jobs=[])
    forged = Cancelled(
        queue=job.queue,
        job=job.id,
        task="send",
        at=ledger.clock.now(),
        by="user:cfo@shop.example",
        causation="act-1",
        reason="",
    )
    await commit(ledger.log, await load(ledger.log, job.ref), [forged])
    report = await verify(ledger.log)
    assert [each.rule for each in report.violations] == ["actor"]
    assert "user:cfo@shop.example did it, and job jobledger-acts/act-1 did it for key:ops/abc" in (
        report.violations[0].sentence
    )
