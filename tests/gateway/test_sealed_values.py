"""Jobs that have an owner over HTTP: begun by one request, read by who may see payloads, sealed to everybody else."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_owners import keeps, master_file
from tests.support.gateway import ADMIN, Asker, Doorman, someone
from tests.support.gateways import gateway_of
from tests.support.working import ended, working

from jobledger.admin.erasure import keys_of
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.ledger import Backoff, Ledger, Run, Signal, StepFailedError, connect, step, task, workflow
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio
WORD = "Canary-Jane-2290"
SEER = someone("view", "payloads")
BLIND = someone("view")
said = Signal("said", str)


@task(queue="mail", max_attempts=1)
async def fails(text: str) -> str:
    raise ValueError(f"{text} is not known")


@step(max_attempts=1, backoff=Backoff(base_s=0.01, jitter=0.0))
async def tries(text: str) -> str:
    raise LookupError(text)


@step
async def echoes(text: str) -> str:
    return text


@workflow(queue="mail", max_attempts=1)
async def book(run: Run, text: str) -> str:
    await run.step(echoes, text)
    with contextlib.suppress(StepFailedError):
        await run.step(tries, text)
    return await run.wait(said)


TASKS = (fails, keeps, book)


@pytest.fixture
async def rich(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Ledger]:
    """A client that has the master key."""
    environment = f"t_{secrets.token_hex(6)}"
    async with connect(
        nats_server.url,
        environment=environment,
        ledger_bytes_max=16 << 20,
        master_key=master_file(tmp_path, "m1"),
    ) as made:
        yield made


def asker_of(gateway: Any, folder: Path) -> Asker:
    gateway.access = door = Doorman()
    return Asker(gateway, ENDPOINTS, door, folder)


async def begin(asker: Asker, ledger: Ledger) -> None:
    """Have jobs and a run of an owner done, each begun over HTTP, with a word in every value."""
    await asker.announced(*TASKS)
    owned: dict[str, Any] = {"owner": "person:17", "metadata": {"who": WORD}, "input": {"text": WORD}}
    for name in ("fails", "keeps", "book"):
        told = await asker.post("/v1/jobs", {"task": name, "id": name, **owned}, 202)
        assert told["id"] == name
    async with working(ledger, *TASKS, queues=("mail", "default")):
        await asker.post("/v1/jobs/mail/book/signals/said", WORD, 202)
        for name in ("fails", "keeps", "book"):
            await ended(await ledger.job(name))
    for name in ("fails", "book"):
        await ledger.note(name, f"{WORD} called")


async def texts(asker: Asker, who: Any) -> dict[str, str]:
    """Return what somebody is shown of the jobs, by the address."""
    paths = [
        "/v1/jobs/mail/fails",
        "/v1/jobs/mail/fails/events",
        "/v1/jobs/mail/fails/attempts",
        "/v1/jobs/mail/fails/trail",
        "/v1/dead-letters/mail/fails",
        "/v1/jobs/default/keeps",
        "/v1/jobs/mail/book",
        "/v1/jobs/mail/book/steps",
    ]
    found = {path: (await asker.sees("GET", path, 200, who=who)).text for path in paths}
    asker.door.who = who
    for page in ("/jobs/mail/fails", "/jobs/mail/book"):
        answer = await asker.http.get(page, follow_redirects=True)
        assert answer.status_code == 200, answer.text[:300]
        found[page] = answer.text
    asker.door.who = ADMIN
    return found


async def test_who_may_see_payloads_reads_what_is_sealed_and_nobody_else_does(
    rich: Ledger, tmp_path: Path
) -> None:
    async with gateway_of(rich, tmp_path) as gateway:
        asker = asker_of(gateway, tmp_path)
        await begin(asker, rich)
        async for portion in rich.log.read_messages():
            assert not [each.subject for each in portion if WORD.encode() in each.data]
        shown = await texts(asker, SEER)
        assert [path for path, text in shown.items() if WORD not in text] == []
        assert [path for path, text in shown.items() if "sealed:" in text] == []
        hidden = await texts(asker, BLIND)
        assert [path for path, text in hidden.items() if WORD in text] == []
        whole = await asker.get("/v1/jobs/mail/fails", who=SEER)
        assert whole["metadata"] == {"who": WORD}
        assert whole["error"]["message"] == f"{WORD} is not known"
        assert WORD in whole["error"]["traceback"]
        assert [each["text"] for each in whole["events"] if each["type"] == "noted"] == [f"{WORD} called"]
        steps = await asker.get("/v1/jobs/mail/book/steps?results=true", who=SEER)
        assert {each["key"]: each["error"] for each in steps["steps"]}["tries"] == WORD
        assert {each["key"]: each["values"]["result"] for each in steps["steps"]}["echoes"] == WORD
        assert await asker.get("/v1/jobs/mail/book/input", who=SEER) == {"text": WORD}
        assert await asker.get("/v1/jobs/mail/book/result", who=SEER) == WORD
        for path in ("/v1/jobs/mail/book/input", "/v1/jobs/mail/book/result"):
            await asker.sees("GET", path, "JOB_ACCESS_DENIED", who=BLIND)
        group = (await asker.get("/v1/dead-letters", who=SEER))["items"][0]["fingerprint"]
        assert (await asker.get("/v1/dead-letters/mail/fails", who=SEER))["fingerprint"] == group


async def test_a_graph_is_begun_for_an_owner(rich: Ledger, tmp_path: Path) -> None:
    async with gateway_of(rich, tmp_path) as gateway:
        asker = asker_of(gateway, tmp_path)
        await asker.announced(fails, keeps)
        nodes = [{"name": "a", "task": "keeps", "input": {"text": WORD}}]
        body = {"name": "one", "nodes": nodes, "owner": "person:17", "id": "g"}
        await asker.post("/v1/graphs", body, 202)
        async with working(rich, keeps, queues=("default", "jobledger")):
            await ended(await rich.job("g"))
        assert await asker.get("/v1/jobs/jobledger/g/result", who=SEER) == {"a": WORD}
        await asker.post("/v1/graphs", {**body, "owner": "Jane Doe", "id": "h"}, "JOB_INVALID_INPUT")
        async for portion in rich.log.read_messages():
            assert not [each.subject for each in portion if WORD.encode() in each.data]


async def test_a_run_of_a_stored_graph_is_begun_for_an_owner(rich: Ledger, tmp_path: Path) -> None:
    async with gateway_of(rich, tmp_path) as gateway:
        asker = asker_of(gateway, tmp_path)
        await asker.announced(fails, keeps)
        given = {"text": {"$input": "/text"}}
        node = {"name": "a", "task": "keeps", "input": given, "owner": "team:mail"}
        kept = {"nodes": [{**node, "input": {"text": WORD}}]}
        told = await asker.sees("PUT", "/v1/graphs/one", "JOB_INVALID_INPUT", json=kept)
        assert "a stored graph keeps values in the clear" in told.json()["detail"]
        await asker.sees("PUT", "/v1/graphs/one", 200, json={"nodes": [node]})
        assert (await asker.get("/v1/graphs/one"))["definition"]["nodes"][0]["owner"] == "team:mail"
        await asker.post("/v1/graphs/one/run", {"input": {"text": WORD}, "id": "g"}, 202)
        body = {"input": {"text": WORD}, "id": "h", "owner": "person:17"}
        await asker.post("/v1/graphs/one/run", body, "JOB_INVALID_INPUT")
        plain = {name: said for name, said in node.items() if name != "owner"}
        await asker.sees("PUT", "/v1/graphs/two", 200, json={"nodes": [plain]})
        await asker.post("/v1/graphs/two/run", body, 202)
        daily = {"graph": "two", "input": {"text": WORD}, "on_demand": True, "owner": "person:18"}
        await asker.sees("PUT", "/v1/schedules/daily", 200, json=daily)
        assert (await rich.schedules.get("daily")).definition.order.key == "person:18/1"
        async with working(rich, keeps, queues=("default", "jobledger")):
            keys = [(await ended(await rich.job(each))).order.key for each in ("g", "h")]
        assert keys == ["team:mail/1", "person:17/1"]
        assert await asker.get("/v1/jobs/jobledger/h/result", who=SEER) == {"a": WORD}
        async for portion in rich.log.read_messages():
            assert not [each.subject for each in portion if WORD.encode() in each.data]


async def test_a_gateway_without_the_master_key_says_that_values_are_sealed(
    rich: Ledger, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with gateway_of(rich, tmp_path) as gateway:
        await begin(asker_of(gateway, tmp_path), rich)
    async with (
        connect(nats_server.url, environment=rich.names.environment) as poor,
        gateway_of(poor, tmp_path) as gateway,
    ):
        asker = asker_of(gateway, tmp_path)
        shown = await texts(asker, ADMIN)
        assert [path for path, text in shown.items() if WORD in text] == []
        assert (await asker.get("/v1/jobs/mail/book"))["result"] == {"sealed": "person:17/1"}
        steps = await asker.get("/v1/jobs/mail/book/steps?results=true")
        assert {each["key"]: each["values"]["result"] for each in steps["steps"]}["echoes"] == {
            "sealed": "person:17/1"
        }
        told = await asker.sees("GET", "/v1/jobs/mail/book/result", "LEDGER_UNREACHABLE")
        assert "master key" in told.json()["detail"]


async def test_what_was_erased_is_gone_for_who_may_see_payloads(rich: Ledger, tmp_path: Path) -> None:
    async with gateway_of(rich, tmp_path) as gateway:
        asker = asker_of(gateway, tmp_path)
        await begin(asker, rich)
        await keys_of(rich).destroy("person:17", 1, rich.clock.now())
        shown = await texts(asker, SEER)
        assert [path for path, text in shown.items() if WORD in text] == []
        assert (await asker.get("/v1/jobs/mail/book", who=SEER))["input"] == {"erased": "person:17/1"}
        for part in ("input", "result"):
            told = await asker.sees("GET", f"/v1/jobs/mail/book/{part}", "ERASED", who=SEER)
            assert told.status_code == 410
        await asker.post("/v1/jobs/mail/book/rerun", {"from": "tries"}, "ERASED")
