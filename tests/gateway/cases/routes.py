"""Every code of routes: what they are, what comes in, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from tests.support.gateway import Asker, someone

from jobledger.ledger.model.hooks.schemes import PRESETS, sign
from jobledger.ledger.webhooks.secrets import Secrets

PUSH: Final[dict[str, Any]] = {"repository": {"name": "shop"}, "to": "gil"}
GITHUB: Final[dict[str, Any]] = {
    "scheme": "github",
    "secrets": ["env:OLD", "env:NEW"],
    "body_bytes_max": 10_000,
    "rules": [
        {
            "name": "push",
            "task": "send",
            "when": {"header": "X-GitHub-Event", "is": "push"},
            "input": {"to": "/to"},
        }
    ],
}
_BODY: Final = json.dumps(PUSH).encode()


def signed(
    name: str, secret: str, body: bytes, more: dict[str, str] | None = None, *, at: int = 0
) -> dict[str, str]:
    """Return the headers of a provider's request."""
    scheme, stamp = PRESETS[name], str(at)
    headers = {scheme.header: sign(scheme, secret, body, timestamp=stamp)}
    if scheme.timestamp_header and scheme.timestamp_header != scheme.header:
        headers[scheme.timestamp_header] = stamp
    return {**headers, **(more or {})}


def pushed(delivery: str, secret: str = "new", body: bytes = _BODY, event: str = "push") -> dict[str, Any]:
    """Return a request as GitHub sends it."""
    named = {"X-GitHub-Delivery": delivery, "X-GitHub-Event": event, "content-type": "application/json"}
    return {"content": body, "headers": signed("github", secret, body, named)}


async def defining(asker: Asker) -> None:
    asker.gateway.secrets = Secrets({"NEW": "new", "SLACK": "shh", "EMPTY": ""})
    path = "/v1/routes/github"
    await asker.sees("DELETE", path, "NOT_FOUND")
    await asker.sees("GET", path, "NOT_FOUND")
    planned = await asker.sees("PUT", f"{path}?plan=true", 200, json=GITHUB)
    assert planned.json()["changed"]
    await asker.sees("GET", path, "NOT_FOUND")
    await asker.sees("PUT", f"{path}?reason=new", 200, json=GITHUB)
    assert not (await asker.sees("PUT", path, 200, json=GITHUB)).json()["changed"]
    changes: list[dict[str, Any]] = [
        {"rule": []},
        {"secrets": ["hunter2"]},
        {"rules": [{"name": "a", "task": "t", "x": 1}]},
    ]
    for change in changes:
        refused = await asker.sees("PUT", path, "JOB_INVALID_INPUT", json={**GITHUB, **change})
        assert "hunter2" not in refused.text
    elsewhere = someone("manage", tasks=("bill-*",))
    await asker.sees("PUT", path, "JOB_ACCESS_DENIED", json=GITHUB, who=elsewhere)
    shown = await asker.get(path)
    assert (shown["address"], shown["reason"], shown["by"]) == ("/in/github", "new", "ann")
    assert shown["definition"]["secrets"] == GITHUB["secrets"]
    listed = await asker.get("/v1/routes", params={"min_sequence": shown["sequence"]})
    assert [(each["name"], each["definition"]["rules"][0]["task"]) for each in listed["items"]] == [
        ("github", "send")
    ]


async def receiving(asker: Asker) -> None:
    path = "/in/github"
    first = await asker.sees("POST", path, 202, **pushed("d1"))
    again = await asker.sees("POST", path, 202, **pushed("d1", body=b"{}"))
    assert first.json() == again.json()
    (job,) = first.json()["jobs"]
    shown = await asker.get(f"/v1/jobs/{job['queue']}/{job['job']}")
    assert (shown["input"], shown["events"][0]["by"]) == ({"to": "gil"}, "route:github")
    nothing = await asker.sees("POST", path, 200, **pushed("d2", event="star"))
    assert nothing.json() == {"delivery": "d2", "matched": 0, "jobs": []}
    ping = await asker.sees("POST", path, 200, **pushed("d3", event="ping"))
    assert ping.json()["matched"] == 0
    await asker.sees("GET", "/v1/routes/github/deliveries/d3", "NOT_FOUND")


async def refusing(asker: Asker) -> None:
    path, head = "/in/github", (await asker.ledger.log.head()).last_sequence
    await asker.sees("POST", path, "BAD_SIGNATURE", **pushed("d9", "retired"))
    await asker.sees("POST", path, "BAD_SIGNATURE", content=_BODY)
    changed = pushed("d9")
    await asker.sees("POST", path, "BAD_SIGNATURE", content=_BODY + b" ", headers=changed["headers"])
    await asker.sees("POST", path, "PAYLOAD_TOO_LARGE", **pushed("d9", body=b"x" * 10_001))

    async def endless() -> Any:
        while True:
            yield b"x" * 4_000

    await asker.sees("POST", path, "PAYLOAD_TOO_LARGE", content=endless())
    await asker.sees("POST", "/in/nothing", "NOT_FOUND", **pushed("d9"))
    assert (await asker.ledger.log.head()).last_sequence == head
    refused = await asker.get("/v1/routes/github/refused")
    assert sorted(each["code"] for each in refused["items"]) == ["BAD_SIGNATURE"] * 3 + ["DIFFERENT_BODY"]
    assert "retired" not in json.dumps(refused)
    await asker.sees("GET", "/v1/routes/nothing/refused", "NOT_FOUND")
    await asker.sees("PUT", "/v1/routes/lost", 200, json={**GITHUB, "secrets": ["env:EMPTY", "env:GONE"]})
    await asker.sees("POST", "/in/lost", "SECRET_UNAVAILABLE", **pushed("d9"))
    await asker.sees("PUT", "/v1/routes/inner", 200, json={"scheme": "internal"})
    await asker.sees("POST", "/in/inner", "NOT_FOUND", **pushed("d9"))


async def greeting_slack(asker: Asker) -> None:
    await asker.sees(
        "PUT",
        "/v1/routes/slack",
        200,
        json={"scheme": "slack", "secrets": ["env:SLACK"], "rules": [{"name": "any", "task": "send"}]},
    )
    now = int(asker.ledger.clock.now().timestamp())
    body = json.dumps({"type": "url_verification", "challenge": "3eZ"}).encode()
    hello = await asker.sees(
        "POST", "/in/slack", 200, content=body, headers=signed("slack", "shh", body, at=now)
    )
    assert hello.json() == {"challenge": "3eZ"}
    form = b"command=%2Fship&text=shop&trigger_id=1"
    headers = signed("slack", "shh", form, {"content-type": "application/x-www-form-urlencoded"}, at=now)
    taken = await asker.sees("POST", "/in/slack", 202, content=form, headers=headers)
    assert taken.json()["delivery"].startswith("h-")
    old = signed("slack", "shh", form, at=now - 301)
    await asker.sees("POST", "/in/slack", "STALE_TIMESTAMP", content=form, headers=old)


async def looking(asker: Asker) -> None:
    path = "/v1/routes/github/deliveries"
    one = await asker.get(f"{path}/d1")
    sequence = one["history"][0]["stream_sequence"]
    await asker.sees("GET", f"{path}/d1", 304, headers={"if-none-match": f'"{sequence}"'})
    assert one["secret"] == 2
    last = (await asker.get(f"{path}/d2"))["history"][0]["stream_sequence"]
    found = await asker.get(path, params={"min_sequence": last, "limit": 1})
    assert ([each["name"] for each in found["items"]], found["next"]) == (["d2"], last)
    older = await asker.get(path, params={"before": found["next"], "matched": "true"})
    assert ([each["name"] for each in older["items"]], older["next"]) == (["d1"], None)
    assert (await asker.get(path, params={"sequence": sequence - 1}))["items"] == []


async def trying_and_retrying(asker: Asker) -> None:
    path = "/v1/routes/github/test"
    kept = await asker.post(path, {"delivery": "d1"})
    given = {
        "body": base64.b64encode(_BODY).decode(),
        "headers": {"X-GitHub-Event": "push"},
    }
    assert (await asker.post(path, given)) == kept
    assert [each["input"] for each in kept["items"]] == [{"to": "gil"}]
    for wrong in ({}, {"body": "", "delivery": "d1"}, {"body": "#"}):
        await asker.post(path, wrong, "BAD_REQUEST")
    await asker.post(path, {"delivery": "d9"}, "NOT_FOUND")
    again = await asker.post("/v1/routes/github/deliveries/d1/retry", {"reason": "once more"})
    assert [each["job"][-3:] for each in again["jobs"]] == ["-r1"]
    await asker.post("/v1/routes/github/deliveries/d9/retry", {}, "NOT_FOUND")
    await asker.sees("PUT", "/v1/routes/github", 200, json={**GITHUB, "keep_bodies_days": 0})
    await asker.sees("POST", "/in/github", 202, **pushed("d4"))
    await asker.post(path, {"delivery": "d4"}, "PAYLOAD_GONE")
    await asker.post("/v1/routes/github/deliveries/d4/retry", {}, "PAYLOAD_GONE")
    await asker.sees("DELETE", "/v1/routes/github?plan=true", 200)
    await asker.sees("DELETE", "/v1/routes/github?reason=gone", 200)
    await asker.sees("POST", "/in/github", "NOT_FOUND", **pushed("d5"))


async def emitting(asker: Asker) -> None:
    rule = {"name": "told", "task": "send", "queue": "mail", "input": {"to": "/to"}, "id": "/order"}
    await asker.sees("PUT", "/v1/routes/orders", 200, json={"scheme": "internal", "rules": [rule]})
    path, body = "/v1/routes/orders/emit", {"data": {"to": "ann", "order": "emitted-1"}, "id": "e1"}
    made = await asker.post(path, body)
    assert (made["jobs"][0]["job"], made["repeated"]) == ("emitted-1", False)
    again = await asker.post(path, body)
    assert (again["jobs"], again["repeated"]) == (made["jobs"], True)
    await asker.post("/v1/routes/nothing/emit", body, "NOT_FOUND")
    await asker.post(path, {"data": 1, "id": ""}, "JOB_INVALID_INPUT")
    await asker.post(path, body, "JOB_ACCESS_DENIED", who=someone("queue", queues=("mail",)))
    lost = {"scheme": "internal", "rules": [{"name": "x", "graph": "nothing"}]}
    await asker.sees("PUT", "/v1/routes/lost", "NOT_FOUND", json=lost)


CASES: Final = (defining, receiving, refusing, greeting_slack, looking, trying_and_retrying, emitting)
