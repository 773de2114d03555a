"""Inputs and results above the inline limit: by sha256 in the object store, checked when they are read."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S

from jobledger.ledger import JobState, Ledger, TaskRegistry, task
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import (
    JobFailedError,
    LedgerFullError,
    PayloadMissingError,
    PayloadTooLargeError,
)
from jobledger.workers import Worker, WorkerConfig

pytestmark = pytest.mark.anyio

INLINE = 64 << 10


@task(max_attempts=1)
async def echo(text: str) -> str:
    return text


@task(max_attempts=1)
async def grow(size: int) -> str:
    return "x" * size


@contextlib.asynccontextmanager
async def working(ledger: Ledger) -> AsyncGenerator[Worker, None]:
    worker = Worker(ledger, TaskRegistry([echo, grow]), WorkerConfig(grace_s=2.0))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(LIMIT_S):
            await running


async def objects(ledger: Ledger, bucket: str) -> int:
    info = await api(ledger.inbox, f"STREAM.INFO.OBJ_{bucket}", {"subjects_filter": f"$O.{bucket}.M.>"})
    return len(info["state"].get("subjects") or {})


OVERHEAD = len('{"text":""}')


@pytest.mark.parametrize("over", [0, 1])
async def test_the_limit_is_where_it_is_said_to_be(ledger: Ledger, over: int) -> None:
    text = "x" * (INLINE - OVERHEAD + over)
    job = await (await ledger.enqueue(echo, text)).snapshot()
    assert (job.order.input_ref is not None) == bool(over)
    assert (job.order.input is NO_VALUE) == bool(over)
    assert await objects(ledger, ledger.names.payloads_bucket) == over


async def test_large_inputs_and_results_go_around_and_come_back(ledger: Ledger) -> None:
    text = "ä\u2028" * 300_000
    async with working(ledger):
        job = await ledger.enqueue(echo, text)
        assert await job.result(timeout_s=LIMIT_S) == text
    snapshot = await job.snapshot()
    assert snapshot.order.input_ref is not None
    assert snapshot.result_ref is not None
    written = msgspec.json.encode({"text": text})
    assert snapshot.order.input_ref.sha256 == hashlib.sha256(written).hexdigest()
    assert snapshot.order.input_ref.size_bytes == len(written)
    assert max(len(stored.data) for stored in await job.history()) < 2_000


async def test_equal_inputs_are_kept_once_even_when_stored_at_the_same_time(ledger: Ledger) -> None:
    text = secrets.token_hex(100_000)
    async with working(ledger):
        jobs = await asyncio.gather(*(ledger.enqueue(echo, text) for _ in range(10)))
        jobs += [await ledger.enqueue(echo, text)]
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == [text] * 11
    assert await objects(ledger, ledger.names.payloads_bucket) == 1


async def test_what_one_of_several_stored_at_the_same_time_stays_for_its_readers(ledger: Ledger) -> None:
    """Whoever looked up where a value lies finds all of it there, though others store the same value meanwhile."""
    bucket, text = ledger.names.payloads_bucket, msgspec.json.encode(secrets.token_hex(100_000))
    stream = ledger.connection.jetstream()
    store: Any = await stream.object_store(bucket)
    name = hashlib.sha256(text).hexdigest()

    async def place_after_put() -> str:
        await ledger.inputs.put(text, what="input", key="")
        return str((await store.get_info(name)).nuid)

    places = set(await asyncio.gather(*(place_after_put() for _ in range(20))))
    info = await api(ledger.inbox, f"STREAM.INFO.OBJ_{bucket}", {"subjects_filter": f"$O.{bucket}.C.>"})
    for place in places:
        assert info["state"]["subjects"][f"$O.{bucket}.C.{place}"] == 2
    # Of those who came too late an empty message stays; their chunks go.
    assert info["state"]["bytes"] < 2 * len(text)


async def test_a_value_that_could_not_be_stored_whole_takes_no_room(ledger: Ledger) -> None:
    bucket, name = ledger.names.payloads_bucket, f"OBJ_{ledger.names.payloads_bucket}"
    config = (await api(ledger.inbox, f"STREAM.INFO.{name}", {}))["config"]
    await api(ledger.inbox, f"STREAM.UPDATE.{name}", {**config, "max_bytes": 300_000})
    with pytest.raises(LedgerFullError, match="no room for the input"):
        await ledger.inputs.put(msgspec.json.encode("x" * 500_000), what="input", key="")
    assert await objects(ledger, bucket) == 0
    assert (await api(ledger.inbox, f"STREAM.INFO.{name}", {}))["state"]["bytes"] < 1_000
    await ledger.inputs.put(msgspec.json.encode("x" * 200_000), what="input", key="")


async def test_an_input_of_ten_megabytes_is_refused_and_nothing_is_stored(ledger: Ledger) -> None:
    with pytest.raises(PayloadTooLargeError, match="8,388,608"):
        await ledger.enqueue(echo, "x" * (10 << 20))
    with pytest.raises(PayloadTooLargeError, match="input 1: "):
        await ledger.enqueue_many(echo, [{"text": "fine"}, {"text": "x" * (10 << 20)}, {"text": "never"}])
    assert (await ledger.log.head()).last_sequence == 1
    assert await objects(ledger, ledger.names.payloads_bucket) == 0


async def test_a_result_beyond_the_limit_is_a_failure_with_its_reason(ledger: Ledger) -> None:
    async with working(ledger):
        job = await ledger.enqueue(grow, 9 << 20)
        with pytest.raises(JobFailedError, match="limit is 8,388,608"):
            await job.result(timeout_s=LIMIT_S)


async def test_large_inputs_in_bulk(ledger: Ledger) -> None:
    result = await ledger.enqueue_many(echo, ({"text": f"{n}" * 70_000} for n in range(10)))
    assert result.created == 10
    assert await objects(ledger, ledger.names.payloads_bucket) == 10


async def _lose_objects(ledger: Ledger, bucket: str) -> None:
    assert (await api(ledger.inbox, f"STREAM.PURGE.OBJ_{bucket}", {}))["success"]


async def test_a_result_that_is_gone_is_told_so(ledger: Ledger) -> None:
    async with working(ledger):
        job = await ledger.enqueue(grow, 100_000)
        assert len(await job.result(timeout_s=LIMIT_S)) == 100_000
        await _lose_objects(ledger, ledger.names.results_bucket)
        with pytest.raises(PayloadMissingError, match="is gone from"):
            await job.result(timeout_s=LIMIT_S)


async def test_a_job_whose_input_is_gone_is_a_dead_letter(ledger: Ledger) -> None:
    job = await ledger.enqueue(echo, "x" * 100_000)
    await _lose_objects(ledger, ledger.names.payloads_bucket)
    async with working(ledger):
        done = await job.wait(timeout_s=LIMIT_S)
    assert (done.state, done.dead_reason) == (JobState.DEAD_LETTERED, "invalid")


async def test_a_damaged_object_is_not_handed_out(ledger: Ledger) -> None:
    job = await ledger.enqueue(echo, "x" * 100_000)
    reference = (await job.snapshot()).order.input_ref
    assert reference is not None
    store: Any = await ledger.connection.jetstream().object_store(ledger.names.payloads_bucket)
    await store.put(reference.sha256, b'{"text":"another"}')
    with pytest.raises(PayloadMissingError, match="differs from what was stored"):
        await ledger.inputs.get(NO_VALUE, reference, key="")
    async with working(ledger):
        done = await job.wait(timeout_s=LIMIT_S)
    assert (done.state, done.dead_reason) == (JobState.DEAD_LETTERED, "invalid")


@pytest.mark.parametrize("answer", range(1, 7))
async def test_a_cancellation_beside_an_answer_is_not_forgotten(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    """The n-th message arrives, and before its waiter runs the task is cancelled."""
    original, heard = ledger.connection._process_msg, 0

    async def put_for_ever() -> None:
        while True:
            await ledger.inputs.put(msgspec.json.encode(secrets.token_hex(INLINE)), what="input", key="")

    async def process(sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        nonlocal heard
        await original(sid, subject, reply, data, headers)
        heard += 1
        if heard == answer:
            putting.cancel()

    monkeypatch.setattr(ledger.connection, "_process_msg", process)
    putting = asyncio.create_task(put_for_ever())
    await asyncio.wait({putting}, timeout=LIMIT_S)
    assert putting.cancelled()
