"""Every code of batches: opened, filled in portions, closed, shown and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from tests.support.gateway import Asker, once, send, someone
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.audit.verify import verify
from jobledger.gateway.http.endpoint import NDJSON
from jobledger.ledger import task
from jobledger.ledger.model.commands import Claim, CompleteStep, StartStep
from jobledger.ledger.model.runs.orders import BATCH_CLOSED, BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import JobRef

_LINES: Final = {"content-type": NDJSON}
_BULK: Final = "/v1/jobs/bulk"


@task(queue="reports")
async def report(batch: str, counts: dict[str, int]) -> str:
    """Tell how a batch ended."""
    return f"{batch}: {counts}"


def _inputs(first: int, count: int) -> bytes:
    return b"\n".join(msgspec.json.encode({"to": f"p{n}"}) for n in range(first, first + count))


async def _add(asker: Asker, query: str, expected: int | str, body: Any = b'{"to":"a"}', **more: Any) -> Any:
    headers = {**_LINES, **more.pop("headers", {})}
    answer = await asker.sees("POST", f"{_BULK}?{query}", expected, content=body, headers=headers, **more)
    return answer.json()


async def filled_in_portions(asker: Asker) -> None:
    await asker.announced(send, report, once)
    opening = {"task": "send", "queue": "letters", "on_end": {"task": "report", "priority": "high"}}
    made = (await asker.sees("PUT", "/v1/batches/b1", 201, json=opening)).json()
    assert (made["task"], made["queue"], made["on_end"], made["count"]) == ("send", "letters", "report", None)
    assert not (await asker.sees("PUT", "/v1/batches/b1", 200, json=opening)).json()["ended"]
    assert (await _add(asker, "batch=b1&task=send", 202, _inputs(0, 30)))["created"] == 30
    again = await _add(asker, "batch=b1&task=send&first=20", 202, _inputs(20, 20))
    assert (again["created"], again["existing"]) == (10, 10)
    whole = b'{"task":"send","input":{"to":"p40"},"priority":"low"}'
    assert (await _add(asker, "batch=b1&first=40", 202, whole))["created"] == 1
    job = await asker.get("/v1/jobs/letters/b1-1-40")
    assert (job["input"], job["priority"]) == ({"to": "p40"}, "low")
    for count, words in ((40, "more than 40 jobs"), (42, "fewer than 42 jobs")):
        refused = await asker.post("/v1/batches/b1/close", {"count": count}, "JOB_INVALID_INPUT")
        assert words in refused["detail"]
    for _ in range(2):
        assert (await asker.post("/v1/batches/b1/close", {"count": 41}))["count"] == 41
    await asker.post("/v1/batches/b1/close", {"count": 40}, "REFUSED")
    beyond = await _add(asker, "batch=b1&task=send&first=41", "JOB_INVALID_INPUT")
    assert "is closed and has 41 jobs" in beyond["detail"]
    async with working(asker.ledger, send, report, queues=("letters", "reports")):
        await asker.until("/v1/batches/b1", "completed")
        await asker.until("/v1/jobs/reports/b1-end", "completed")
    shown = await asker.get("/v1/batches/b1")
    assert (shown["ended"], shown["counts"], shown["created_by"]) == (41, {"completed": 41}, "ann")
    assert (await asker.get("/v1/jobs/reports/b1-end/result")) == "b1: {'completed': 41}"
    assert (await verify(asker.ledger.log)).sound


async def one_at_a_time(asker: Asker) -> None:
    """While jobs are added nobody else adds some, or closes: a job beyond the last one would be nobody's."""
    await asker.sees("PUT", "/v1/batches/b2", 201, json={"task": "send"})
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def lines() -> AsyncIterator[bytes]:
        yield b'{"to":"a"}\n'
        begun.set()
        await go_on.wait()
        yield b'{"to":"b"}\n'

    adding = asyncio.create_task(_add(asker, "batch=b2&task=send", 202, lines()))
    async with asyncio.timeout(LIMIT_S):
        await begun.wait()
        await asker.post("/v1/batches/b2/close", {"count": 1}, "LEDGER_BUSY")
        await _add(asker, "batch=b2&task=send", "LEDGER_BUSY")
        go_on.set()
        assert (await adding)["lines"] == 2


async def cancelled(asker: Asker) -> None:
    await asker.post(
        "/v1/batches/b2/cancel", {"reason": "a mistake"}, "JOB_ACCESS_DENIED", who=someone("queue")
    )
    shown = await asker.post("/v1/batches/b2/cancel", {"reason": "a mistake"})
    assert (shown["status"], shown["count"]) == ("cancelled", None)
    await asker.post("/v1/batches/b2/cancel", {}, "ILLEGAL_TRANSITION")
    await _add(asker, "batch=b2&task=send&first=2", "ILLEGAL_TRANSITION")
    await asker.post("/v1/batches/b2/close", {"count": 2}, "ILLEGAL_TRANSITION")
    await asker.sees("PUT", "/v1/batches/b2", "ILLEGAL_TRANSITION", json={"task": "send"})
    assert (await asker.get("/v1/jobs/mail/b2-1-1"))["status"] == "cancelled"


async def what_is_refused(asker: Asker) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"task": "melt"}, "TASK_NOT_FOUND"),
        ({"task": "send", "queue": "jobledger"}, "JOB_INVALID_INPUT"),
        ({"task": "send", "on_end": {"task": "send", "queue": "webhooks-out"}}, "JOB_INVALID_INPUT"),
        ({"task": "send", "on_end": {"task": "once"}}, "JOB_INVALID_INPUT"),
        ({"task": "send", "colour": "red"}, "BAD_REQUEST"),
    ]
    for body, code in wrong:
        await asker.sees("PUT", "/v1/batches/b3", code, json=body)
    await asker.sees("PUT", "/v1/batches/b1", "JOB_INVALID_INPUT", json={"task": "send"})
    narrow = someone("queue", "view", "cancel", queues=("mail",))
    for body in ({"task": "send", "queue": "other"}, {"task": "send", "on_end": {"task": "report"}}):
        await asker.sees("PUT", "/v1/batches/b3", "JOB_ACCESS_DENIED", json=body, who=narrow)
    await asker.sees("GET", "/v1/batches/b3", "NOT_FOUND")
    await asker.sees("GET", "/v1/batches/b1", "NOT_FOUND", who=narrow)
    for verb, body in (("close", {"count": 1}), ("cancel", {})):
        await asker.post(f"/v1/batches/b1/{verb}", body, "NOT_FOUND", who=narrow)
    await _add(asker, "batch=b1&task=send", "NOT_FOUND", who=narrow)
    await asker.sees("PUT", "/v1/batches/b4", 201, json={"task": "send"}, who=narrow)
    assert (await asker.get("/v1/batches/b4", who=narrow))["status"] == "queued"
    for value in ("as if it were a number", 1):  # it would end with jobs that nobody counted, or never
        refused = await asker.post("/v1/jobs/jobledger/b4/signals/closed", value, "REFUSED")
        assert "one of the ledger's own" in refused["detail"]
    assert (await asker.get("/v1/batches/b4"))["count"] is None
    gap = await _add(asker, "batch=b4&task=send&first=1", "JOB_INVALID_INPUT")
    assert "batch b4 has no job 0" in gap["detail"]
    lines: list[tuple[bytes, str, str]] = [
        (b'{"task":"report","input":{"batch":"b","counts":{}}}', "", "jobs of task send in queue mail"),
        (b'{"task":"send","queue":"loud"}', "", "is one of task send in queue loud"),
        (b'{"task":"send","id":"own"}', "", "leave id out"),
        (b'{"to":7}', "&task=send", "to"),
    ]
    for line, more, words in lines:
        refused = await _add(asker, f"batch=b4{more}", "JOB_INVALID_INPUT", line)
        assert refused["extra"] == {"line": 1, "accepted": 0}
        assert words in refused["detail"]
    await _add(asker, "first=1", "BAD_REQUEST")
    await _add(asker, "batch=b4&task=send", "BAD_REQUEST", headers={"idempotency-key": "k"})


async def a_place_that_is_taken(asker: Asker) -> None:
    """A job of somebody else is none of the batch: its end would be waited for for ever."""
    await asker.ledger.enqueue(send.options(id="b5-1-1"))
    await asker.sees("PUT", "/v1/batches/b5", 201, json={"task": "send"})
    refused = await _add(asker, "batch=b5&task=send", "JOB_INVALID_INPUT", _inputs(0, 3))
    assert "b5-1-1 of queue mail is there and none of batch b5" in refused["detail"]


async def closed_while_its_run_begins_to_count(asker: Asker) -> None:
    """The run has taken the number, and was killed before it acted on it."""
    await asker.sees("PUT", "/v1/batches/b6", 201, json={"task": "send"})
    await _add(asker, "batch=b6&task=send", 202, _inputs(0, 2))
    ref, ledger = JobRef(queue=BUILT_IN_QUEUE, job_id="b6"), asker.ledger
    epoch = (await ledger.execute(ref, Claim(worker="web-1-0a", lease_s=15))).claim_epoch
    waits = StartStep(epoch=epoch, step=BATCH_CLOSED, kind="wait", target=BATCH_CLOSED)
    await ledger.execute(ref, waits)
    await asker.post("/v1/batches/b6/close", {"count": 2})
    (signal,) = (await ledger.handle_of(ref).snapshot()).signals
    taken = CompleteStep(
        epoch=epoch,
        step=BATCH_CLOSED,
        kind="wait",
        target=BATCH_CLOSED,
        result=signal.value,
        signal=signal.sequence,
    )
    await ledger.execute(ref, taken)
    assert (await asker.get("/v1/batches/b6"))["count"] == 2
    await asker.post("/v1/batches/b6/close", {"count": 1}, "REFUSED")
    await _add(asker, "batch=b6&task=send&first=2", "JOB_INVALID_INPUT")


CASES: Final = (
    filled_in_portions,
    one_at_a_time,
    cancelled,
    what_is_refused,
    a_place_that_is_taken,
    closed_while_its_run_begins_to_count,
)
