"""Every code of the endpoints that show one job."""

from __future__ import annotations

from tests.support.gateway import Asker, send, someone

from jobledger.ledger.model.commands import Complete
from jobledger.ledger.model.times import time_text


async def showing(asker: Asker) -> None:
    job = await asker.completed()
    path = f"/v1/jobs/mail/{job.id}"
    shown = await asker.get(path)
    assert (shown["status"], shown["result"], shown["chain"]["broken_at"]) == ("completed", "sent", None)
    assert (await asker.sees("HEAD", path, 200)).headers["etag"] == f'"{shown["last_sequence"]}"'
    etag = {"if-none-match": f'"{shown["last_sequence"]}"'}
    await asker.sees("GET", path, 304, headers=etag)
    was = await asker.get(path, params={"sequence": shown["events"][0]["stream_sequence"]})
    assert (was["status"], was["result"], was["as_of"]["stream_sequence"]) == (
        "queued",
        None,
        shown["events"][0]["stream_sequence"],
    )
    assert (await asker.get(f"/v1/jobs/{job.id}"))["queue"] == "mail"
    await asker.sees("GET", f"/v1/jobs/{job.id}", 304, headers=etag)
    await asker.ledger.enqueue(send.options(queue="other", id=job.id))
    await asker.sees("GET", f"/v1/jobs/{job.id}", "AMBIGUOUS_ID")


async def parts_of_a_job(asker: Asker) -> None:
    job = await asker.completed()
    path = f"/v1/jobs/mail/{job.id}"
    events = await asker.get(f"{path}/events")
    assert [each["type"] for each in events["items"]] == ["queued", "started", "completed"]
    tag = {"if-none-match": f'"{events["items"][-1]["stream_sequence"]}"'}
    await asker.sees("GET", f"{path}/events", 304, headers=tag)
    streamed = {"accept": "text/event-stream"}
    answer = await asker.sees("GET", f"{path}/events", 200, headers=streamed)
    assert [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")] == [
        "queued",
        "started",
        "completed",
    ]
    seen = {**streamed, "last-event-id": str(events["items"][-1]["stream_sequence"])}
    assert (await asker.sees("GET", f"{path}/events", 204, headers=seen)).content == b""
    await asker.sees("GET", f"{path}/events?sequence=1", "JOB_NOT_FOUND", headers=streamed)
    await asker.sees(
        "GET", f"{path}/events?sequence={seen['last-event-id']}", "BAD_REQUEST", headers=streamed
    )
    attempts = await asker.get(f"{path}/attempts")
    assert [each["worker"] for each in attempts["items"]] == ["web-1-0a"]
    await asker.sees("GET", f"{path}/attempts", 304, headers=tag)
    trail = await asker.get(f"{path}/trail")
    assert (trail["summary"]["state"], len(trail["lines"])) == ("completed", 3)
    why = await asker.get(f"{path}/why", params={"sequence": events["items"][0]["stream_sequence"]})
    assert (why["id"], why["status"]) == (job.id, "queued")
    late = await asker.ledger.enqueue(send.options(queue="mail", delay_s=3600))
    hint = (await asker.get(f"/v1/jobs/mail/{late.id}/why"))["hint"]
    assert hint == f"POST /v1/jobs/mail/{late.id}/retry"
    await asker.post(hint.removeprefix("POST "), {})


async def values(asker: Asker) -> None:
    done, waiting, dead = await asker.completed(to="bob"), await asker.job(), await asker.dead()
    assert await asker.get(f"/v1/jobs/mail/{done.id}/input") == {"to": "bob"}
    assert await asker.get(f"/v1/jobs/mail/{done.id}/result") == "sent"
    assert (await asker.get(f"/v1/jobs/mail/{done.id}/logs", params={"attempt": 1}))["items"] == []
    await asker.sees("GET", "/v1/jobs/mail/none/logs", "JOB_NOT_FOUND")
    answer = await asker.sees("GET", f"/v1/jobs/mail/{waiting.id}/result", 202)
    assert answer.json()["status"] == "queued"
    failed = await asker.sees("GET", f"/v1/jobs/mail/{dead.id}/result", "JOB_EXECUTION_ERROR")
    assert failed.json()["extra"] == {"type": "ValueError", "message": "no such house", "attempt": 1}
    await asker.ledger.cancel(waiting.ref)
    await asker.sees("GET", f"/v1/jobs/mail/{waiting.id}/result", "JOB_CANCELLED")
    hidden = await asker.get(f"/v1/jobs/mail/{done.id}", who=someone("view"))
    assert "bob" not in str(hidden)
    await asker.sees("GET", f"/v1/jobs/mail/{done.id}/input", "JOB_ACCESS_DENIED", who=someone("view"))


async def large_values_that_are_gone(asker: Asker) -> None:
    job = await asker.job(to="a" * 200_000)
    job_input = (await job.snapshot()).order.input_ref
    assert job_input is not None
    claimed = await asker.running(job)
    result, ref = await asker.ledger.results.put(b'"' + b"b" * 200_000 + b'"', what="result", key="")
    await asker.ledger.execute(job.ref, Complete(epoch=claimed.claim_epoch, result=result, result_ref=ref))
    assert ref is not None
    await asker.ledger.inputs.remove(job_input)
    await asker.ledger.results.remove(ref)
    for what in ("input", "result"):
        await asker.sees("GET", f"/v1/jobs/mail/{job.id}/{what}", "PAYLOAD_GONE")


async def jobs_that_are_not_there(asker: Asker) -> None:
    job = await asker.job()
    for what in ("", "/events", "/attempts", "/trail", "/why", "/input", "/result"):
        await asker.sees("GET", f"/v1/jobs/mail/none{what}", "JOB_NOT_FOUND")
        await asker.sees("GET", f"/v1/jobs/mail/{job.id}{what}", "JOB_NOT_FOUND", params={"sequence": 0})
        far = {"sequence": 1 << 40}
        await asker.sees("GET", f"/v1/jobs/mail/{job.id}{what}", "BAD_REQUEST", params=far)
        both = {"sequence": 1, "at": time_text(asker.ledger.clock.now())}
        await asker.sees("GET", f"/v1/jobs/mail/{job.id}{what}", "BAD_REQUEST", params=both)
    await asker.sees("GET", "/v1/jobs/none", "JOB_NOT_FOUND")
    await asker.sees("GET", "/v1/jobs/no.token", "BAD_REQUEST")
    await asker.sees("GET", "/v1/jobs/mail/none", "JOB_ACCESS_DENIED", who=someone("view", queues=("bills",)))
    other = someone("view", tasks=("bill*",))
    await asker.sees("GET", f"/v1/jobs/mail/{job.id}", "JOB_NOT_FOUND", who=other)


CASES = (showing, parts_of_a_job, values, large_values_that_are_gone, jobs_that_are_not_there)
