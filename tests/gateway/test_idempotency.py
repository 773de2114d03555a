"""One `Idempotency-Key` is one job, whichever gateways get it at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.support.gateways import gateway_of, listening
from tests.support.limits import LIMIT_S

from jobledger.gateway.client import remote
from jobledger.ledger import InputMismatchError, Ledger, connect, task
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks

pytestmark = pytest.mark.anyio


@task(queue="mail")
async def send(to: str) -> None:
    """Be enqueued only."""


@task(queue="bills", id="charge-{tenant_id}-{invoice}", tenant="{tenant_id}")
async def charge(tenant_id: str, invoice: int, cents: int = 5) -> None:
    """Be enqueued only."""


async def test_fifty_requests_with_one_key_over_two_gateways_make_one_job(
    ledger: Ledger, tmp_path: Path
) -> None:
    entry = entry_of(send, worker="web-1-0a", at=ledger.clock.now())
    await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
    (tmp_path / "b").mkdir()
    environment = ledger.names.environment
    async with (
        connect(ledger.config.url, environment=environment) as second,
        gateway_of(ledger, tmp_path) as one,
        gateway_of(second, tmp_path / "b") as two,
        listening(one) as first_url,
        listening(two) as second_url,
        httpx.AsyncClient(limits=httpx.Limits(max_connections=50), timeout=LIMIT_S) as http,
    ):

        async def ask(number: int) -> tuple[int, str]:
            answer = await http.post(
                f"{(first_url, second_url)[number % 2]}/v1/jobs",
                json={"task": "send", "input": {"to": "ann"}},
                headers={"idempotency-key": "order-7"},
            )
            return answer.status_code, answer.json()["id"]

        answers = await asyncio.gather(*(ask(number) for number in range(50)))
        other = await http.post(
            f"{second_url}/v1/jobs",
            json={"task": "send", "input": {"to": "bob"}},
            headers={"idempotency-key": "order-7"},
        )
    assert Counter(status for status, _ in answers) == {202: 1, 200: 49}
    assert len({job for _, job in answers}) == 1
    assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert (await ledger.log.head()).last_sequence == 1


async def test_a_task_that_declares_its_ids_names_its_jobs_also_over_http(
    ledger: Ledger, tmp_path: Path
) -> None:
    entry = entry_of(charge, worker="web-1-0a", at=ledger.clock.now())
    await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
    body: dict[str, Any] = {"task": "charge", "input": {"tenant_id": "acme", "invoice": 7}}
    lines: list[dict[str, Any]] = [
        {**body, "input": {"tenant_id": "acme", "invoice": number}} for number in (7, 8, 8)
    ]
    async with (
        gateway_of(ledger, tmp_path) as gateway,
        listening(gateway) as url,
        remote.connect(url) as client,
        httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as http,
    ):
        made = await client.enqueue("charge", {"tenant_id": "acme", "invoice": 7})
        assert (made.id, made.created) == ("charge-acme-7", True)
        for again in (
            await client.enqueue(charge, tenant_id="acme", invoice=7),
            await client.enqueue("charge", tenant_id="acme", invoice=7),
        ):
            assert (again.id, again.created) == (made.id, False)
        with pytest.raises(InputMismatchError, match=r"job charge-acme-7 in queue bills .*\(cents\)"):
            await client.enqueue("charge", tenant_id="acme", invoice=7, cents=9)
        for key in ("one", "two"):
            answer = await http.post("/v1/jobs", json=body, headers={"idempotency-key": key})
            assert (answer.status_code, answer.json()["id"]) == (200, made.id)
        for headers in ({}, {"idempotency-key": "three"}):
            content = b"\n".join(map(msgspec.json.encode, lines))
            kind = {"content-type": "application/x-ndjson", **headers}
            done = (await http.post("/v1/jobs/bulk", content=content, headers=kind)).json()
            assert (done["created"], done["existing"]) == ((0, 3) if headers else (1, 2))
        done = await client.enqueue_many("charge", [each["input"] for each in lines])
        assert (done.created, done.existing) == (0, 3)
        shown = (await http.get("/v1/jobs/bills/charge-acme-8")).json()
        assert shown["tenant"] == "acme"
    assert (await ledger.log.head()).last_sequence == 2
