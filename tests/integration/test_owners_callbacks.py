"""Callbacks of runs that have an owner: made by who has the key, left to others by who has not, and never of erased data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_owners import Connect, master_file
from tests.support.limits import LIMIT_S
from tests.support.roles import authorization, printed, user
from tests.support.secured import secured
from tests.support.working import becomes, until, working

from jobledger.admin.erasure import keys_of
from jobledger.ledger import (
    JobHandle,
    JobNotFoundError,
    JobState,
    Ledger,
    Run,
    RunEnd,
    connect,
    task,
    workflow,
)
from jobledger.ledger.model.subjects import CHILDREN_CONSUMER
from jobledger.ledger.nats.durables import find_consumer
from jobledger.workers.reactors.children.reactor import ChildrenReactor

pytestmark = pytest.mark.anyio
OWNER: dict[str, Any] = {"owner": "person:17"}


@task(max_attempts=1)
async def hears(end: RunEnd) -> str:
    return f"{end.state}: {end.error}"


@workflow(on_success=hears, on_fail=hears, max_attempts=1)
async def tells(run: Run, text: str) -> str:
    raise LookupError(text)


@contextlib.asynccontextmanager
async def reacting(ledger: Ledger) -> AsyncGenerator[None]:
    """Have a process that does nothing but follow the ends of runs."""
    running = asyncio.create_task(ChildrenReactor(ledger).run())
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def cancelled(ledger: Ledger, *ids: str) -> list[JobHandle[Any]]:
    """Enqueue runs, and cancel them before a worker has one: then a reactor has to tell of their ends."""
    runs = [await ledger.enqueue(tells.options(id=each, **OWNER), "x") for each in ids]
    for each in runs:
        await ledger.cancel(each, reason="no")
    return runs


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_who_has_no_key_says_so_once_and_leaves_callbacks_to_others(
    connected: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger, connected() as poor:
        await cancelled(ledger, "a", "b", "c")
        caplog.set_level(logging.DEBUG, logger="jobledger.workers.reactors.reactor")
        async with reacting(poor):
            await until(lambda: len([each for each in caplog.records if "sealed values" in each.message]) > 3)
        (said,) = told(caplog)
        assert said.exc_info is None
        assert (
            "reactor children leaves sealed values to others: the key person:17/1 cannot be" in said.message
        )
        assert "set JOBLEDGER_MASTER_KEY" in said.message
        async with reacting(ledger), working(ledger, hears):
            for each in ("a", "b", "c"):
                job = await found(ledger, f"{each}-end")
                assert await job.result(timeout_s=LIMIT_S) == "cancelled: no"


async def found(ledger: Ledger, job_id: str) -> JobHandle[Any]:
    """Wait until there is a job of an id."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(JobNotFoundError):
                return await ledger.job(job_id)
            await asyncio.sleep(0.01)


async def test_who_may_not_read_keys_says_so_once_without_a_traceback(
    nats_server_binary: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rights = printed("reactors", "--of", "hosts")
    older = rights.replace(
        '"$JS.API.STREAM.MSG.GET.KV_KEYS"', '"unused"'
    )  # as printed before there were owners
    assert older != rights
    with secured(nats_server_binary, tmp_path, authorization(user("hosts", older))) as server:
        key = master_file(tmp_path, "m1")
        async with (
            connect(
                server.url(), user="all", password="p", master_key=key, ledger_bytes_max=64 << 20
            ) as ledger,
            connect(server.url(), user="hosts", password="p", master_key=key) as hosts,
        ):
            await cancelled(ledger, "a", "b", "c")
            caplog.set_level(logging.DEBUG, logger="jobledger.workers.reactors.reactor")
            async with reacting(hosts):
                await until(
                    lambda: len([each for each in caplog.records if "sealed values" in each.message]) > 3
                )
            said = [each for each in told(caplog) if "reactor" in each.name]
            assert len(said) == 1
            assert said[0].exc_info is None
            assert (
                "the server does not allow this user to publish to $JS.API.STREAM.MSG.GET.KV_KEYS"
                in said[0].message
            )


async def test_nobody_is_told_of_the_end_of_a_run_whose_data_is_erased(
    connected: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        await cancelled(ledger, "a")
        waiting = await ledger.enqueue(tells.options(id="b", **OWNER), "x")
        await keys_of(ledger).destroy("person:17", 1, ledger.clock.now())
        async with working(ledger, hears, tells):
            assert (await becomes(waiting, JobState.CANCELLED)).cancel_reason == "erased"
            await settled(ledger, CHILDREN_CONSUMER)
        assert [each.message for each in told(caplog)] == []
        for each in ("a-end", "b-end"):
            with pytest.raises(JobNotFoundError):
                await ledger.job(each)


async def settled(ledger: Ledger, consumer: str) -> None:
    """Wait until nothing of a consumer waits, is held or was given back."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await find_consumer(ledger.inbox, ledger.names.ledger_stream, consumer)
            if found is not None and found.delivered.stream_sequence and not found.unsettled:
                return
            await asyncio.sleep(0.01)
