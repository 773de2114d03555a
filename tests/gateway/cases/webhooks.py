"""Every code of webhooks that go out, and of watches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from tests.support.gateway import Asker, someone

from jobledger.ledger.model.times import time_text

SHOP: Final[dict[str, Any]] = {
    "target": {"url": "https://shop.example/hooks?key=hidden"},
    "events": ["queued"],
    "secrets": ["env:SHOP"],
    "headers": {"X-Key": "visible"},
}
BILL: Final[dict[str, Any]] = {
    "target": {"task": "bill", "queue": "billing"},
    "events": ["queued"],
    "queue": "parcels",
}
DEEP: Final[dict[str, Any]] = {"figure": "depth", "queue": "mail", "above": 10}
ODD: Final = "a" * 33


async def setting(asker: Asker) -> None:
    path = "/v1/webhooks/shop"
    await asker.sees("GET", path, "NOT_FOUND")
    made = (await asker.sees("PUT", path, 200, json={**SHOP, "reason": "as told"})).json()
    assert (made["status"], made["reason"], made["changed_by"]) == ("active", "as told", "ann")
    again = (await asker.sees("PUT", path, 200, json={**SHOP, "secrets": [], "events": ["failed"]})).json()
    assert again["definition"]["secrets"] == ["env:SHOP"]
    await asker.sees("PUT", path, "JOB_INVALID_INPUT", json={**SHOP, "secrets": ["plain"]})
    await asker.sees("PUT", f"/v1/webhooks/{ODD}", "JOB_INVALID_INPUT", json=SHOP)
    shown = await asker.get(path)
    assert [each["event"] for each in shown["history"]] == ["set", "set"]
    assert shown["info"]["definition"]["target"]["url"] == SHOP["target"]["url"]
    viewer = someone("view")
    for seen in (await asker.get(path, who=viewer), await asker.get("/v1/webhooks", who=viewer)):
        assert "hidden" not in str(seen).replace("'hidden'", "")
        assert "visible" not in str(seen)
    bound = someone("view", queues=("mail",))
    await asker.sees("GET", "/v1/webhooks", "JOB_ACCESS_DENIED", who=bound)


async def acting(asker: Asker) -> None:
    path = "/v1/webhooks/shop"
    for act in ("pause", "resume"):
        found = await asker.post(f"{path}/{act}", {"reason": "as told"})
        assert found["status"] == ("paused" if act == "pause" else "active")
        await asker.post(f"/v1/webhooks/none/{act}", {}, "NOT_FOUND")
        await asker.post(f"/v1/webhooks/{ODD}/{act}", {}, "JOB_INVALID_INPUT")
    rotated = await asker.post(f"{path}/rotate", {"secret": "env:NEW"})
    assert rotated["definition"]["secrets"] == ["env:NEW", "env:SHOP"]
    await asker.post(f"{path}/rotate", {"secret": "env:NEW"}, "REFUSED")
    await asker.post(f"{path}/rotate", {"secret": "plain"}, "JOB_INVALID_INPUT")
    await asker.post("/v1/webhooks/none/rotate", {"secret": "env:NEW"}, "NOT_FOUND")
    made = (await asker.sees("POST", f"{path}/test", 202)).json()
    assert made["queue"] == "webhooks-out"
    await asker.sees("POST", "/v1/webhooks/none/test", "NOT_FOUND")
    await asker.sees("POST", f"/v1/webhooks/{ODD}/test", "JOB_INVALID_INPUT")


async def redelivering(asker: Asker) -> None:
    path = "/v1/webhooks/bill"
    await asker.sees("PUT", path, 200, json=BILL)
    job = await asker.job(queue="parcels")
    since = time_text(asker.ledger.clock.now() - timedelta(minutes=5))
    planned = await asker.post(f"{path}/redeliver", {"since": since})
    assert (planned["matched"], planned["owed"], planned["first"], planned["made"]) == (
        1,
        1,
        job.sequence,
        None,
    )
    assert (await asker.post(f"{path}/redeliver", {"since": since, "plan": False}))["made"] == 1
    await asker.post("/v1/webhooks/none/redeliver", {"since": since}, "NOT_FOUND")
    await asker.post(f"/v1/webhooks/{ODD}/redeliver", {"since": since}, "JOB_INVALID_INPUT")
    head = (await asker.ledger.log.head()).last_sequence
    page = await asker.get(f"{path}/deliveries", params={"min_sequence": head, "limit": 1})
    assert [(each["id"], each["queue"]) for each in page["items"]] == [
        (f"webhook-bill-{job.sequence}", "billing")
    ]
    await asker.sees("GET", f"{path}/deliveries?after=odd", "CURSOR_MISMATCH")
    await asker.sees("GET", "/v1/webhooks/none/deliveries", "NOT_FOUND")
    await asker.sees("GET", f"/v1/webhooks/{ODD}/deliveries", "JOB_INVALID_INPUT")


async def removing(asker: Asker) -> None:
    for name in ("shop", "bill"):
        removed = (await asker.sees("DELETE", f"/v1/webhooks/{name}?reason=over", 200)).json()
        assert (removed["status"], removed["reason"]) == ("removed", "over")
        await asker.sees("DELETE", f"/v1/webhooks/{name}", "NOT_FOUND")
    await asker.sees("DELETE", f"/v1/webhooks/{ODD}", "JOB_INVALID_INPUT")
    assert (await asker.get("/v1/webhooks"))["items"] == []


async def watching(asker: Asker) -> None:
    path = "/v1/watches/deep"
    await asker.sees("GET", path, "NOT_FOUND")
    made = (await asker.sees("PUT", path, 200, json=DEEP)).json()
    assert (made["watches"], made["firing"]) == ("depth of queue mail above 10", False)
    await asker.sees("PUT", path, "JOB_INVALID_INPUT", json={"figure": "depth"})
    assert [each["watch"] for each in (await asker.get("/v1/watches"))["items"]] == ["deep"]
    assert len((await asker.get(path))["history"]) == 1
    await asker.sees("DELETE", f"{path}?reason=over", 200)
    await asker.sees("DELETE", path, "NOT_FOUND")


CASES: Final = (setting, acting, redelivering, removing, watching)
