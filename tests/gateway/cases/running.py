"""Every code of running jobs inside a request."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from tests.support.gateway import Asker, send, someone

from jobledger.ledger import TaskRegistry, task


@task(queue="clock")
async def tick(number: int) -> int:
    """Count."""
    return number


async def within_a_request(asker: Asker) -> None:
    body: dict[str, Any] = {"queue": "clock", "limit": 2, "budget_s": 20}
    for number in range(3):
        await asker.ledger.enqueue(tick, number=number)
    await asker.post("/v1/run", body, "NO_APP")
    await asker.sees("GET", "/v1/run", "NO_APP")
    asker.gateway.tasks = TaskRegistry([tick, send])
    try:
        assert (await asker.http.head("/v1/run?queue=clock")).status_code == HTTPStatus.METHOD_NOT_ALLOWED
        assert (await asker.post("/v1/run", body)) == {"ran": 2, "left": 1}
        assert (await asker.get("/v1/run?queue=clock")) == {"ran": 1, "left": 0}
        elsewhere, of_one_task = someone("run", queues=("mail",)), someone("run", tasks=("send",))
        for who in (elsewhere, of_one_task):
            await asker.post("/v1/run", body, "JOB_ACCESS_DENIED", who=who)
            await asker.post("/v1/run", {}, "JOB_ACCESS_DENIED", who=who)
        await asker.post("/v1/run", {"budget_s": 61}, "BAD_REQUEST")
    finally:
        asker.gateway.tasks = None


CASES: Final = (within_a_request,)
