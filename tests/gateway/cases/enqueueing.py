"""Every code of adding jobs: one, by an idempotency key, and very many in a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from tests.support.gateway import Asker, greet, once, send, someone
from tests.support.working import working

from jobledger.gateway.http.endpoint import NDJSON

_TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_LINES: Final = {"content-type": NDJSON}


async def one_job(asker: Asker) -> None:
    await asker.announced(send, greet, once)
    job = {"task": "send", "input": {"to": "hal"}, "priority": "high", "metadata": {"colour": "blue"}}
    answer = await asker.sees("POST", "/v1/jobs", 202, json=job, headers={"traceparent": _TRACE})
    made = answer.json()
    assert (made["queue"], made["created"], made["trace_id"]) == ("mail", True, _TRACE.split("-")[1])
    assert answer.headers["location"] == f"/v1/jobs/mail/{made['id']}"
    shown = await asker.get(answer.headers["location"])
    assert (shown["created_by"], shown["input"], shown["priority"]) == ("ann", {"to": "hal"}, "high")
    named = {"task": "send", "id": "named-1"}
    wrong = {"traceparent": "no-trace-of-w3c-" + "-" * 39}  # it is ignored, and not refused
    first = await asker.post("/v1/jobs", named, 202, headers=wrong)
    assert first["trace_id"] == (await asker.get("/v1/jobs/mail/named-1"))["trace"][3:35]
    again = await asker.post("/v1/jobs", named, 200)
    assert (again["created"], again["id"], again["trace_id"]) == (False, "named-1", first["trace_id"])
    other = {**named, "input": {"to": "eve"}}
    refused = await asker.post("/v1/jobs", other, "INPUT_MISMATCH")
    assert refused["detail"].startswith(
        "job named-1 in queue mail exists with another input (to) and stays as it"
    )
    assert (await asker.post("/v1/jobs", {**other, "on_other_input": "keep"}, 200))["id"] == "named-1"


async def waiting_for_it(asker: Asker) -> None:
    wait, job = {"prefer": "wait=5"}, {"task": "send", "input": {"to": "ida"}}
    async with working(asker.ledger, send):
        made = await asker.post("/v1/jobs", job, 200, headers=wait)
        assert (made["created"], made["job"]["result"]) == (True, "sent to ida, 1")
        unseen = await asker.post("/v1/jobs", job, 202, headers=wait, who=someone("queue"))
        assert "job" not in unseen
    late = await asker.post("/v1/jobs", job, 202, headers={"prefer": "wait=0"})
    assert "job" not in late
    await asker.post("/v1/jobs", job, "BAD_REQUEST", headers={"prefer": "wait=long"})


async def what_is_refused(asker: Asker) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"task": "melt"}, "TASK_NOT_FOUND"),
        ({"task": "send", "input": {"to": 7}}, "JOB_INVALID_INPUT"),
        (
            {"task": "send", "input": {"to": "a" * (asker.ledger.config.payload_bytes_max + 1)}},
            "PAYLOAD_TOO_LARGE",
        ),
        ({"task": "send", "colour": "red"}, "BAD_REQUEST"),
        ({"task": "send", "queue": "no.token"}, "BAD_REQUEST"),
        ({"task": "send", "queue": "jobledger-acts"}, "JOB_INVALID_INPUT"),
        ({"task": "send", "queue": "webhooks-out"}, "JOB_INVALID_INPUT"),
        ({"task": "send", "priority": "soon"}, "BAD_REQUEST"),
    ]
    for body, code in wrong:
        await asker.post("/v1/jobs", body, code)
    await asker.ledger.enqueue(greet.options(id="greeted"), to="gus")
    unseen, bound = {"task": "send", "id": "greeted"}, someone("queue", tasks=("send",))
    await asker.post("/v1/jobs", unseen, "DUPLICATE", who=bound)
    await asker.post("/v1/jobs", {"task": "once", "input": {"to": "jo"}}, 202)
    await asker.post("/v1/jobs", {"task": "once", "input": {"to": "jo"}}, "UNIQUE_KEY_TAKEN")
    for who in (someone("queue", queues=("bills",)), someone("queue", tasks=("bill",))):
        await asker.post("/v1/jobs", {"task": "send"}, "JOB_ACCESS_DENIED", who=who)
    await asker.sees("POST", "/v1/jobs", "BAD_REQUEST", content=b"{}", headers={"content-type": "text/plain"})


async def keys(asker: Asker) -> None:
    """One key makes one job, whoever races; the same key of somebody else makes another."""
    key, job = {"idempotency-key": "order 77"}, {"task": "send", "input": {"to": "kim", "cents": 2}}
    answers = await asyncio.gather(*(asker.http.post("/v1/jobs", json=job, headers=key) for _ in range(20)))
    assert sorted(each.status_code for each in answers) == [200] * 19 + [202]
    (made,) = {each.json()["id"] for each in answers}
    assert made.startswith("i-")
    assert len(made) == 45
    spaced = b'{"task": "send", "input": {"cents":2,  "to": "kim"}}'
    kind = {"content-type": "application/json", **key}
    assert (await asker.sees("POST", "/v1/jobs", 200, content=spaced, headers=kind)).json()["id"] == made
    other = {**job, "input": {"to": "lea"}}
    for body in (other, {**job, "task": "greet", "input": {"to": "kim"}}, {**job, "queue": "elsewhere"}):
        await asker.post("/v1/jobs", body, "IDEMPOTENCY_KEY_REUSED", headers=key)
    await asker.post("/v1/jobs", {**job, "id": "own"}, "BAD_REQUEST", headers=key)
    of_another = await asker.post("/v1/jobs", other, 202, headers=key, who=someone("queue"))
    assert of_another["id"] != made


async def many_jobs(asker: Asker) -> None:
    lines = [{"task": "send", "queue": "bulk", "input": {"to": f"m{number}"}} for number in range(300)]
    body = b"\n".join(map(msgspec.json.encode, lines))
    key = {"idempotency-key": "bulk 1", **_LINES}
    made = (await asker.sees("POST", "/v1/jobs/bulk", 202, content=body, headers=key)).json()
    assert (made["created"], made["existing"], made["lines"]) == (300, 0, 300)
    again = (await asker.sees("POST", "/v1/jobs/bulk", 202, content=body, headers=key)).json()
    assert (again["created"], again["existing"]) == (0, 300)
    await _other_lines(asker, lines, key)
    here = {"queue": "bulk", "min_sequence": made["last_sequence"]}
    assert (await asker.get("/v1/jobs/counts", params=here))["by_state"]["queued"] == 300
    inputs = b'{"to":"n1"}\n\n{"to":"n2"}'
    path = "/v1/jobs/bulk?task=send&queue=inputs"
    made = (await asker.sees("POST", path, 202, content=_slowly(inputs), headers=_LINES)).json()
    assert (made["created"], made["lines"]) == (2, 2)


async def _other_lines(asker: Asker, lines: list[dict[str, Any]], key: dict[str, str]) -> None:
    """A key that is repeated with other lines is refused, and jobs that it made stay as they are."""
    head = (await asker.ledger.log.head()).last_sequence
    other = {"task": "send", "queue": "bulk", "input": {"to": "eve"}}
    for number, line in (
        (1, other),
        (1, {**lines[0], "queue": "elsewhere"}),
        (7, other),
        (300, other),
    ):
        body = b"\n".join(map(msgspec.json.encode, [*lines[: number - 1], line, *lines[number:]]))
        answer = await asker.sees(
            "POST", "/v1/jobs/bulk", "IDEMPOTENCY_KEY_REUSED", content=body, headers=key
        )
        assert answer.json()["extra"] == {"line": number, "accepted": number - 1}
        assert answer.json()["detail"].startswith(f"line {number}: this Idempotency-Key made job i-")
    path = "/v1/jobs/bulk?task=send&queue=bulk"
    await asker.sees("POST", path, "IDEMPOTENCY_KEY_REUSED", content=b"{", headers=key)
    longer = msgspec.json.encode(other) + b"\n" + b'{"task":"send","queue":"bulk"}\n' * 400
    await asker.sees("POST", "/v1/jobs/bulk", "IDEMPOTENCY_KEY_REUSED", content=longer, headers=key)
    assert (await asker.ledger.log.head()).last_sequence == head


async def lines_with_other_inputs(asker: Asker) -> None:
    """Every other line is added, and each that names a job with another input is told."""
    lines = [{"task": "send", "id": f"other-{number}", "input": {"to": f"o{number}"}} for number in range(20)]
    body = b"\n".join(map(msgspec.json.encode, lines[:10]))
    await asker.sees("POST", "/v1/jobs/bulk", 202, content=body, headers=_LINES)
    lines[3] = {**lines[3], "input": {"to": "eve"}}
    lines[8] = {**lines[8], "input": {"to": "eve"}, "on_other_input": "keep"}
    body = b"\n\n".join(map(msgspec.json.encode, lines))
    told = (await asker.sees("POST", "/v1/jobs/bulk", "INPUT_MISMATCH", content=body, headers=_LINES)).json()
    assert told["detail"].startswith("line 4: job other-3 in queue mail exists with another input (to)")
    assert told["extra"]["mismatches"] == [
        {"line": 4, "id": "other-3", "queue": "mail", "differing": ["to"]},
    ]
    assert (await asker.get("/v1/jobs/mail/other-19"))["input"] == {"to": "o19"}
    assert (await asker.get("/v1/jobs/mail/other-3"))["input"] == {"to": "o3"}


async def wrong_lines(asker: Asker) -> None:
    """Those before a wrong line are in the ledger, and it is said how many they are."""
    good = b'{"task":"send","queue":"partly"}\n'
    large = b'{"task":"send","input":{"to":"' + b"a" * asker.ledger.config.payload_bytes_max + b'"}}'
    endless = b"a" * (asker.ledger.config.payload_bytes_max + (1 << 20))
    wrong: list[tuple[bytes, str]] = [
        (b'{"task":"send"', "BAD_REQUEST"),
        (b'{"task":"send","colour":1}', "BAD_REQUEST"),
        (b"[" * 10_000, "BAD_REQUEST"),
        (b'{"task":"melt"}', "TASK_NOT_FOUND"),
        (b'{"task":"send","input":{"to":7}}', "JOB_INVALID_INPUT"),
        (b'{"task":"send","queue":"jobledger"}', "JOB_INVALID_INPUT"),
        (large, "PAYLOAD_TOO_LARGE"),
        (endless, "PAYLOAD_TOO_LARGE"),
    ]
    for line, code in wrong:
        body = good * 2 + line + b"\n" + good
        answer = await asker.sees("POST", "/v1/jobs/bulk", code, content=body, headers=_LINES)
        assert answer.json()["extra"] == {"line": 3, "accepted": 2}, line[:80]
        assert "input 2:" not in answer.json()["detail"], "the line is named once"
    counts = await asker.get("/v1/jobs/counts?queue=partly")
    assert counts["by_state"]["queued"] == 2 * len(wrong)
    elsewhere = someone("queue", queues=("bills",))
    await asker.sees(
        "POST", "/v1/jobs/bulk", "JOB_ACCESS_DENIED", content=good, headers=_LINES, who=elsewhere
    )
    await asker.sees("POST", "/v1/jobs/bulk", "BAD_REQUEST", content=good)
    await asker.sees("POST", "/v1/jobs/bulk?queue=mail", "BAD_REQUEST", content=good, headers=_LINES)
    key = {"idempotency-key": "k", **_LINES}
    both = b'{"task":"send","id":"own"}'
    await asker.sees("POST", "/v1/jobs/bulk", "BAD_REQUEST", content=both, headers=key)


async def _slowly(body: bytes) -> AsyncIterator[bytes]:
    for place in range(len(body)):
        yield body[place : place + 1]


CASES: Final = (
    one_job,
    waiting_for_it,
    what_is_refused,
    keys,
    many_jobs,
    lines_with_other_inputs,
    wrong_lines,
)
