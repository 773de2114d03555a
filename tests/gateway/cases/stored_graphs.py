"""Every code of stored graphs: put, shown, run with an input, removed; what is refused, and for whom they do not exist."""

from __future__ import annotations

from typing import Any, Final

from tests.gateway.cases.graphs import NIGHTLY, fetch, merge
from tests.support.gateway import Asker, once, send, someone
from tests.support.working import working

from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE

LETTER: Final[dict[str, Any]] = {
    "nodes": [
        {"name": "first", "task": "send", "input": {"to": {"$input": "/customer/name"}}, "queue": "mail"},
        {"name": "second", "task": "send", "takes": {"/to": "first"}, "queue": "mail"},
    ]
}
GRAPH: Final = "/v1/graphs/onboarding"


async def put(asker: Asker, path: str, body: Any, expected: int | str = 200, **request: Any) -> Any:
    return (await asker.sees("PUT", path, expected, json=body, **request)).json()


async def stored_and_run(asker: Asker) -> None:
    await asker.announced(fetch, merge, send, once)
    planned = await put(asker, f"{GRAPH}?plan=true", LETTER)
    assert (planned["info"]["sequence"], planned["changed"]) == (0, True)
    stored = await put(asker, f"{GRAPH}?reason=new", LETTER)
    assert (stored["info"]["version"], stored["info"]["takes"]) == (1, ["/customer/name"])
    assert not (await put(asker, GRAPH, {**LETTER, "name": "onboarding"}))["changed"]
    shown = await asker.get(GRAPH)
    assert (shown["definition"]["name"], shown["history"][0]["by"]) == ("onboarding", "ann")
    assert not (await put(asker, GRAPH, shown["definition"]))["changed"]
    names = [each["graph"] for each in (await asker.get("/v1/graphs"))["items"]]
    assert names == ["onboarding"]
    async with working(asker.ledger, send, queues=("mail",)):
        body = {"input": {"customer": {"name": "bea"}}, "id": "o-1", "tenant": "acme"}
        answer = await asker.sees("POST", f"{GRAPH}/run", 202, json=body)
        assert answer.json()["queue"] == BUILT_IN_QUEUE
        path = answer.headers["location"]
        await asker.until(path, "completed")
        assert not (await asker.post(f"{GRAPH}/run", body, 200))["created"]
        result = await asker.get(f"{path}/result")
        assert list(result) == ["first", "second"]
    tree = await asker.get(f"{path}/tree")
    labels = [child["label"] for step in tree["steps"] for child in step["children"]]
    assert sorted(labels) == ["first", "second"]
    scheduled = {"graph": "onboarding", "input": {"customer": {"name": "x"}}, "on_demand": True}
    made = await put(asker, "/v1/schedules/weekly", scheduled)
    assert (made["task"], made["queue"]) == ("run_stored_graph", BUILT_IN_QUEUE)
    for wrong in ({**scheduled, "task": "send"}, {**scheduled, "metadata": {"a": "b"}}, {"on_demand": True}):
        await put(asker, "/v1/schedules/wrong", wrong, "BAD_REQUEST")
    key = {"idempotency-key": "graph run 1"}
    first = await asker.post(f"{GRAPH}/run", body | {"id": None}, 202, headers=key)
    assert (await asker.post(f"{GRAPH}/run", body | {"id": None}, 200, headers=key))["id"] == first["id"]
    other = {"input": {"customer": {"name": "cy"}}}
    await asker.post(f"{GRAPH}/run", other, "IDEMPOTENCY_KEY_REUSED", headers=key)
    await asker.post(f"{GRAPH}/run", {**other, "id": "o-1"}, "INPUT_MISMATCH")
    kept = {**other, "id": "o-1", "on_other_input": "keep"}
    assert not (await asker.post(f"{GRAPH}/run", kept, 200))["created"]


async def what_is_refused(asker: Asker) -> None:
    large = "a" * asker.ledger.config.payload_bytes_max
    await put(asker, GRAPH, {**LETTER, "name": "other"}, "JOB_INVALID_INPUT")
    await put(asker, GRAPH, {"nodes": [{"name": "a", "task": "melt"}]}, "TASK_NOT_FOUND")
    await put(asker, GRAPH, {**LETTER, "limit": -1}, "JOB_INVALID_INPUT")
    await asker.post(f"{GRAPH}/run", {"input": {}}, "JOB_INVALID_INPUT")
    await asker.post(f"{GRAPH}/run", {"input": {"customer": {"name": 7}}}, "JOB_INVALID_INPUT")
    await asker.post(
        f"{GRAPH}/run", {"input": {"customer": {"name": "x"}, "more": large}}, "PAYLOAD_TOO_LARGE"
    )
    for path in ("/v1/graphs/nothing", f"{GRAPH}?version=7"):
        await asker.sees("GET", path, "NOT_FOUND")
    await asker.post("/v1/graphs/nothing/run", {}, "NOT_FOUND")
    await asker.sees("DELETE", "/v1/graphs/nothing", "NOT_FOUND")
    refused = await asker.post("/v1/graphs", {**LETTER, "name": "g"}, "JOB_INVALID_INPUT")
    assert "store it" in refused["detail"]


async def who_may(asker: Asker) -> None:
    """A graph is there for who may see each of its nodes, and is run and replaced by who may do so with each."""
    stranger = someone("view", "queue", "manage", queues=("loud",))
    assert (await asker.get("/v1/graphs", who=stranger))["items"] == []
    for method, path in (("GET", GRAPH), ("DELETE", GRAPH)):
        await asker.sees(method, path, "NOT_FOUND", who=stranger)
    await asker.post(f"{GRAPH}/run", {}, "NOT_FOUND", who=stranger)
    loud = {"nodes": [{"name": "a", "task": "send", "queue": "loud"}]}
    await put(asker, GRAPH, loud, "NOT_FOUND", who=stranger)
    await put(asker, GRAPH, LETTER, "JOB_ACCESS_DENIED", who=stranger)
    viewer = someone("view", queues=("mail",))
    assert (await asker.get(GRAPH, who=viewer))["info"]["version"] == 1
    await asker.post(f"{GRAPH}/run", {}, "JOB_ACCESS_DENIED", who=viewer)
    runner = someone("queue", "view", queues=("mail",))
    body = {"input": {"customer": {"name": "dan"}}, "id": "o-2"}
    await asker.post(f"{GRAPH}/run", body, 202, who=runner)
    await asker.ledger.enqueue_many(send, [{"to": "a"}], batch="hidden")
    taken = {**body, "id": "hidden", "on_other_input": "keep"}
    await asker.post(f"{GRAPH}/run", taken, "DUPLICATE", who=runner)
    removed = await asker.sees("DELETE", f"{GRAPH}?reason=old", 200)
    assert removed.json()["info"]["removed"]
    await asker.post("/v1/graphs", NIGHTLY, 202)


CASES: Final = (stored_and_run, what_is_refused, who_may)
