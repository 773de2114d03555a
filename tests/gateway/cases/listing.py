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


async def searches(asker: Asker) -> None:
    job = await asker.ledger.enqueue(
        send.options(queue="found", id="charge-acme-i22", tenant="acme", metadata={"region": "eu"}), to="hal"
    )
    other = await asker.ledger.enqueue(send.options(queue="found", tenant="beta"), to="charge-acme")
    wait = {"min_sequence": other.sequence, "queue": "found"}
    for text, expected in {
        "tenant:acme": [job.id],
        'state:open since:"1 min ago" meta.region=eu to=hal': [job.id],
        "charge-acme": [job.id],  # the beginning of an id before a text
        "charge-…i22": [job.id],
        "text:charge-acme": [other.id, job.id],
        "hal": [job.id],
        "tenant:nobody": [],
        "": [other.id, job.id],
    }.items():
        params = {**wait, "q": text}
        found = await asker.get("/v1/jobs", params=params)
        assert [each["id"] for each in found["items"]] == expected, text
        counted = await asker.get("/v1/jobs/counts", params=params)
        assert sum(counted["by_state"].values()) == len(expected), text
    for parameters in (
        {"tenant": "acme"},
        {"state": "queued", "id": "charge"},
        {"since": "2020-01-01T00:00:00Z"},
    ):
        both = await asker.get(
            "/v1/jobs", params={**wait, **parameters, "q": "tenant:acme state:open since:1h"}
        )
        assert [each["id"] for each in both["items"]] == [job.id], parameters
    paged = await asker.get("/v1/jobs", params={**wait, "limit": 1, "q": "since:1h"})
    more = {"queue": "found", "q": "since:1h", "after": paged["next"]}  # `1h` is another time by now
    assert [each["id"] for each in (await asker.get("/v1/jobs", params=more))["items"]] == [job.id]


async def searches_refused(asker: Asker) -> None:
    for query, sentence in {
        "q=stat:dead": "did you mean state:?",
        "q=state:deed": "did you mean dead?",
        "q=since:soon": "since:soon is no time",
        "q=tenant:acme&tenant=beta": "tenant is given twice, as 'beta' and as 'acme'",
        "q=state:dead&state=queued": "states is given twice",
        f"q={'x' * 401}": "at most 400 characters",
    }.items():
        for path in ("/v1/jobs", "/v1/jobs/counts"):
            refused = await asker.sees("GET", f"{path}?{query}", "BAD_REQUEST")
            assert sentence in refused.json()["detail"], query
    job = await asker.job(queue="scoped", to="ivy")
    wait = {"min_sequence": job.sequence}
    blind = someone("view")  # who may see no payloads still finds jobs by their ids
    assert (await asker.get("/v1/jobs", params={**wait, "q": job.id[:12]}, who=blind))["items"]
    for text in ("ivy", "to=ivy", "text:ivy"):
        await asker.sees("GET", "/v1/jobs", "JOB_ACCESS_DENIED", who=blind, params={**wait, "q": text})
    elsewhere = someone("view", "payloads", queues=("bills",))
    for text in (job.id, "queue:scoped", "to=ivy", "ivy"):
        found = await asker.get("/v1/jobs", params={**wait, "q": text}, who=elsewhere)
        assert found["items"] == [], text
    # An id that somebody must not see is not told of: the word is read as a text.
    bound = someone("view", queues=("bills",))
    for text in (job.id, "nobody"):
        await asker.sees("GET", "/v1/jobs", "JOB_ACCESS_DENIED", who=bound, params={**wait, "q": text})


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
    for text, expected in {
        "queue:deaths error:ValueError": [job.id],
        "tenant:nobody": [],
        "until:1h": [],
    }.items():
        found = await asker.get("/v1/dead-letters", params={"queue": "deaths", "q": text})
        assert ([each["job_id"] for each in found["items"]], found["total"]) == (expected, len(expected)), (
            text
        )
        groups = await asker.get("/v1/dead-letters/groups", params={"queue": "deaths", "q": text})
        assert [each["count"] for each in groups["items"]] == [1] * len(expected), text
    await asker.sees("GET", "/v1/dead-letters?q=stat:dead", "BAD_REQUEST")
    await asker.sees("GET", "/v1/dead-letters?q=to%3Dann", "JOB_ACCESS_DENIED", who=someone("view"))
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


CASES: Final = (pages, filters, searches, searches_refused, counts, dead_letters, acts)
