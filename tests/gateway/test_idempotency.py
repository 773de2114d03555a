"""One `Idempotency-Key` is one job, whichever gateways get it at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import httpx
import pytest
from tests.support.gateways import gateway_of, listening
from tests.support.limits import LIMIT_S

from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.adding.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks

pytestmark = pytest.mark.anyio


@task(queue="mail")
async def send(to: str) -> None:
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
