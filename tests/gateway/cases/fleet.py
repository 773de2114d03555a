"""Every code of workers, tasks, locks and the ledger."""

from __future__ import annotations

from typing import Final

from tests.support.earlier import of_an_earlier_release
from tests.support.gateway import Asker, send, someone
from tests.support.working import working

from jobledger.gateway.acts.verification import verify_task
from jobledger.ledger.masters import MastersHere
from jobledger.ledger.model.forms import FORM, FORM_FIRST
from jobledger.ledger.nats.owner_keys import OwnerKeys
from jobledger.ledger.owner_key import WrapKey


async def looking(asker: Asker) -> None:
    assert (await asker.get("/v1/locks"))["items"] == []
    async with working(asker.ledger, send), asker.ledger.lock("account", "42") as held:
        await asker.until_seen("/v1/tasks", lambda found: "send" in {each["name"] for each in found["items"]})
        workers = await asker.get("/v1/workers")
        assert ["mail"] in [each["queues"] for each in workers["items"]]
        task = await asker.get("/v1/tasks/send")
        assert (task["queue"], task["text"], task["workers"]) == ("mail", "Send a letter.", 1)
        (lock,) = (await asker.get("/v1/locks"))["items"]
        assert (lock["scope"], lock["lock"], lock["fencing_number"]) == ("account", "42", held.fencing_number)
        assert lock["is_alive"]
    elsewhere = someone("view", queues=("bills",))
    assert (await asker.get("/v1/tasks", who=elsewhere))["items"] == []
    assert (await asker.get("/v1/workers", who=elsewhere))["items"] == []
    await asker.sees("GET", "/v1/tasks/send", "TASK_NOT_FOUND", who=elsewhere)
    await asker.sees("GET", "/v1/tasks/none", "TASK_NOT_FOUND")


async def the_ledger(asker: Asker) -> None:
    job = await asker.job()
    shown = await asker.get("/v1/ledger")
    assert (shown["last_sequence"] >= job.sequence, len(shown["head_hash"]), shown["connected"]) == (
        True,
        64,
        True,
    )
    assert shown["projection"]["projection"] == ""
    hurts = await asker.get("/v1/diagnoses")
    assert ["queue_without_worker", "queue mail"] in [
        [each["kind"], each["object"]] for each in hurts["items"]
    ]


async def checked(asker: Asker) -> None:
    narrow = someone("view", "manage", queues=("mail",))
    await asker.sees("POST", "/v1/ledger/verify", "JOB_ACCESS_DENIED", who=narrow)
    answer = await asker.sees("POST", "/v1/ledger/verify", 202)
    again = (await asker.sees("POST", "/v1/ledger/verify", 200)).json()
    assert (again["id"], again["created"]) == (answer.json()["id"], False)
    path = answer.headers["location"]
    await asker.sees("GET", f"/v1/acts/{again['id']}", "JOB_NOT_FOUND")  # it is no act, in the same queue
    async with working(asker.ledger, verify_task(asker.folder / "none.db")):
        await asker.until(path, "completed")
    report = await asker.get(f"{path}/result")
    verified = (await asker.get("/v1/ledger"))["audited"]["verified"]
    assert (report["sound"], report["violations"], verified["sound"]) == (True, [], True)
    assert (verified["to_sequence"], verified["by"]) == (report["head_sequence"], "ann")


async def subscriptions(asker: Asker) -> None:
    async with asker.ledger.subscription("billing"):
        pass
    (found,) = (await asker.get("/v1/subscriptions"))["items"]
    assert (found["name"], found["lag"] > 0) == ("billing", True)
    await asker.sees("DELETE", "/v1/subscriptions/billing", 200)
    await asker.sees("DELETE", "/v1/subscriptions/billing", "NOT_FOUND")


async def retention(asker: Asker) -> None:
    before = await asker.get("/v1/retention")
    assert (before["sequence"], before["archive"]) == (0, "")
    said = await asker.sees("PUT", "/v1/retention", 200, json={"keep_s": 3600.0, "reason": "short"})
    assert (said.json()["terms"]["keep_s"], said.json()["changed_by"]) == (3600.0, "ann")
    assert (await asker.get("/v1/retention"))["terms"] == said.json()["terms"]
    await asker.sees("PUT", "/v1/retention", "JOB_INVALID_INPUT", json={"start": 0.2, "aim": 0.5})
    await asker.sees("PUT", "/v1/retention", "BAD_REQUEST", json={"to": ""})
    narrow = someone("view", "manage")
    await asker.sees("PUT", "/v1/retention", "JOB_ACCESS_DENIED", who=narrow, json={"keep_s": 60.0})


async def upgrade(asker: Asker) -> None:
    await asker.sees("POST", "/v1/upgrade/finish", "BAD_REQUEST", json={"force": "perhaps"})
    await of_an_earlier_release(asker.ledger)
    found = (await asker.sees("GET", "/v1/upgrade", 200)).json()
    assert (found["form"], found["newest"]) == (FORM_FIRST, FORM)
    await asker.sees("POST", "/v1/upgrade/finish", "BAD_REQUEST", json={"reason": "x" * 100_000})
    assert (await asker.get("/v1/upgrade"))["form"] == FORM_FIRST
    done = (await asker.sees("POST", "/v1/upgrade/finish", 200, json={"reason": "all run it"})).json()
    assert (done["form"], done["before"]) == (FORM, FORM_FIRST)


async def owners(asker: Asker) -> None:
    await asker.sees("POST", "/v1/owners/person:17/erase", "NOT_FOUND", json={"reason": "asked"})
    keys = asker.ledger.keys
    assert isinstance(keys, OwnerKeys)
    keys.masters = MastersHere({"m1": WrapKey(b"k" * 32)})
    await keys.key_for("person:17")
    planned = await asker.sees(
        "POST", "/v1/owners/person:17/erase", 200, params={"plan": "true"}, json={"reason": "asked"}
    )
    assert (planned.json()["state"], planned.json()["key"]) == ("planned", "person:17/1")
    await asker.sees("POST", "/v1/owners/person:17/erase", "JOB_INVALID_INPUT", json={})
    narrow = someone("view", "cancel", "review", "manage")
    await asker.sees(
        "POST", "/v1/owners/person:17/erase", "JOB_ACCESS_DENIED", who=narrow, json={"reason": "asked"}
    )
    begun = await asker.sees(
        "POST",
        "/v1/owners/person:17/erase",
        202,
        who=someone("erase"),
        json={"reason": "asked", "request": "4711"},
    )
    assert (begun.json()["state"], begun.json()["request"]) == ("erasing", "4711")
    assert (await asker.get("/v1/owners"))["items"] == [{"owner": "person:17", "state": "erasing", "jobs": 0}]
    assert (await asker.get("/v1/owners/person:17"))["is_closed"]
    await asker.sees("GET", "/v1/owners/person:18", "NOT_FOUND")
    await asker.sees("POST", "/v1/owners/person:17/hold", "REFUSED", json={})
    await asker.sees("POST", "/v1/owners/person:18/hold", 200, json={"reason": "a lawsuit"})
    await asker.sees("POST", "/v1/owners/person:18/unhold", 200, json={})
    await asker.sees("POST", "/v1/owners/person:18/unhold", "REFUSED", json={})
    await asker.sees("POST", "/v1/owners/person:18/hold", "JOB_ACCESS_DENIED", who=narrow, json={})
    await asker.sees("GET", "/v1/owners/jane@example.org", "JOB_INVALID_INPUT")
    for act in ("hold", "unhold"):
        await asker.sees("POST", f"/v1/owners/jane@example.org/{act}", "JOB_INVALID_INPUT", json={})


CASES: Final = (looking, the_ledger, checked, subscriptions, retention, upgrade, owners)
