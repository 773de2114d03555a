"""Every code of graphs: begun by the names of their tasks, and what cannot be one."""

from __future__ import annotations

from typing import Any, Final

from tests.support.gateway import Asker, once, send, someone
from tests.support.working import working

from jobledger.ledger import task
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE


@task(queue="web", max_attempts=3)
async def fetch(page: int) -> list[str]:
    """Fetch a page."""
    return [f"{page}.{n}" for n in range(page)]


@task(queue="merge")
async def merge(a: list[str], parts: list[list[str]], sep: str = "+") -> str:
    """Put pages together."""
    return sep.join([*a, *(line for part in parts for line in part)])


#: Its nodes stand in an order in which they could not run.
NIGHTLY: Final[dict[str, Any]] = {
    "name": "nightly",
    "limit": 2,
    "nodes": [
        {
            "name": "total",
            "task": "merge",
            "input": {"parts": [[], None]},
            "takes": {"/a": "one", "/parts/1": "two"},
        },
        {"name": "told", "task": "send", "after": ["total"], "always": True, "queue": "loud"},
        {"name": "one", "task": "fetch", "input": {"page": 1}, "priority": "high"},
        {"name": "two", "task": "fetch", "input": {"page": 2}, "max_attempts": 1},
    ],
}


def _node(**more: Any) -> dict[str, Any]:
    return {
        "name": "g",
        "nodes": [{"name": "a", "task": "fetch", "input": {"page": 1}}, {"name": "b", **more}],
    }


async def begun_and_ended(asker: Asker) -> None:
    await asker.announced(fetch, merge, send, once)
    async with working(asker.ledger, fetch, merge, send, queues=("web", "merge", "loud")):
        headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        answer = await asker.sees("POST", "/v1/graphs", 202, json={**NIGHTLY, "id": "n-1"}, headers=headers)
        made = answer.json()
        assert (made["queue"], made["created"]) == (BUILT_IN_QUEUE, True)
        assert made["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
        path = answer.headers["location"]
        await asker.until(path, "completed")
        for who in (
            someone("queue", "view", queues=("web", "merge", "loud")),
            someone("queue", "view", tasks=("fetch", "merge", "send")),
        ):  # their own job of the graph does not exist for them
            unseen = await asker.post("/v1/graphs", NIGHTLY, 202, headers={"prefer": "wait=10"}, who=who)
            assert "job" not in unseen
        assert await asker.get(f"{path}/result") == {
            "total": "1.0+2.0+2.1",
            "told": "sent to ann, 1",
            "one": ["1.0"],
            "two": ["2.0", "2.1"],
        }
    graph = await asker.get(f"{path}/graph")
    assert [each["label"] for each in graph["nodes"]][1:] == ["one", "two", "total", "told"]
    first = await asker.get("/v1/jobs/web/n-1-1-0-of-jobledger")
    assert (first["priority"], first["max_attempts"], first["trace"][3:35]) == ("high", 3, made["trace_id"])
    assert not (await asker.post("/v1/graphs", {**NIGHTLY, "id": "n-1"}, 200))["created"]
    other = {**NIGHTLY, "nodes": NIGHTLY["nodes"][2:]}
    await asker.post("/v1/graphs", {**other, "id": "n-1"}, "INPUT_MISMATCH")
    shown = await asker.get(path)
    assert shown["created_by"] == "ann"


async def keys_and_waits(asker: Asker) -> None:
    key = {"idempotency-key": "graph 1", "prefer": "wait=0"}
    made = await asker.post("/v1/graphs", NIGHTLY, 202, headers=key)
    again = await asker.post("/v1/graphs", NIGHTLY, 200, headers=key)
    assert (again["id"], again["created"]) == (made["id"], False)
    options = [{**node, "priority": "low"} for node in NIGHTLY["nodes"]]
    assert not (await asker.post("/v1/graphs", {**NIGHTLY, "nodes": options}, 200, headers=key))["created"]
    other = {**NIGHTLY, "nodes": NIGHTLY["nodes"][2:]}
    await asker.post("/v1/graphs", other, "IDEMPOTENCY_KEY_REUSED", headers=key)
    await asker.post("/v1/jobs", {"task": "send"}, "IDEMPOTENCY_KEY_REUSED", headers=key)
    await asker.post("/v1/graphs", {**NIGHTLY, "id": "own"}, "BAD_REQUEST", headers=key)


async def what_is_refused(asker: Asker) -> None:
    """Each names its node, and nothing is begun."""
    large = "a" * asker.ledger.config.payload_bytes_max
    circle = [{"name": "a", "task": "send", "after": ["b"]}, {"name": "b", "task": "send", "after": ["a"]}]
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"name": "g", "nodes": []}, "BAD_REQUEST", "nodes"),
        ({"name": "no.token", "nodes": NIGHTLY["nodes"]}, "BAD_REQUEST", "graph 'no.token'"),
        ({**NIGHTLY, "limit": -1}, "JOB_INVALID_INPUT", "0 or more"),
        (
            {**NIGHTLY, "nodes": NIGHTLY["nodes"] * 2},
            "JOB_INVALID_INPUT",
            "two nodes of graph nightly are called 'total'",
        ),
        ({"name": "g", "nodes": circle}, "JOB_INVALID_INPUT", "graph g would wait for itself: "),
        (_node(task="send", after=["b"]), "JOB_INVALID_INPUT", "b -> b"),
        (
            _node(task="send", after=["c"]),
            "JOB_INVALID_INPUT",
            "node 'b' of graph g: the graph has no node 'c'",
        ),
        (_node(task="send", takes={"/to": "c"}), "JOB_INVALID_INPUT", "the graph has no node 'c'"),
        (_node(task="send", takes={"to": "a"}), "JOB_INVALID_INPUT", "'to' is no JSON pointer"),
        (_node(task="send", takes={"": "a"}), "JOB_INVALID_INPUT", "no place / for a result"),
        (_node(task="send", takes={"/to/x": "a"}), "JOB_INVALID_INPUT", "no place /to/x"),
        (_node(task="merge", takes={"/a": "a", "/a/0": "a"}), "JOB_INVALID_INPUT", "no place /a/0"),
        (_node(task="merge", input={"parts": []}, takes={"/parts/0": "a"}), "JOB_INVALID_INPUT", "/parts/0"),
        (_node(task="send", takes={"/colour": "a"}), "JOB_INVALID_INPUT", "no argument 'colour'"),
        (_node(task="merge", takes={"/a": "a"}), "JOB_INVALID_INPUT", "needs the argument 'parts'"),
        (
            _node(task="send", input={"to": 7}),
            "JOB_INVALID_INPUT",
            "node 'b' of graph g: task send, argument to",
        ),
        (_node(task="once", input={"to": "x"}), "BAD_REQUEST", "cannot have unique"),
        (
            _node(task="melt"),
            "TASK_NOT_FOUND",
            "node 'b' of graph g: no worker has ever announced a task 'melt'",
        ),
        (_node(task="send", queue="jobledger"), "JOB_INVALID_INPUT", "the ledger's own jobs"),
        (_node(task="send", delay_s=1), "BAD_REQUEST", "delay_s"),
        (_node(task="send", input={"to": large}), "PAYLOAD_TOO_LARGE", ""),
        (_node(task="send", input={"to": "a"}, timeout_s=0), "BAD_REQUEST", "node 'b' of graph g: timeout_s"),
    ]
    before = (await asker.ledger.log.head()).last_sequence
    for body, code, words in wrong:
        answer = await asker.sees("POST", "/v1/graphs", code, json=body)
        assert words in answer.json()["detail"], answer.json()["detail"]
    for who in (someone("queue", queues=("web", "merge")), someone("queue", tasks=("fetch", "send"))):
        await asker.post("/v1/graphs", NIGHTLY, "JOB_ACCESS_DENIED", who=who)
    assert (await asker.ledger.log.head()).last_sequence == before
    await asker.ledger.enqueue_many(send, [{"to": "a"}], batch="a-batch")
    await asker.post("/v1/graphs", {**NIGHTLY, "id": "a-batch"}, "DUPLICATE")


async def its_input_stays(asker: Asker) -> None:
    """Else who may run one graph again could have it add jobs in any queue, and acts in anybody's name."""
    node = {"name": "a", "task": "send", "queue": "loud"}
    async with working(asker.ledger, send, queues=("loud",)):
        answer = await asker.sees("POST", "/v1/graphs", 202, json={"name": "g", "id": "r-1", "nodes": [node]})
        path = answer.headers["location"]
        await asker.until(path, "completed")
    to_do = {"to_do": {"act": "cancel"}, "jobs": [["bills", "x", "charge"]], "by": "key:boss"}
    child = {"label": "a", "node": {"task": "bulk_act", "queue": "jobledger-acts"}, "input": to_do}
    other = {"from": "g", "input": {"graph": {"name": "g", "nodes": [child]}}}
    before = (await asker.ledger.log.head()).last_sequence
    for plan in (True, False):
        refused = await asker.post(f"{path}/rerun", {**other, "plan": plan}, "JOB_INVALID_INPUT")
        assert "one of the ledger's own" in refused["detail"]
    assert (await asker.ledger.log.head()).last_sequence == before
    await asker.post(f"{path}/rerun", {"from": "g"}, 202)


CASES: Final = (begun_and_ended, keys_and_waits, what_is_refused, its_input_stays)
