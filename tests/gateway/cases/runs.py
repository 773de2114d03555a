"""Every code of runs: steps, graph, tree, signals, reruns, workflows and tables."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from decimal import Decimal
from types import ModuleType
from typing import Any, Final, cast

import msgspec
import pyarrow as arrow_package  # noqa: ICN001
from tests.support.gateway import Asker, someone
from tests.support.run_tables import make_tables
from tests.support.working import working

from jobledger.ledger import Run, Signal, workflow
from jobledger.ledger.model.commands import CompleteStep
from jobledger.ledger.tables.record import TableRecord
from jobledger.ledger.tables.stores import open_store

pa: Any = arrow_package  # it says nothing of its types
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
        await asker.until(path, "waiting")
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
    for what in ("steps", "graph", "tree", "rows"):
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


async def rows(asker: Asker) -> None:
    """The first rows of a table, for who may see payloads, as JSON has them and within bounds."""
    far = pa.array([1_000_000_000_000, None, 0], pa.timestamp("s"))
    exact = pa.array([1, None, 3_000_000_001], pa.timestamp("ns"))
    typed: dict[str, Any] = {
        "n": [1, 2, 3],
        "text": ["<b>", None, ""],
        "euros": [Decimal("1.50"), None, Decimal("2.00")],
        "at": [datetime(2026, 1, 2, tzinfo=UTC)] * 3,
        "raw": [b"\x00", b"", None],
        "list": [[{"a": 1}], [], None],
        "far": far,
        "exact": exact,
    }
    long = {"text": [f"{n}{'x' * 100_000}" for n in range(12)]}
    job = await asker.job(queue="sheets")
    await asker.running(job)
    path = f"/v1/jobs/sheets/{job.id}/rows"
    made = await make_tables(asker.ledger, job, {"a/typed": typed, "long": long})
    shown = await asker.get(f"{path}?table=a/typed&limit=2")
    moment = shown["items"][0]["exact"]
    assert moment.replace("T", " ") == "1970-01-01 00:00:00.000000001"  # of pandas, or without it
    assert shown == {
        "step": "a/typed",
        "name": "typed",
        "rows": 3,
        "columns": made["a/typed"].schema,
        "items": [
            {
                "n": 1,
                "text": "<b>",
                "euros": "1.50",
                "at": "2026-01-02T00:00:00Z",
                "raw": "AA==",
                "list": [{"a": 1}],
                "far": "<value out of range: 1000000000000000>",
                "exact": moment,
            },
            {
                "n": 2,
                "text": None,
                "euros": None,
                "at": "2026-01-02T00:00:00Z",
                "raw": "",
                "list": [],
                "far": None,
                "exact": None,
            },
        ],
    }
    assert [each["n"] for each in (await asker.get(f"{path}?table=typed"))["items"]] == [1, 2, 3]
    cut = await asker.get(f"{path}?table=long")
    assert (cut["rows"], len(cut["items"])) == (12, 10)  # 1 MiB
    for who in (someone("view"), someone("view", "payloads", queues=("mail",))):
        await asker.sees("GET", path, "JOB_ACCESS_DENIED", who=who)
    bound = someone("view", "payloads", tasks=("greet",))
    await asker.sees("GET", f"{path}?table=typed", "JOB_NOT_FOUND", who=bound)
    for query in ("limit=0", "limit=101", "limit=many"):
        await asker.sees("GET", f"{path}?table=typed&{query}", "BAD_REQUEST")
    for query in ("", "?table=other"):
        refused = await asker.sees("GET", f"{path}{query}", "NOT_FOUND")
        assert "its steps with tables: a/typed, long" in refused.json()["detail"]
    with without("duckdb"):
        refused = await asker.sees("GET", f"{path}?table=typed", "NO_TABLES")
    assert "pip install 'jobledger[tables]'" in refused.json()["detail"]
    assert await open_store(asker.ledger).remove(made["long"])
    refused = await asker.sees("GET", f"{path}?table=long", "PAYLOAD_GONE")
    assert f"/{job.id}/rerun" in refused.json()["detail"]


async def rows_that_are_not_shown(asker: Asker) -> None:
    """What is too large, another file than was stored, and values that nothing has a text for."""
    wide = {"text": ["x" * (2 << 20)]}
    hidden: dict[str, Any] = {"text": pa.array([b"\xff"]).view(pa.string())}
    for columns, record, code in (
        ({"n": [1]}, {"bytes": (16 << 20) + 1}, "PAYLOAD_TOO_LARGE"),
        (wide, {}, "PAYLOAD_TOO_LARGE"),
        ({"n": [1]}, {"sha256": "0" * 64}, "PAYLOAD_GONE"),
        ({"n": [1]}, {"bytes": 10}, "PAYLOAD_GONE"),
        (hidden, {}, "REFUSED"),
    ):
        job = await asker.job(queue="sheets")
        await asker.running(job)
        await make_tables(asker.ledger, job, {"t": columns}, **record)
        refused = await asker.sees("GET", f"/v1/jobs/sheets/{job.id}/rows", code)
        if code != "PAYLOAD_GONE":
            assert f"`jobledger tables export {job.id} t FILE`" in refused.json()["detail"]


@contextlib.contextmanager
def without(library: str) -> Generator[None, None, None]:
    """Let a library be one that is not installed, for the length of a block."""
    kept = sys.modules.get(library)
    sys.modules[library] = cast("ModuleType", None)
    try:
        yield
    finally:
        del sys.modules[library]
        if kept is not None:
            sys.modules[library] = kept


CASES: Final = (stories, tables, rows, rows_that_are_not_shown, what_is_not_there)
