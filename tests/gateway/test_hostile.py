"""What a hostile user sends: each gets one sentence and changes nothing, and nothing of it is the gateway's failure."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.support.gateway import Asker, Doorman, send, someone
from tests.support.open_gateway import LocalAccess
from tests.support.tables import each_row
from tests.support.working import bury

from jobledger.gateway.access.origins import check_origin
from jobledger.gateway.acts.bulk_act import bulk_act
from jobledger.gateway.acts.bulk_input import QUEUE, ToDo
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.app import app
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.life import Life
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.process.counters import Counters
from jobledger.gateway.process.requests import Requests
from jobledger.ledger import Ledger
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import ROLES
from jobledger.ledger.model.subjects import JobRef

pytestmark = pytest.mark.anyio
_BEFORE_ALL: Final = "0001-01-01T00:00:00+14:00"
_AFTER_ALL: Final = "9999-12-31T23:59:59-14:00"
_LATER: Final = "2100-01-01T00:00:00Z"


@pytest.fixture
async def asker(gateway: Gateway, tmp_path: Path) -> Asker:
    gateway.access = door = Doorman()
    return Asker(gateway, ENDPOINTS, door, tmp_path)


def _token(of: dict[str, Any] | bytes) -> str:
    text = of if isinstance(of, bytes) else json.dumps(of).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


async def test_a_plan_that_somebody_wrote_himself_is_checked_as_if_it_were_asked_for(asker: Asker) -> None:
    dead = await asker.dead()
    one = [{"queue": dead.queue, "id": dead.id}]
    before = (await asker.ledger.log.head()).last_sequence
    whole = {"by": "bob", "jobs": one, "until": 1, "expires_at": _LATER}
    for wrong in (
        {**whole, "to_do": {"act": "cancel"}, "expires_at": "2100-01-01T00:00:00"},
        {**whole, "to_do": {"act": "reschedule"}},
        {**whole, "to_do": {"act": "requeue", "attempts": -5}},
        {**whole, "to_do": {"act": "cancel", "edit": {"to": "bob"}}},
        {**whole, "to_do": {"act": "cancel", "reason": "x" * 2_001}},
        {**whole, "to_do": {"act": "cancel"}, "jobs": one * 501},
        b'{"by":"bob","to_do":{"act":"requeue","edit":{"to":' + b"[" * 20_000,
    ):
        await asker.post("/v1/acts", {"plan": _token(wrong)}, "BAD_REQUEST")
    assert (await asker.ledger.log.head()).last_sequence == before


async def test_a_plan_that_somebody_changed_does_what_he_may_and_in_his_own_name(asker: Asker) -> None:
    """Nothing vouches for a plan, so that any gateway can do it: its sender needs the rights, and is the one recorded."""
    mine, hidden = await asker.dead(queue="mail"), await asker.dead(queue="vault")
    eve = someone("view", "review", queues=("mail",))
    head = (await asker.ledger.log.head()).last_sequence
    whole = {"by": "ann", "to_do": {"act": "discard"}, "until": head, "expires_at": _LATER}
    named = {**whole, "jobs": [{"queue": "vault", "id": hidden.id}]}
    await asker.post("/v1/acts", {"plan": _token(named)}, "JOB_ACCESS_DENIED", who=eve)
    cancels = {**whole, "to_do": {"act": "cancel"}, "filter": {}}
    await asker.post("/v1/acts", {"plan": _token(cancels)}, "JOB_ACCESS_DENIED", who=eve)
    made = await asker.post("/v1/acts", {"plan": _token({**whole, "filter": {}})}, 202, who=eve)
    assert made["count"] == 1, "the filter of everything, as far as she sees"
    history = await asker.ledger.handle_of(JobRef(queue=QUEUE, job_id=made["id"])).history()
    job = fold(history).job
    assert job is not None
    given = json.loads(await asker.ledger.inputs.get(job.order.input, job.order.input_ref, key=""))
    assert job.created_by == "eve"
    assert given["allowed"] == {"permissions": ["review", "view"], "queues": ["mail"]}
    assert [name for _, name, _ in given["jobs"]] == [mine.id]


@pytest.mark.parametrize("time", [_BEFORE_ALL, _AFTER_ALL])
async def test_a_time_that_utc_does_not_have_is_refused(asker: Asker, time: str) -> None:
    for path in ("/v1/jobs", "/v1/dead-letters", "/v1/stats/rates"):
        await asker.sees("GET", path, "BAD_REQUEST", params={"since": time})
    for path in ("/v1/jobs/mail/a", "/v1/jobs", "/v1/schedules"):
        await asker.sees("GET", path, "BAD_REQUEST", params={"at": time})
    assert (await asker.http.get("/", params={"at": time})).status_code == 400
    assert (await asker.http.get("/jobs", params={"top": time})).status_code == 400


async def test_the_panel_of_the_clock_takes_any_moment(asker: Asker) -> None:
    for at in ("9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"):
        assert (await asker.http.get("/clock", params={"at": at})).status_code == 200


@each_row("top", ["soon", "\x00", "-1", "9" * 30, "2026-02-30"])
async def test_a_first_row_that_is_no_time_is_refused(asker: Asker, top: str) -> None:
    assert (await asker.http.get("/jobs", params={"top": top})).status_code == 400
    last = await asker.http.get("/jobs", params={"top": "9999-12-31T23:59:59.999999Z"})
    assert last.status_code == 200


async def test_an_if_match_too_long_for_a_number_is_refused(asker: Asker) -> None:
    job = await asker.job()
    await asker.sees(
        "POST",
        f"/v1/jobs/mail/{job.id}/note",
        "BAD_REQUEST",
        json={"text": "x"},
        headers={"if-match": "1" * 5_000},
    )


async def test_an_id_alone_tells_nothing_of_a_job_that_the_asker_may_not_see(asker: Asker) -> None:
    job = await asker.job(queue="vault")
    for bound in (someone("view", queues=("mail",)), someone("view", tasks=("bill",))):
        answer = await asker.sees("GET", f"/v1/jobs/{job.id}", "JOB_NOT_FOUND", who=bound)
        assert "vault" not in answer.text
        assert "send" not in answer.text
    await asker.ledger.enqueue(send.options(queue="mail", id=job.id))
    seen = await asker.sees("GET", f"/v1/jobs/{job.id}", 200, who=someone("view", queues=("mail",)))
    assert seen.json()["queue"] == "mail", "the only one of its jobs"


async def test_a_job_of_the_ledgers_own_is_not_given_another_input(ledger: Ledger) -> None:
    job = await ledger.enqueue(bulk_act.options(max_attempts=1), to_do=ToDo(act="cancel"), jobs=[], by="ann")
    await bury(ledger, job)
    with pytest.raises(InvalidInputError, match="one of the ledger's own"):
        await ledger.requeue(job, edit={"by": "bob"})
    with pytest.raises(InvalidInputError, match="one of the ledger's own"):
        await ledger.requeue(job, input={"to_do": {"act": "cancel"}, "jobs": [], "by": "bob"})
    assert (await job.snapshot()).state == "dead_lettered"
    await ledger.requeue(job)
    assert (await job.snapshot()).state == "queued"


async def test_an_origin_that_is_no_address_is_another_site() -> None:
    with pytest.raises(ProblemError, match="made by a page of"):
        check_origin("POST", {"origin": "http://[", "host": "127.0.0.1"}, "http")


async def test_a_token_that_is_no_ascii_is_a_wrong_one(http: httpx.AsyncClient) -> None:
    answer = await http.post("/queues/mail/pause", data={"token": "é", "reason": "x"})
    assert answer.status_code == 403


async def test_only_an_admin_has_a_secret_of_the_gateway_sent_somewhere(
    gateway: Gateway, http: httpx.AsyncClient
) -> None:
    class Operator(LocalAccess):
        def principal(self, connection: object) -> Principal:
            return Principal(name="eve", permissions=ROLES["operator"])

    gateway.access = Operator()
    body = {"target": {"url": "https://example.com/x"}, "events": ["completed"], "headers": {"x": "env:HOME"}}
    refused = await http.put("/v1/webhooks/w", json=body)
    assert (refused.status_code, refused.json()["code"]) == (403, "JOB_ACCESS_DENIED")


async def test_no_answer_is_kept_on_the_way_or_read_as_another_type(gateway: Gateway) -> None:
    inner = Requests(app(gateway), Life(), Counters(), body_bytes_max=1_000, appends=lambda: 0)
    transport = httpx.ASGITransport(inner)
    paths = {endpoint.path for endpoint in ENDPOINTS} | {
        *(
            "/",
            "/jobs",
            "/login",
            "/openapi.json",
            "/docs",
            "/static/live.js",
            "/nothing",
            "/v1/nothing",
            "/healthz",
        )
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        for path in sorted(paths - {"/v1/events"}):  # which has no end
            for method in ("HEAD", "GET", "POST", "OPTIONS"):
                answer = await client.request(method, path.replace("{", "").replace("}", ""))
                assert answer.headers.get("x-content-type-options") == "nosniff", (method, path)
                assert answer.headers.get("cache-control"), (method, path)
        large = await client.post("/v1/jobs", content=b"x" * 2_000)
        assert (large.status_code, large.headers["cache-control"]) == (413, "no-store")
