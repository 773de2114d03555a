"""Every code of lists of jobs, dead letters and acts."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from tests.support.gateway import Asker, send, someone

from jobledger.ledger.model.times import time_text


async def pages(asker: Asker) -> None:
    made = [(await asker.job(queue="pages", cents=number)).id for number in range(5)]
    seen: list[str] = []
    path = "/v1/jobs?queue=pages&limit=2"
    while path:
        answer = await asker.sees("GET", path, 200)
        page = answer.json()
        seen += [each["id"] for each in page["items"]]
        link = answer.headers.get("link", "")
        assert (page["next"] is None) == (link == "")
        path = link.partition(">")[0].removeprefix("<")
        await asker.job(queue="pages", cents=9)  # that are newer do not move what follows
    assert seen == list(reversed(made))
    first = await asker.get("/v1/jobs?queue=pages&limit=2")
    other = {"queue": "mail", "limit": 2, "after": first["next"]}
    await asker.sees("GET", "/v1/jobs", "CURSOR_MISMATCH", params=other)
    await asker.sees("GET", "/v1/jobs?limit=501", "BAD_REQUEST")
    await asker.sees("GET", "/v1/jobs?limit=0", "BAD_REQUEST")


async def filters(asker: Asker) -> None:
    job = await asker.ledger.enqueue(
        send.options(queue="mail", correlation="c-1", metadata={"colour": "red"}), to="gil"
    )
    wait = {"min_sequence": job.sequence}
    for chosen in (
        {"correlation": "c-1"},
        {"metadata": "colour=red"},
        {"input": "to=gil"},
        {"q": "gil"},
        {"id": job.id},
        {"state": "queued", "correlation": "c-1", "task": "send"},
    ):
        found = await asker.get("/v1/jobs", params={**chosen, **wait})
        assert [each["id"] for each in found["items"]] == [job.id], chosen
    states = [("state", "dead_lettered"), ("state", "completed"), ("limit", "500")]
    assert {each["status"] for each in (await asker.get("/v1/jobs", params=states))["items"]} == {
        "dead_lettered",
        "completed",
    }
    hidden = await asker.get("/v1/jobs", params={"correlation": "c-1"}, who=someone("view"))
    assert "gil" not in str(hidden)
    for reads in ("input=to%3Dgil", "q=gil"):
        await asker.sees("GET", f"/v1/jobs?{reads}", "JOB_ACCESS_DENIED", who=someone("view"))
        await asker.sees("GET", f"/v1/jobs/counts?{reads}", "JOB_ACCESS_DENIED", who=someone("view"))
    await asker.sees("GET", "/v1/jobs?metadata=red", "BAD_REQUEST")
    elsewhere = someone("view", queues=("bills",))
    assert (await asker.get("/v1/jobs", who=elsewhere))["items"] == []
    before = {"until": time_text(asker.ledger.clock.now() - timedelta(days=1))}
    assert (await asker.get("/v1/jobs", params=before))["items"] == []


async def counts(asker: Asker) -> None:
    found = await asker.get("/v1/jobs/counts", params={"queue": "pages"})
    assert found["by_state"]["queued"] == 8
    hidden = someone("view", queues=("bills",))
    assert sum((await asker.get("/v1/jobs/counts", who=hidden))["by_state"].values()) == 0


async def dead_letters(asker: Asker) -> None:
    job = await asker.dead(queue="deaths")
    found = await asker.get("/v1/dead-letters", params={"queue": "deaths"})
    assert ([each["job_id"] for each in found["items"]], found["total"]) == ([job.id], 1)
    name = found["items"][0]["fingerprint"]
    groups = await asker.get("/v1/dead-letters/groups", params={"fingerprint": name, "queue": "deaths"})
    assert [(each["fingerprint"], each["count"]) for each in groups["items"]] == [(name, 1)]
    path = f"/v1/dead-letters/deaths/{job.id}"
    answer = await asker.sees("GET", path, 200)
    assert answer.json()["fingerprint"] == name
    await asker.sees("GET", path, 304, headers={"if-none-match": answer.headers["etag"]})
    assert "ann" not in str((await asker.get(path, who=someone("view")))["input"])
    await asker.sees("GET", "/v1/dead-letters/deaths/none", "JOB_NOT_FOUND")
    waiting = await asker.job()
    await asker.sees("GET", f"/v1/dead-letters/mail/{waiting.id}", "ILLEGAL_TRANSITION")
    elsewhere = someone("view", queues=("bills",))
    assert (await asker.get("/v1/dead-letters", who=elsewhere))["total"] == 0
    for path in ("/v1/dead-letters", "/v1/dead-letters/groups"):
        await asker.sees("GET", f"{path}?after=none", "CURSOR_MISMATCH")
    other = await asker.dead(queue="deaths")
    first = await asker.get("/v1/dead-letters", params={"queue": "deaths", "limit": 1})
    second = {"queue": "deaths", "limit": 1, "after": first["next"]}
    (older,) = (await asker.get("/v1/dead-letters", params=second))["items"]
    assert (first["items"][0]["job_id"], older["job_id"]) == (other.id, job.id)


async def acts(asker: Asker) -> None:
    job = await asker.dead(queue="deaths")
    await asker.post(f"/v1/jobs/deaths/{job.id}/discard", {"reason": "too old"})
    found = await asker.get("/v1/acts", params={"by": "ann", "limit": 1})
    (act,) = found["items"]
    assert (act["act"], act["job"], act["reason"]) == ("discard", job.id, "too old")
    assert (await asker.get("/v1/acts", params={"by": "nobody"}))["total"] == 0
    assert (await asker.get("/v1/acts", params={"act": "cancel", "job": job.id}))["total"] == 0
    await asker.sees("GET", "/v1/acts?after=none", "CURSOR_MISMATCH")
    assert (await asker.get("/v1/acts", who=someone("view", queues=("bills",))))["items"] == []


CASES: Final = (pages, filters, counts, dead_letters, acts)
