"""Every code of acts on many jobs, and what a plan guards against."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from tests.support.gateway import Asker, send, someone
from tests.support.working import working

from jobledger.gateway.acts.bulk_act import bulk_act
from jobledger.gateway.api import bulk_acts
from jobledger.ledger.model.times import time_text

_OLD: Final[dict[str, Any]] = {"act": "cancel", "filter": {"queue": "many"}, "reason": "a mistake"}


async def planned_then_done(asker: Asker) -> None:
    jobs = [await asker.job(queue="many") for _ in range(30)]
    planned = await asker.post(
        "/v1/acts", {**_OLD, "filter": {"queue": "many", "min_sequence": jobs[-1].sequence}}
    )
    assert (planned["count"], planned["id"]) == (30, None)
    assert [each["result"] for each in planned["sample"]] == ["planned"] * 20
    late = await asker.job(queue="many")  # and what changes after the plan is left alone
    await asker.post(f"/v1/jobs/many/{jobs[0].id}/pause", {})
    answer = await asker.sees("POST", "/v1/acts", 202, json={"plan": planned["plan"]})
    begun = answer.json()
    again = await asker.post("/v1/acts", {"plan": planned["plan"]}, 202)
    assert (again["id"], again["count"], begun["count"]) == (begun["id"], 29, 29)
    path = answer.headers["location"]
    assert (await asker.get(path))["so_far"]["next"] == 0
    async with working(asker.ledger, bulk_act):
        await asker.until(path, "completed")
    done = await asker.get(path)
    assert (done["by"], done["act"], done["count"]) == ("ann", "cancel", 29)
    assert (done["so_far"]["done"], done["so_far"]["others"]) == (29, [])
    assert [(await each.snapshot()).state for each in (jobs[0], late)] == ["paused", "queued"]
    event = (await jobs[1].history())[-1].event
    assert (event.by, getattr(event, "reason", ""), event.causation) == ("ann", "a mistake", begun["id"])


async def chosen_by_a_search(asker: Asker) -> None:
    job = await asker.ledger.enqueue(send.options(queue="sought", tenant="acme"), to="ann")
    other = await asker.ledger.enqueue(send.options(queue="sought", tenant="beta"), to="ann")
    which = {"q": "tenant:acme since:1h", "queue": "sought", "min_sequence": other.sequence}
    planned = await asker.post("/v1/acts", {"act": "cancel", "filter": which})
    assert (planned["count"], [each["id"] for each in planned["sample"]]) == (1, [job.id])
    # What was typed relatively stands in the plan as it was meant then.
    kept = bulk_acts._decode(planned["plan"]).filter
    assert kept is not None
    assert "since:20" in (kept.q or "")
    begun = await asker.post("/v1/acts", {"plan": planned["plan"]}, 202)
    assert begun["count"] == 1
    await asker.post("/v1/acts", {"act": "cancel", "filter": {"q": "tennant:acme"}}, "BAD_REQUEST")
    await asker.post(
        "/v1/acts", {"act": "retry", "filter": {"q": "state:dead", "state": ["queued"]}}, "BAD_REQUEST"
    )


async def each_has_its_own_outcome(asker: Asker) -> None:
    dead, ended = await asker.dead(queue="outcomes"), await asker.completed(queue="outcomes")
    named = [{"queue": "outcomes", "id": each.id} for each in (dead, ended)]
    edit = {"act": "requeue", "jobs": named, "edit": {"to": "bob"}, "attempts": 2, "priority": "high"}
    planned = await asker.post("/v1/acts", edit)
    assert [each["result"] for each in planned["sample"]] == ["planned", "refused"]
    answer = await asker.sees("POST", "/v1/acts", 202, json={"plan": planned["plan"]})
    async with working(asker.ledger, bulk_act):
        await asker.until(answer.headers["location"], "completed")
    done = (await asker.get(answer.headers["location"]))["so_far"]
    assert (done["done"], done["refused"], [each["id"] for each in done["others"]]) == (1, 1, [ended.id])
    assert (await asker.get(f"/v1/jobs/outcomes/{dead.id}/input"))["to"] == "bob"
    later = {
        "act": "reschedule",
        "filter": {"queue": "outcomes"},
        "run_at": time_text(asker.ledger.clock.now()),
    }
    assert (await asker.post("/v1/acts", later))["count"] == 0
    for act in ("retry", "discard"):
        assert (await asker.post("/v1/acts", {"act": act, "filter": {"queue": "outcomes"}}))["count"] == 0


async def what_is_refused(asker: Asker) -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"act": "cancel"},
        {"act": "cancel", "filter": {}, "jobs": [{"queue": "mail", "id": "a"}]},
        {"act": "cancel", "filter": {"colour": "red"}},
        {"act": "cancel", "filter": {}, "attempts": 2},
        {"act": "reschedule", "filter": {}},
        {"act": "melt", "filter": {}},
        {"plan": "nonsense"},
        {"plan": "nonsense", "act": "cancel"},
    ]
    for body in wrong:
        await asker.post("/v1/acts", body, "BAD_REQUEST")
    await asker.post("/v1/acts", {"act": "cancel", "filter": {"sequence": 1}}, "ACTS_ON_PAST")
    missing = {"act": "cancel", "jobs": [{"queue": "mail", "id": "none"}]}
    await asker.post("/v1/acts", missing, "JOB_NOT_FOUND")
    for who in (someone("view"), someone("review")):
        await asker.post("/v1/acts", _OLD, "JOB_ACCESS_DENIED", who=who)
    edit = {"act": "requeue", "filter": {"queue": "mail"}, "edit": {"to": "bob"}}
    await asker.post("/v1/acts", edit, "JOB_ACCESS_DENIED", who=someone("view", "review"))
    large = {
        "act": "requeue",
        "filter": {"queue": "mail"},
        "edit": {"to": "a" * asker.ledger.config.payload_bytes_max},
    }
    planned = await asker.post("/v1/acts", {**large, "filter": {"queue": "nobodys"}})
    await asker.post("/v1/acts", {"plan": planned["plan"]}, "PAYLOAD_TOO_LARGE")
    # What the asker may not act on is not among the jobs.
    planned = await asker.post("/v1/acts", _OLD, who=someone("view", "cancel", queues=("bills",)))
    assert planned["count"] == 0
    plan = bulk_acts._decode((await asker.post("/v1/acts", _OLD))["plan"])
    old = msgspec.structs.replace(plan, expires_at=asker.ledger.clock.now())
    await asker.post("/v1/acts", {"plan": bulk_acts._encode(old)}, "PLAN_EXPIRED")


async def who_may_look(asker: Asker) -> None:
    planned = await asker.post("/v1/acts", {"act": "cancel", "filter": {"queue": "nobodys"}})
    path = (await asker.sees("POST", "/v1/acts", 202, json={"plan": planned["plan"]})).headers["location"]
    assert (await asker.get(path))["count"] == 0
    await asker.sees("GET", path, "JOB_ACCESS_DENIED", who=someone("view", queues=("mail",)))
    await asker.sees("GET", "/v1/acts/none", "JOB_NOT_FOUND")


CASES: Final = (
    planned_then_done,
    chosen_by_a_search,
    each_has_its_own_outcome,
    what_is_refused,
    who_may_look,
)
