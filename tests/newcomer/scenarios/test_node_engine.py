"""A workflow engine with a queue of nodes: four sources of runs, limits, priorities, retries, dead letters, figures."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.newcomer.scenarios.conftest import Place

pytestmark = [pytest.mark.walk, pytest.mark.timeout(90)]

SECRET = "example"
RULES = [
    {
        "name": name,
        "when": {"at": "/kind", "in": kinds},
        "task": "execute",
        "tenant": "/account",
        "input": {"flow": name, "value": "/value"},
    }
    for name, kinds in (("mail", ["order", "refund"]), ("stock", ["order"]))
]


def test_a_workflow_engine_with_a_queue_of_nodes(place: Place) -> None:
    shutil.copy(Path(__file__).with_name("node_engine.py"), place.folder / "engine.py")
    place.gateway("engine", HOOK_SECRET=SECRET)
    runs = _enqueued_before_any_worker(place)
    hooked = _started_by_webhooks(place)
    workers = place.workers("engine", "--concurrency", "2")
    place.kill_who_wrote("held")

    assert [place.result("workflow-execution", job) for job in runs] == [6, 12, 18]
    assert [place.result(job["queue"], job["job"]) for job in hooked] == [42, 42, 42]
    assert place.result("workflow-execution", "nightly") == 60
    _mended(place)
    assert place.result("workflow-execution", "slow") == 8
    slow = [each for each in place.events("started") if each["job"].startswith("slow-")]
    assert max(each["attempt"] for each in slow) == 2

    _high_first(place)
    _within_limits(place)
    place.verify(workers)


def _run(place: Place, flow: str, value: int, job: str) -> None:
    wanted = {"task": "execute", "input": {"flow": flow, "value": value}, "id": job, "tenant": "acme"}
    status, made = place.ask("/v1/jobs", wanted)
    assert (status, made["queue"]) == (202, "workflow-execution"), made
    assert place.ask("/v1/jobs", wanted)[0] == 200  # the same again is the same job


def _enqueued_before_any_worker(place: Place) -> list[str]:
    """Ask for runs and for background jobs of two priorities; the gateway says that nobody serves the queue."""
    for number, flow in enumerate(("a", "b", "c"), 1):
        _run(place, flow, number, f"run-{flow}")
    _run(place, "slow", 2, "slow")
    _run(place, "broken", 5, "broken")
    for part in range(9):
        wanted = {"task": "clean", "input": {"part": part}, "priority": "low" if part < 8 else "high"}
        assert place.ask("/v1/jobs", wanted)[0] == 202
    assert place.ask("/v1/jobs", {"task": "execute", "input": {"flow": 7, "value": 1}})[0] == 400

    def told() -> bool:
        found = place.ask("/v1/diagnoses")[1]["items"]
        return any(each["kind"] == "queue_without_worker" for each in found)

    place.until(told, "the queue without a worker is told")
    return ["run-a", "run-b", "run-c"]


def _started_by_webhooks(place: Place) -> list[dict[str, Any]]:
    """Send signed webhooks that match two rules, one and none, and one with a wrong signature."""
    route = {"scheme": "github", "secrets": ["env:HOOK_SECRET"], "rules": RULES}
    assert place.ask("/v1/routes/orders", route, method="PUT")[0] == 200

    def sent(delivery: str, body: dict[str, Any], secret: str = SECRET) -> tuple[int, Any]:
        text = json.dumps(body).encode()
        signature = hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
        headers = {"x_hub_signature_256": f"sha256={signature}", "x_github_delivery": delivery}
        return place.ask("/in/orders", text, **headers)

    order = {"kind": "order", "account": "globex", "value": 7}
    place.until(lambda: sent("d-0", {"kind": "nothing"})[0] == 200, "the route is known")
    status, both = sent("d-1", order)
    assert status == 202
    assert sent("d-1", order)[1] == both
    assert sent("d-2", order, secret="wrong")[0] == 401
    one = sent("d-3", {**order, "kind": "refund"})[1]
    return [*both["jobs"], *one["jobs"]]


def _mended(place: Place) -> None:
    """A node that failed for good is a dead letter that a watch tells; requeued with what it lacked, its run goes on."""
    assert place.ask("/v1/watches/dead", {"figure": "dead_letters", "above": 0}, method="PUT")[0] == 200

    def found() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = place.ask("/v1/dead-letters?queue=workflow-node")[1]["items"]
        return items

    (dead,) = place.until(found, "the node is a dead letter")
    place.until(lambda: place.ask("/v1/watches/dead")[1]["info"]["firing"], "the watch fires")
    attempts = place.ask(f"/v1/jobs/workflow-node/{dead['job_id']}/attempts")[1]["items"]
    assert [each["error"]["type"] for each in attempts] == ["ValueError"] * 2
    mended = {"reason": "connected", "edit": {"kind": "double"}}
    status, requeued = place.ask(f"/v1/jobs/workflow-node/{dead['job_id']}/requeue", mended)
    assert status == 200, requeued
    assert place.result("workflow-execution", "broken") == 20


def _high_first(place: Place) -> None:
    place.until(
        lambda: len([each for each in place.events("completed") if each["queue"] == "background"]) == 9,
        "the background jobs completed",
    )
    order = [each["job"] for each in place.events("started") if each["queue"] == "background"]
    (high,) = {
        each["job"]
        for each in place.events("queued")
        if each["queue"] == "background" and each.get("priority") == "high"
    }
    assert order.index(high) < 5, order
    status, metrics = place.ask("/metrics")
    assert status == 200
    assert 'queue="workflow-node"' in metrics


def _within_limits(place: Place) -> None:
    """At no moment more than two nodes of a tenant ran."""
    tenants: dict[str, str] = {}
    running: dict[str, set[str]] = {}
    for event in place.events():
        if event.get("queue") != "workflow-node":
            continue
        job = event["job"]
        if "tenant" in event:
            tenants[job] = event["tenant"]
        held = running.setdefault(tenants[job], set())
        if event["type"] == "started":
            held.add(job)
        elif event["type"] in ("completed", "failed", "retry_scheduled", "dead_lettered", "requeued"):
            held.discard(job)
        assert len(held) <= 2, event
    assert set(running) == {"acme", "globex", "initech"}
