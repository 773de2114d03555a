"""The same two requests as a gateway's, by a handwritten ASGI program: what HTTP costs at the least on this ledger.

It checks nobody, explains nothing and knows two addresses. `python benchmarks/by_hand.py URL PORT` serves it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
import uvicorn
from shared import LEDGER_BYTES, run

from jobledger.admin.views import job_details
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.process import tune_collector

Message = MutableMapping[str, Any]

encode = msgspec.json.Encoder().encode


class NewJob(msgspec.Struct):
    """What is sent to enqueue a job."""

    task: str
    queue: str
    input: dict[str, Any]


decode = msgspec.json.Decoder(NewJob).decode


@task(name="noop", queue="bench")
async def noop(number: int) -> None:
    """Be enqueued."""


class ByHand:
    """The program."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer a request."""
        if scope["method"] == "POST":
            body = b""
            while (message := await receive())["type"] == "http.request":
                body += message["body"]
                if not message.get("more_body"):
                    break
            given = decode(body)
            job = await self._ledger.enqueue(noop.options(queue=given.queue), **given.input)
            status, answer = 202, encode({"id": job.id, "queue": job.queue, "sequence": job.sequence})
        else:
            _, _, _, queue, job_id = scope["path"].split("/")
            history = await self._ledger.handle_of(JobRef(queue=queue, job_id=job_id)).history()
            state = fold(history).job
            assert state is not None, "it was enqueued"
            status, answer = 200, encode(await job_details(self._ledger, state, history))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


async def serve(url: str, port: int) -> None:
    """Serve it until it is told to stop."""
    tune_collector()
    async with connect(url, ledger_bytes_max=LEDGER_BYTES) as ledger:
        config = uvicorn.Config(
            ByHand(ledger), port=port, http="httptools", lifespan="off", access_log=False, log_level="warning"
        )
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    run(serve(sys.argv[1], int(sys.argv[2])))
