"""What the attempts of a job logged, over HTTP, in the client and on the page of the job; for who may see values."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest
from tests.support.dashboard import HOSTILE, Someone, check_page
from tests.support.gateways import listening
from tests.support.limits import LIMIT_S
from tests.support.working import ended, working

from jobledger.gateway.client import connect
from jobledger.gateway.client.sync import connect as connect_blocking
from jobledger.gateway.gateway import Gateway
from jobledger.ledger import Ledger, task

pytestmark = pytest.mark.anyio


@task(queue="logs")
async def speaks(text: str) -> None:
    logging.getLogger("spoken_app").warning("said %s", text)


async def test_logs_are_at_every_door(http: httpx.AsyncClient, gateway: Gateway, ledger: Ledger) -> None:
    async with working(ledger, speaks):
        job = await ledger.enqueue(speaks, HOSTILE)
        await ended(job)
        async with asyncio.timeout(LIMIT_S):
            while not (await job.logs()).ended:
                await asyncio.sleep(0.01)
    path = f"/v1/jobs/logs/{job.id}/logs"
    (line,) = (found := (await http.get(path)).json())["items"]
    assert (line["text"], line["attempt"], line["number"], line["job"]) == (f"said {HOSTILE}", 1, 1, job.id)
    assert (found["ended"], found["cut"]) == (True, {})
    assert (await http.get(path, params={"attempt": 2})).json()["items"] == []
    assert (await http.get(path, params={"step": "charge"})).json()["items"] == []
    assert (await http.get(path, params={"attempt": 0})).status_code == 400
    assert (await http.get("/v1/jobs/logs/none/logs")).status_code == 404
    async with listening(gateway) as url, connect(url) as remote:
        assert [each.text for each in (await (await remote.job(job.id)).logs(attempt=1)).items] == [
            line["text"]
        ]

        def blocking() -> int:
            with connect_blocking(url) as other:
                return len(other.job(job.id).logs().items)

        assert await asyncio.to_thread(blocking) == 1
    page = await http.get(f"/jobs/logs/{job.id}")
    check_page(page)
    assert "WARNING attempt 1 spoken_app: said" in page.text
    gateway.access = Someone("viewer")
    assert "spoken_app" not in (await http.get(f"/jobs/logs/{job.id}")).text
    assert (await http.get(path)).status_code == 403
