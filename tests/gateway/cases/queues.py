"""Every code of queues and of the figures of what happened."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from tests.support.gateway import Asker, someone

from jobledger.gateway.acts.bulk_act import bulk_act
from jobledger.gateway.acts.bulk_input import ToDo
from jobledger.ledger.model.subjects import ACTS_QUEUE
from jobledger.ledger.model.times import time_text


async def listing(asker: Asker) -> None:
    first = (await asker.job(queue="q-one")).sequence
    running = await asker.job(queue="q-two")
    await asker.running(running)
    found = await asker.get("/v1/queues", params={"min_sequence": first})
    assert {"q-one", "q-two"} <= {each["queue"] for each in found["items"]}
    assert found["position"]["sequence"] >= first
    split = await asker.get("/v1/queues", params={"by_priority": "true"})
    assert {each["priority"] for each in split["items"]} >= {"normal"}
    was = await asker.get("/v1/queues", params={"sequence": first})
    assert "q-two" not in {each["queue"] for each in was["items"]}
    seen = await asker.get("/v1/queues", who=someone("view", queues=("q-t*",)))
    assert [each["queue"] for each in seen["items"]] == ["q-two"]
    one = await asker.get("/v1/queues/q-two")
    assert (one["counts"]["running"], one["pause"]) == (1, None)
    await asker.sees("GET", "/v1/queues/nobodys", "NOT_FOUND")
    await asker.sees("GET", "/v1/queues/q-one", "JOB_ACCESS_DENIED", who=someone("view", queues=("q-two",)))


async def pausing(asker: Asker) -> None:
    later = time_text(asker.ledger.clock.now() + timedelta(hours=1))
    paused = await asker.post("/v1/queues/q-two/pause", {"until": later, "reason": "a bug"})
    assert (paused["pause"]["by"], paused["pause"]["reason"]) == ("ann", "a bug")
    assert (await asker.get("/v1/queues/q-two"))["pause"]["by"] == "ann"
    assert (await asker.post("/v1/queues/q-two/resume", {}))["pause"] is None
    await asker.post("/v1/queues/q-two/resume", {}, "REFUSED")
    of_another = someone("manage", queues=("q-one",))
    for verb in ("pause", "resume", "drain"):
        await asker.post(f"/v1/queues/q-two/{verb}", {}, "JOB_ACCESS_DENIED", who=of_another)
    await asker.post("/v1/queues/q-two/pause", {"until": "2026-01-01T00:00:00"}, "BAD_REQUEST")


async def draining(asker: Asker) -> None:
    left = await asker.post("/v1/queues/q-two/drain", {})
    assert (left["running"], left["lost"]) == (0, 1)  # its worker holds no lease
    job = await asker.job(queue="q-three")
    async with asker.worker(job):
        left = await asker.post("/v1/queues/q-three/drain", {}, 202)
        assert (left["running"], left["workers"]) == (1, 1)
    assert (await asker.post("/v1/queues/q-two/resume", {}))["pause"] is None


async def figures(asker: Asker) -> None:
    await asker.completed(queue="q-four")
    stats = await asker.get("/v1/stats", params={"queue": "q-four"})
    assert [(each["task"], each["completed"]) for each in stats["totals"]] == [("send", 1)]
    begin = time_text(asker.ledger.clock.now() - timedelta(hours=1))
    spans = await asker.get("/v1/stats/buckets", params={"queue": "q-four", "step_s": 60, "since": begin})
    assert sum(each["completed"] for each in spans["items"]) == 1
    assert spans["next_since"] is None
    few = {"limit": 1, "since": begin}
    await asker.sees("GET", "/v1/stats/buckets", "BAD_REQUEST", params=few)
    rates = await asker.get("/v1/stats/rates", params={"queue": "q-four"})
    assert [(each["name"], each["success_rate"]) for each in rates["queues"]] == [("q-four", 1.0)]
    hidden = await asker.get("/v1/stats/rates", who=someone("view", queues=("nobodys",)))
    assert hidden["queues"] == hidden["tasks"] == hidden["spans"] == []
    await asker.sees("GET", "/v1/stats/rates?since=2020-01-01T00:00:00Z", "BAD_REQUEST")
    none = await asker.get("/v1/stats", who=someone("view", tasks=("nobodys",)))
    assert none["totals"] == none["failures"] == []
    await asker.ledger.enqueue(bulk_act, to_do=ToDo(act="cancel"), jobs=[], by="ann")
    for path, rows in (("/v1/stats", "totals"), ("/v1/stats/buckets", "items")):
        seen = {each["queue"] for each in (await asker.get(path))[rows]}
        assert "q-four" in seen
        assert ACTS_QUEUE not in seen, path
        own = await asker.get(path, params={"queue": ACTS_QUEUE})
        assert {each["queue"] for each in own[rows]} == {ACTS_QUEUE}


async def wanting(asker: Asker) -> None:
    await asker.completed(queue="q-five")
    nobody = await asker.get("/v1/queues/nobodys/wanted")
    assert (nobody["workers"], nobody["attempt_s"]) == (0, None)
    jobs = [await asker.job(queue="q-five") for _ in range(5)]
    seen = {"min_sequence": jobs[-1].sequence}
    found = await asker.get("/v1/queues/q-five/wanted", params=seen)
    assert (found["waiting"], found["running"], found["workers"]) == (5, 0, 1)
    assert found["enqueued_per_s"] > 0
    assert found["attempt_s"] >= 0
    await asker.running(jobs[0])
    crowded = {"concurrency": 1, "target_s": 1, **seen}
    assert (await asker.get("/v1/queues/q-five/wanted", params=crowded))["slots"] >= 1
    await asker.sees("GET", "/v1/queues/q-five/wanted?concurrency=0", "BAD_REQUEST")
    await asker.sees(
        "GET", "/v1/queues/q-five/wanted", "JOB_ACCESS_DENIED", who=someone("view", queues=("q-two",))
    )
    await asker.post("/v1/queues/q-five/pause", {})
    paused = await asker.get("/v1/queues/q-five/wanted")
    assert (paused["workers"], paused["paused"]) == (0, True)
    await asker.post("/v1/queues/q-five/resume", {})


CASES: Final = (listing, pausing, draining, figures, wanting)
