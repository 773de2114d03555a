"""Every code of the acts on one job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from tests.support.gateway import Asker, greet, send, someone

from jobledger.ledger import TaskRegistry
from jobledger.ledger.model.commands import Fail
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.times import time_text

VERBS: Final = ("cancel", "retry", "reschedule", "pause", "resume", "requeue", "discard", "note", "run")
BODIES: Final[dict[str, dict[str, Any]]] = {"reschedule": {"delay_s": 60}, "note": {"text": "a remark"}}
_WHY: Final = {"reason": "as ann said"}


async def ending_and_waiting(asker: Asker) -> None:
    job, running = await asker.job(), await asker.job()
    await asker.running(running)
    first = (await job.snapshot()).last_sequence
    path = f"/v1/jobs/mail/{job.id}"
    later = time_text(asker.ledger.clock.now() + timedelta(hours=1))
    paused = await asker.post(f"{path}/pause", _WHY, headers={"if-match": f'"{first}"'})
    assert (paused["status"], paused["last_sequence"] > first) == ("paused", True)
    assert (await asker.post(f"{path}/resume", {}))["status"] == "queued"
    cancelled = await asker.post(f"{path}/cancel", _WHY)
    assert (cancelled["status"], cancelled["id"]) == ("cancelled", job.id)
    event = (await job.history())[-1].event
    assert (event.by, getattr(event, "reason", "")) == ("ann", "as ann said")
    asked = await asker.post(f"/v1/jobs/mail/{running.id}/pause", {}, 202)
    assert (asked["status"], asked["pause_requested"]) == ("running", True)
    asked = await asker.post(f"/v1/jobs/mail/{running.id}/cancel", {}, 202)
    assert asked["cancel_requested"]
    waits = await asker.ledger.enqueue(send.options(queue="mail", delay_s=600))
    moved = await asker.post(f"/v1/jobs/mail/{waits.id}/reschedule", {"run_at": later, **_WHY})
    assert moved["due_at"][:19] == later[:19]
    assert (await asker.post(f"/v1/jobs/mail/{waits.id}/retry", {}))["status"] == "queued"


async def dead_letters(asker: Asker) -> None:
    one, other = await asker.dead(), await asker.dead()
    path = f"/v1/jobs/mail/{one.id}/requeue"
    for changed in ({"input": {"to": "bob"}}, {"edit": {"to": "bob"}}):
        await asker.post(path, changed, "JOB_ACCESS_DENIED", who=someone("view", "review"))
    wrong = {"input": {"to": "bob"}, "edit": {"cents": 2}}
    await asker.post(path, wrong, "JOB_INVALID_INPUT")
    again = await asker.post(path, {"edit": {"to": "bob"}, "attempts": 2, "priority": "high", **_WHY})
    assert (again["status"], again["attempts_left"]) == ("queued", 2)
    assert (await asker.get(f"/v1/jobs/mail/{one.id}/input"))["to"] == "bob"
    assert (await asker.post(f"/v1/jobs/mail/{other.id}/discard", _WHY))["status"] == "discarded"
    large = {"input": {"to": "a" * (asker.ledger.config.payload_bytes_max + 1)}}
    await asker.post(f"/v1/jobs/mail/{(await asker.dead()).id}/requeue", large, "PAYLOAD_TOO_LARGE")


async def a_dead_letter_whose_input_is_gone(asker: Asker) -> None:
    job = await asker.dead(to="b" * 200_000)
    ref = (await job.snapshot()).order.input_ref
    assert ref is not None
    await asker.ledger.inputs.remove(ref)
    await asker.post(f"/v1/jobs/mail/{job.id}/requeue", {"edit": {"cents": 2}}, "PAYLOAD_GONE")


async def a_dead_letter_whose_key_another_job_got(asker: Asker) -> None:
    job = await asker.ledger.enqueue(greet, to="dan")
    claimed = await asker.running(job)
    error = ErrorInfo(kind="exception", type="ValueError", message="no such house")
    await asker.ledger.execute(job.ref, Fail(epoch=claimed.claim_epoch, error=error))
    await asker.ledger.enqueue(greet, to="dan")
    await asker.post(f"/v1/jobs/mail/{job.id}/requeue", {}, "UNIQUE_KEY_TAKEN")
    await asker.post(f"/v1/jobs/mail/{job.id}/retry", {}, "UNIQUE_KEY_TAKEN")


async def running_in_the_gateway(asker: Asker) -> None:
    job, path = await asker.job(to="cy"), ""
    path = f"/v1/jobs/mail/{job.id}/run"
    await asker.post(path, {}, "NO_APP")
    asker.gateway.tasks = TaskRegistry([send])
    try:
        ran = await asker.post(path, {})
        assert (ran["status"], ran["result"]) == ("completed", "sent to cy, 1")
        other = await asker.job(to="di")
        unseen = await asker.post(f"/v1/jobs/mail/{other.id}/run", {}, who=someone("run", "view"))
        assert (unseen["status"], "result" in unseen) == ("completed", False)
        for code in ("ILLEGAL_TRANSITION",):
            await asker.post(path, {}, code)
        await asker.post("/v1/jobs/mail/none/run", {}, "JOB_NOT_FOUND")
    finally:
        asker.gateway.tasks = None


async def what_is_refused(asker: Asker) -> None:
    ended, running = await asker.completed(), await asker.job()
    await asker.running(running)
    of_one_queue, of_one_task = (
        someone("cancel", "review", "run", queues=("bills",)),
        someone("cancel", tasks=("b*",)),
    )
    for verb in VERBS:
        body = BODIES.get(verb, {})
        if verb != "run":
            await asker.post(f"/v1/jobs/mail/none/{verb}", body, "JOB_NOT_FOUND")
            expected = 200 if verb == "note" else "ILLEGAL_TRANSITION"
            await asker.post(f"/v1/jobs/mail/{ended.id}/{verb}", body, expected)
        path = f"/v1/jobs/mail/{running.id}/{verb}"
        await asker.post(path, body, "JOB_ACCESS_DENIED", who=of_one_queue)
        await asker.post(path, {"colour": "red", **body}, "BAD_REQUEST")
    await asker.post(f"/v1/jobs/mail/{running.id}/cancel", {}, "JOB_NOT_FOUND", who=of_one_task)
    await asker.post(f"/v1/jobs/mail/{running.id}/reschedule", {}, "BAD_REQUEST")


async def remarks(asker: Asker) -> None:
    job = await asker.completed()
    path = f"/v1/jobs/mail/{job.id}/note"
    assert (await asker.post(path, {"text": "asked the customer"}))["status"] == "completed"
    event = (await job.history())[-1].event
    assert (event.by, getattr(event, "text", "")) == ("ann", "asked the customer")
    await asker.post(path, {"text": ""}, "JOB_INVALID_INPUT")


async def what_has_changed_since(asker: Asker) -> None:
    """Each act is refused that was decided on an older view, and changes nothing."""
    ready = {
        "cancel": await asker.job(),
        "retry": await asker.ledger.enqueue(send.options(queue="mail", delay_s=600)),
        "reschedule": await asker.ledger.enqueue(send.options(queue="mail", delay_s=600)),
        "pause": await asker.job(),
        "resume": await asker.job(),
        "requeue": await asker.dead(),
        "discard": await asker.dead(),
        "note": await asker.job(),
        "run": await asker.job(),
    }
    asker.gateway.tasks = TaskRegistry([send])
    await asker.post(f"/v1/jobs/mail/{ready['resume'].id}/pause", {})
    for verb, job in ready.items():
        before = len(await job.history())
        path, stale = f"/v1/jobs/mail/{job.id}/{verb}", {"if-match": '"1"'}
        await asker.post(path, BODIES.get(verb, {}), "PRECONDITION_FAILED", headers=stale)
        assert len(await job.history()) == before, verb
    asker.gateway.tasks = None


CASES = (
    a_dead_letter_whose_key_another_job_got,
    ending_and_waiting,
    dead_letters,
    a_dead_letter_whose_input_is_gone,
    running_in_the_gateway,
    what_is_refused,
    remarks,
    what_has_changed_since,
)
