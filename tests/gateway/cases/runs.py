"""Every code of runs: steps, graph, tree, signals, reruns, workflows and tables."""

from __future__ import annotations

from typing import Final

import msgspec
from tests.support.gateway import Asker, someone
from tests.support.working import working

from jobledger.ledger import Run, Signal, workflow
from jobledger.ledger.model.commands import CompleteStep
from jobledger.ledger.tables.record import TableRecord

APPROVAL: Final = Signal("approval", dict[str, str])


@workflow(queue="mail", max_attempts=1)
async def order(run: Run, cents: int) -> str:
    """Charge, ask somebody, ship."""
    await run.step(_charge, cents)
    told = await run.wait(APPROVAL)
    return f"shipped for {told['by']}"


async def _charge(cents: int) -> int:
    return cents


async def stories(asker: Asker) -> None:
    made = await asker.ledger.enqueue(order, 77)
    path = f"/v1/jobs/mail/{made.id}"
    async with working(asker.ledger, order):
        await asker.until(path, "paused")
        steps = await asker.get(f"{path}/steps")
        assert [each["key"] for each in steps["steps"]] == ["_charge", "approval"]
        assert "values" not in steps["steps"][0]
        shown = await asker.get(f"{path}/steps", params={"results": "true"})
        assert [each["values"]["result"] for each in shown["steps"]] == [77, None]
        await asker.sees("GET", f"{path}/steps?results=true", "JOB_ACCESS_DENIED", who=someone("view"))
        tag = {"if-none-match": (await asker.sees("GET", f"{path}/graph", 200)).headers["etag"]}
        await asker.sees("GET", f"{path}/steps", 304, headers=tag)
        await asker.sees("GET", f"{path}/graph", 304, headers=tag)
        tree = await asker.get(f"{path}/tree")
        assert (tree["task"], len(tree["steps"])) == ("order", 2)
        why = await asker.get(f"{path}/why")
        assert {why["hint"], why["waits"][0]["hint"]} == {f"POST {path}/signals/approval VALUE"}
        await asker.announced(order)
        await asker.post(f"{path}/signals/approval", {"by": 1}, "JOB_INVALID_INPUT")
        told = await asker.post(f"{path}/signals/approval?id=a1", {"by": "ann"}, 202)
        assert told["is_new"]
        assert not (await asker.post(f"{path}/signals/approval?id=a1", {"by": "ann"}))["is_new"]
        await asker.until(path, "completed")
    await asker.post(f"{path}/signals/approval", {"by": "ann"}, "REFUSED")
    large = {"by": "a" * (asker.ledger.config.payload_bytes_max + 1)}
    open_run = await asker.ledger.enqueue(order, 78)
    await asker.post(f"/v1/jobs/mail/{open_run.id}/signals/approval", large, "PAYLOAD_TOO_LARGE")
    await reruns(asker, path)
    listed = await asker.get("/v1/workflows")
    assert [each["workflow"] for each in listed["items"]] == ["order"]
    assert (await asker.get("/v1/workflows", who=someone("view", tasks=("x",))))["items"] == []
    assert (await asker.get("/v1/tables"))["items"] == []


async def reruns(asker: Asker, path: str) -> None:
    planned = await asker.post(f"{path}/rerun", {"from": "approval", "plan": True})
    assert ([each["step"] for each in planned["copied"]], planned["again"]) == (["_charge"], ["approval"])
    again = {"from": "approval", "id": "again-1"}
    answer = await asker.sees("POST", f"{path}/rerun", 202, json=again)
    assert answer.headers["location"] == "/v1/jobs/mail/again-1"
    assert not (await asker.post(f"{path}/rerun", again, 200))["created"]
    await asker.post(f"{path}/rerun", {"from": "nothing"}, "JOB_INVALID_INPUT")
    await asker.post(f"{path}/rerun", {}, "JOB_INVALID_INPUT")
    await asker.post(f"{path}/rerun", {"failed": True}, "REFUSED")  # it may still go on
    large = {"cents": "a" * (asker.ledger.config.payload_bytes_max + 1)}
    await asker.post(f"{path}/rerun", {"from": "approval", "input": large}, "PAYLOAD_TOO_LARGE")
    await asker.post(f"{path}/rerun", {"from": "approval"}, "JOB_ACCESS_DENIED", who=someone("view"))
    changed, reviewer = {"from": "approval", "input": {"cents": 1}}, someone("view", "review")
    await asker.post(f"{path}/rerun", changed, "JOB_ACCESS_DENIED", who=reviewer)


async def what_is_not_there(asker: Asker) -> None:
    for what in ("steps", "graph", "tree"):
        await asker.sees("GET", f"/v1/jobs/mail/none/{what}", "JOB_NOT_FOUND")
    await asker.post("/v1/jobs/mail/none/signals/approval", {}, "JOB_NOT_FOUND")
    await asker.post("/v1/jobs/mail/none/rerun", {"from": "a"}, "JOB_NOT_FOUND")


async def tables(asker: Asker) -> None:
    """Whoever is bound to queues or tasks sees those of its runs alone, also behind many others."""
    made = TableRecord(
        name="t", sha256="0" * 64, rows=1, bytes=1, schema={"n": "int64"}, expires_at=None, file="f"
    )
    result = msgspec.Raw(msgspec.json.encode(made))
    for queue in ("sheets", "cellar"):
        job = await asker.job(queue=queue)
        epoch = (await asker.running(job)).claim_epoch
        told = CompleteStep(epoch=epoch, step="t", kind="table", target="t", result=result)
        await asker.ledger.execute(job.ref, told)
    newest = (await asker.ledger.log.head()).last_sequence
    path = f"/v1/tables?limit=1&min_sequence={newest}"
    for who, queues in (
        (someone("view"), ["cellar"]),
        (someone("view", queues=("sheets",)), ["sheets"]),
        (someone("view", queues=("sheets", "c*"), tasks=("send",)), ["cellar"]),
        (someone("view", tasks=("greet",)), []),
    ):
        assert [each["queue"] for each in (await asker.get(path, who=who))["items"]] == queues


CASES: Final = (stories, tables, what_is_not_there)
