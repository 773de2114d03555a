"""Every code of limits and of unique keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from tests.support.gateway import Asker, greet, send, someone

from jobledger.ledger.model.times import time_text


async def defining(asker: Asker) -> None:
    path = "/v1/limits/api"
    planned = (await asker.sees("PUT", f"{path}?plan=true", 200, json={"slots": 2})).json()
    assert (planned["before"], planned["after"]["slots"]) == (None, 2)
    await asker.sees("GET", path, "NOT_FOUND")
    await asker.sees("PUT", f"{path}:acme", "REFUSED", json={"slots": 1})
    await asker.sees("PUT", path, 200, json={"slots": 2, "reason": "as told"})
    differs = (await asker.sees("PUT", f"{path}:acme", 200, json={"slots": 1})).json()
    assert differs["limit"] == "api:acme"
    await asker.sees("PUT", path, "BAD_REQUEST", json={})
    await asker.sees("PUT", path, "JOB_INVALID_INPUT", json={"slots": -1})


async def looking(asker: Asker) -> None:
    job = await asker.ledger.enqueue(send.options(queue="mail", limits=("nobodys",)))
    found = await asker.get("/v1/limits", params={"min_sequence": job.sequence})
    assert [(each["name"], each["key"], each["slots"]) for each in found["items"]] == [
        ("api", "", 2),
        ("api", "acme", 1),
    ]
    assert [(each["name"], each["held"]) for each in found["missing"]] == [("nobodys", 1)]
    shown = await asker.get("/v1/limits/api")
    assert (shown["terms"]["slots"], shown["reason"], len(shown["history"])) == (2, "as told", 2)
    await asker.sees("GET", "/v1/limits/none", "NOT_FOUND")
    await asker.sees("GET", "/v1/limits/a:", "JOB_INVALID_INPUT")


async def taking_back(asker: Asker) -> None:
    await asker.sees("DELETE", "/v1/limits/api:other", "NOT_FOUND")
    await asker.sees("DELETE", "/v1/limits/none", "NOT_FOUND")
    await asker.sees("DELETE", "/v1/limits/a:", "JOB_INVALID_INPUT")
    planned = (await asker.sees("DELETE", "/v1/limits/api?plan=true", 200)).json()
    assert planned["after"] is None
    assert (await asker.get("/v1/limits/api"))["terms"]["slots"] == 2
    await asker.sees("DELETE", "/v1/limits/api?reason=gone", 200)
    assert (await asker.get("/v1/limits/api"))["terms"] is None


async def simulating(asker: Asker) -> None:
    now = asker.ledger.clock.now()
    span = {"from": time_text(now - timedelta(hours=1)), "to": time_text(now + timedelta(hours=1))}
    found = await asker.post("/v1/limits/simulate", {**span, "limits": {"nobodys": 1}})
    assert (found["waits"], found["simulated"]["nobodys"]["jobs"]) == (1, 1)
    wrong: dict[str, Any] = {"from": span["to"], "to": span["from"], "limits": {}}
    await asker.post("/v1/limits/simulate", wrong, "JOB_INVALID_INPUT")
    long: dict[str, Any] = {**span, "from": time_text(now - timedelta(days=2)), "limits": {}}
    await asker.post("/v1/limits/simulate", long, "BAD_REQUEST")


async def unique_keys(asker: Asker) -> None:
    job = await asker.ledger.enqueue(greet, to="fay")
    found = await asker.get("/v1/unique/greet")
    key = next(each for each in found["items"] if each["job"] == job.id)
    assert (key["held"], key["arguments"]) == (True, {"to": "fay"})
    assert (await asker.get(f"/v1/unique/greet/{key['key']}"))["job"] == job.id
    await asker.sees("GET", "/v1/unique/greet/none", "NOT_FOUND")
    elsewhere = someone("view", queues=("bills",))
    assert (await asker.get("/v1/unique/greet", who=elsewhere))["items"] == []
    await asker.sees("GET", f"/v1/unique/greet/{key['key']}", "NOT_FOUND", who=elsewhere)


CASES: Final = (defining, looking, taking_back, simulating, unique_keys)
