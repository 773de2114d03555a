"""Every code of schedules."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from tests.support.gateway import Asker, someone
from tests.support.limits import LIMIT_S

from jobledger.ledger.model.times import time_text

_VERBS: Final = ("pause", "resume", "reset", "trigger", "backfill")
NIGHTLY: Final[dict[str, Any]] = {
    "task": "send",
    "cron": "30 2 * * *",
    "queue": "mail",
    "input": {"to": "eve"},
}


async def declaring(asker: Asker) -> None:
    made = (await asker.sees("PUT", "/v1/schedules/nightly", 200, json=NIGHTLY)).json()
    assert (made["queue"], made["task_known"], made["source"]) == ("mail", True, "operator")
    other = {**NIGHTLY, "cron": "0 3 * * *"}
    await asker.sees("PUT", "/v1/schedules/nightly", "DUPLICATE", json=other)
    await asker.sees("PUT", "/v1/schedules/nightly", 200, json={**other, "replace": True})
    await asker.sees("PUT", "/v1/schedules/nightly", "BAD_REQUEST", json={"task": "send"})
    await asker.sees("PUT", "/v1/schedules/nightly", "JOB_INVALID_INPUT", json={**NIGHTLY, "cron": "all day"})
    large = {**NIGHTLY, "input": {"to": "a" * (asker.ledger.config.payload_bytes_max + 1)}}
    await asker.sees("PUT", "/v1/schedules/large", "PAYLOAD_TOO_LARGE", json=large)
    elsewhere = someone("manage", queues=("bills",))
    await asker.sees("PUT", "/v1/schedules/nightly", "JOB_ACCESS_DENIED", json=NIGHTLY, who=elsewhere)


async def looking(asker: Asker) -> None:
    found = await asker.get("/v1/schedules")
    assert [each["name"] for each in found["items"]] == ["nightly"]
    assert found["items"][0]["cron"] == "0 3 * * *"
    assert (await asker.get("/v1/schedules/nightly"))["last_failure"] is None
    assert len((await asker.get("/v1/schedules/nightly/next", params={"count": 3}))["items"]) == 3
    hidden = someone("view", queues=("bills",))
    assert (await asker.get("/v1/schedules", who=hidden))["items"] == []
    for path in ("/v1/schedules/nightly", "/v1/schedules/nightly/next"):
        await asker.sees("GET", path, "NOT_FOUND", who=hidden)


async def acting(asker: Asker) -> None:
    path = "/v1/schedules/nightly"
    assert (await asker.post(f"{path}/pause", {"reason": "a holiday"}))["paused"]
    await asker.post(f"{path}/pause", {}, "REFUSED")
    assert not (await asker.post(f"{path}/resume", {}))["paused"]
    await asker.post(f"{path}/resume", {}, "REFUSED")
    traced = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    answer = await asker.sees("POST", f"{path}/trigger", 202, json={"reason": "now"}, headers=traced)
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['queue']}/{job['id']}"
    assert job["trace_id"] == traced["traceparent"][3:35]
    untraced = (await asker.sees("POST", f"{path}/trigger", 202, json={})).json()
    assert untraced["trace_id"] not in {"", job["trace_id"]}
    for each in (job, untraced):
        shown = await asker.get(f"/v1/jobs/{each['queue']}/{each['id']}")
        assert shown["trace"][3:35] == each["trace_id"], (shown["trace"], each)
    assert (await asker.get(f"/v1/jobs/{job['queue']}/{job['id']}/input")) == {"to": "eve"}
    now = asker.ledger.clock.now()
    days = {"from": time_text(now - timedelta(days=3)), "to": time_text(now)}
    made = [each["id"] for each in (await asker.post(f"{path}/backfill", days))["items"]]
    ticks = (await asker.get(path))["ticks"]
    assert (len(made), [each["job"] for each in ticks]) == (3, made[::-1])
    assert 2 * 86_400 < ticks[-1]["late_s"] < 3 * 86_400
    wrong = {"from": time_text(now), "to": time_text(now - timedelta(days=3))}
    await asker.post(f"{path}/backfill", wrong, "JOB_INVALID_INPUT")
    bare = await asker.sees("POST", f"{path}/backfill", "BAD_REQUEST", json={"from": "2026-01-01T00:00:00"})
    assert bare.json()["detail"].startswith("from has no time zone")
    assert (await asker.post(f"{path}/backfill", {"from": days["from"]}))["items"][-1]["id"] == made[-1]
    assert (await asker.sees("POST", f"{path}/reset", 200)).json()["name"] == "nightly"
    elsewhere = someone("manage", "queue", queues=("bills",))
    await asker.post(f"{path}/trigger", {}, "NOT_FOUND", who=elsewhere)


async def ending(asker: Asker) -> None:
    ended = (await asker.sees("DELETE", "/v1/schedules/nightly?reason=done", 200)).json()
    assert ended["removed"]
    assert [each["name"] for each in (await asker.get("/v1/schedules?removed=true"))["items"]] == ["nightly"]
    await asker.sees("DELETE", "/v1/schedules/nightly", "NOT_FOUND")
    for path in ("/v1/schedules/nightly", "/v1/schedules/nightly/next"):
        await asker.sees("GET", path, "NOT_FOUND")
    now = time_text(asker.ledger.clock.now())
    for verb in _VERBS:
        body = {"from": now, "to": now} if verb == "backfill" else {}
        await asker.post(f"/v1/schedules/none/{verb}", body, "NOT_FOUND")


async def ticking(asker: Asker) -> None:
    """A tick that is due is made once, although two ask for it at once."""
    soon = asker.ledger.clock.now() + timedelta(seconds=2)
    await asker.sees("PUT", "/v1/schedules/once", 200, json={"task": "send", "at": time_text(soon)})
    assert (await asker.post("/v1/schedules/handle", None))["items"] == []
    async with asyncio.timeout(LIMIT_S):
        while asker.ledger.clock.now() <= soon:
            await asyncio.sleep(0.05)
    answers = await asyncio.gather(*(asker.post("/v1/schedules/handle", None) for _ in range(2)))
    made = [each for answer in answers for each in answer["items"]]
    assert [each["schedule"] for each in made] == ["once"]
    assert len(made[0]["jobs"]) == 1
    again = await asker.post("/v1/schedules/handle", None)
    assert (again["items"], again["left"]) == ([], False)


CASES: Final = (declaring, looking, acting, ending, ticking)
