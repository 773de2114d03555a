"""Every code of keys, and that whoever is bound to some queues cannot make a key for all."""

from __future__ import annotations

from typing import Final

from tests.support.gateway import Asker, someone


async def whole_life(asker: Asker) -> None:
    body = {"name": "ci", "role": "enqueuer", "queues": ["mail"]}
    answer = await asker.sees("POST", "/v1/keys", 201, json=body)
    made = answer.json()
    assert answer.headers["location"] == f"/v1/keys/{made['info']['key']}"
    key, secret = made["info"]["key"], made["secret"]
    assert secret.startswith(f"jl_{key}_")
    assert (made["info"]["created_by"], made["info"]["permissions"]) == ("ann", ["queue"])
    listed = await asker.get("/v1/keys")
    assert [each["key"] for each in listed["items"]] == [key]
    assert secret not in str(listed)
    rotated = await asker.post(f"/v1/keys/{key}/rotate", {"grace_s": 60, "reason": "yearly"})
    assert rotated["secret"] != secret
    shown = await asker.get(f"/v1/keys/{key}")
    assert [each["event"] for each in shown["history"]] == ["rotated", "created"]
    ended = await asker.sees("DELETE", f"/v1/keys/{key}?reason=gone", 200)
    assert (ended.json()["standing"], ended.json()["reason"]) == ("revoked", "gone")
    assert (await asker.get("/v1/keys"))["items"] == []
    assert len((await asker.get("/v1/keys?ended=true"))["items"]) == 1
    await asker.sees("DELETE", f"/v1/keys/{key}", "REFUSED")
    await asker.sees("POST", f"/v1/keys/{key}/rotate", "REFUSED", json={})


async def refusals(asker: Asker) -> None:
    await asker.sees("POST", "/v1/keys", "JOB_INVALID_INPUT", json={"name": "ci"})
    await asker.sees("POST", "/v1/keys", "BAD_REQUEST", json={"name": "ci", "role": "root"})
    await asker.sees("POST", "/v1/keys/nobody/rotate", "JOB_INVALID_INPUT", json={"grace_s": -1})
    for method, path in (("GET", "/v1/keys/nobody"), ("DELETE", "/v1/keys/nobody")):
        await asker.sees(method, path, "NOT_FOUND")
    await asker.sees("POST", "/v1/keys/nobody/rotate", "NOT_FOUND", json={})


async def bound(asker: Asker) -> None:
    eve = someone("admin", "view", queues=("mail",))
    body = {"name": "all", "role": "admin"}
    await asker.sees("POST", "/v1/keys", "JOB_ACCESS_DENIED", who=eve, json=body)
    await asker.sees("GET", "/v1/keys", "JOB_ACCESS_DENIED", who=eve)
    me = await asker.get("/v1/me", who=eve)
    assert me == {"name": "eve", "key": "", "permissions": ["view", "admin"], "queues": ["mail"], "tasks": []}


CASES: Final = (whole_life, refusals, bound)
