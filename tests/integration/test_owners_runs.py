"""Runs that have owners: one word in every kind of value of a run, found nowhere on the disk, and read by who has the key."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.test_owners import found_in, master_file
from tests.support.limits import LIMIT_S
from tests.support.working import becomes, working

from jobledger.ledger import (
    Backoff,
    JobFailedError,
    JobState,
    Ledger,
    Run,
    RunEnd,
    Signal,
    StepFailedError,
    step,
    task,
    workflow,
)
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

Connect = Callable[..., AbstractAsyncContextManager[Ledger]]
OWNER: dict[str, Any] = {"owner": "person:17"}
said = Signal("said", str)
asked = Signal("asked", int)


@step(max_attempts=2, backoff=Backoff(base_s=0.05, jitter=0.0))
async def tries(text: str) -> str:
    raise LookupError(text)


@step
async def echoes(text: str) -> str:
    return text


@step
async def goes_back(text: str) -> None:
    raise PermissionError(text)


@task(max_attempts=1)
async def takes(end: RunEnd) -> str:
    return f"{end.state} {end.result} {end.error}"


@task(max_attempts=1)
async def part(text: str) -> str:
    return f"{text}!"


@task(max_attempts=1)
async def fails(text: str) -> str:
    raise ValueError(f"{text} is not known")


@task(owner="person:{person}", max_attempts=1)
async def of_person(person: int) -> int:
    return person


@workflow(on_success=takes, max_attempts=3)
async def book(run: Run, text: str) -> str:
    found = await run.step(echoes, text)
    with contextlib.suppress(StepFailedError):
        await run.step(tries, found)
    parts = await run.map(part, [f"{text}-{number}" for number in range(12)])
    (failed,) = await run.map_settled(fails, [text])
    assert text in failed.error
    assert await run.call(of_person, 17) == 17
    number = await run.wait(asked)
    heard = await run.wait(said)
    assert parts[3] == f"{text}-3!"
    return f"{found} {heard} {number}"


@workflow(on_fail=takes, max_attempts=3)
async def breaks(run: Run, text: str) -> None:
    run.on_failure(goes_back, text)
    await run.step(tries, text)


@workflow(max_attempts=1)
async def strays(run: Run) -> int:
    return await run.call(of_person, 18)


TASKS = (takes, part, fails, of_person, book, breaks, strays)


async def test_nothing_of_a_run_is_stored_in_the_clear(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    word = f"Canary-{secrets.token_hex(6)}"
    large = f"{word}-" * 9_000
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger, working(ledger, *TASKS):
        job = await ledger.enqueue(book.options(id="run", **OWNER), word)
        broken = await ledger.enqueue(breaks.options(id="broken", **OWNER), word)
        await ledger.note(job, f"asked by {word}")
        await ledger.signal(job, asked, 7)
        await ledger.signal(job, said, large)
        assert await job.result(timeout_s=LIMIT_S) == f"{word} {large} 7"
        with pytest.raises(JobFailedError):
            await broken.result(timeout_s=LIMIT_S)
        told = await (await ledger.job("run-end")).result(timeout_s=LIMIT_S)
        assert told.startswith("completed")
        assert word in await (await ledger.job("broken-end")).result(timeout_s=LIMIT_S)
        states: dict[str, int] = {}
        async for portion in ledger.log.read_messages():
            for message in portion:
                assert word.encode() not in message.data, message.subject
                found = msgspec.json.decode(message.data)
                if message.subject.startswith("ledger.job.") or ".job." in message.subject:
                    assert found["key"] == "person:17/1", message.subject
                states[found["type"]] = states.get(found["type"], 0) + 1
        assert {"step_started", "step_completed", "step_failed", "noted", "signalled"} <= states.keys()
        assert found_in(nats_server.directory, word) == {}


async def test_a_child_has_the_owner_of_its_run(connected: Connect, tmp_path: Path) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger, working(ledger, *TASKS):
        for options, has in ((strays.options(**OWNER), "person:17"), (strays, "none")):
            job = await ledger.enqueue(options)
            await becomes(job, JobState.DEAD_LETTERED)
            with pytest.raises(JobFailedError) as failed:
                await job.result()
            if has == "none":
                assert "its run has none: give the run that owner" in str(failed.value)
