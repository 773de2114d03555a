"""What a worker's log says while its server is away: few lines, and everything that matters."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest
from tests.conftest import ServerFactory
from tests.support.working import LIMIT_S, ended, until, working

from jobledger.ledger import JobState, connect, task

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

_began = 0


@task
async def wait(seconds: float) -> None:
    global _began  # noqa: PLW0603 - a task has no other way out
    _began += 1
    await asyncio.sleep(seconds)


async def test_an_outage_takes_a_few_lines(
    server_factory: ServerFactory,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    global _began  # noqa: PLW0603
    _began = 0
    monkeypatch.setattr("jobledger.ledger.nats.outage._TELL_EVERY_S", 2.0)
    server = server_factory()
    await server.start()
    async with connect(server.url, ledger_bytes_max=16 << 20, lease_s=2.0) as ledger:
        async with working(ledger, wait, concurrency=20) as worker:
            jobs = [await ledger.enqueue(wait, 1.5) for _ in range(10)]
            await until(lambda: _began == 10)
            caplog.clear()
            caplog.set_level(logging.INFO, "jobledger")
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)
            await until(lambda: "has been away for" in caplog.text)
            os.kill(server.pid, signal.SIGCONT)
            await until(lambda: "is back after" in caplog.text)
            for job in jobs:
                assert (await ended(job)).state is JobState.COMPLETED
            await until(lambda: worker.counts().lease_is_valid)
        told = [each for each in caplog.records if each.levelno >= logging.WARNING]
    # The machine may be so busy that this process stands still meanwhile: that is told, and is no line of the outage.
    texts = [each.getMessage() for each in told if each.name != "jobledger.workers.watchdog"]
    assert texts[0].startswith("the server is away, trying again: ")
    assert [text for text in texts if "what it held is given up" in text]
    assert len([text for text in texts if "has been away for" in text]) <= LIMIT_S / 2
    assert texts[-1].startswith("the server is back after ")
    known = ("the server", "lease of ", "job ")
    assert [text for text in texts if not text.startswith(known)] == []
