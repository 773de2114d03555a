"""Callbacks of runs that have an owner: made by who has the key, left to others by who has not, and never of erased data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_owners import Connect, found_in, master_file
from tests.support.limits import LIMIT_S
from tests.support.roles import authorization, printed, user
from tests.support.secured import secured
from tests.support.working import becomes, until, working

from jobledger.admin.erasure import keys_of
from jobledger.ledger import (
    Context,
    InvalidInputError,
    JobHandle,
    JobNotFoundError,
    JobState,
    Ledger,
    Run,
    RunEnd,
    TaskDefinitionError,
    connect,
    task,
    workflow,
)
from jobledger.ledger.model.subjects import CHILDREN_CONSUMER
from jobledger.ledger.nats.durables import find_consumer
from jobledger.ledger.server import EmbeddedServer
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


@task
async def counts_them(counts: dict[str, int]) -> None:
    return None


TEAM: dict[str, Any] = {"owner": "team:ops"}


@task(max_attempts=1)
async def reports(context: Context, end: RunEnd) -> list[Any]:
    run = await context.ledger.job(end.id, queue=end.queue)
    return [end.state, end.error, end.result, end.result_ref, await run.result()]


@workflow(on_success=reports.options(**TEAM), on_fail=hears.options(**TEAM, metadata={"for": "ops"}))
async def returns(run: Run, text: str) -> str:
    return text


@workflow(on_fail=hears.options(**TEAM), max_attempts=2)
async def fails(run: Run, text: str) -> str:
    raise LookupError(text)


@workflow(on_success=reports.options(owner="tenant:{tenant}"), on_fail=hears.options(owner="tenant:{tenant}"))
async def of_tenant(run: Run, text: str) -> str:
    return text


@workflow
async def asks(run: Run, text: str) -> str:
    return await run.call(returns, text)


async def test_a_callback_with_another_owner_has_no_value_of_the_run_and_may_read_them(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    word = f"Canary-{secrets.token_hex(6)}"
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        small = await ledger.enqueue(returns.options(id="small", **OWNER), word)
        large = await ledger.enqueue(returns.options(id="large", **OWNER), word * 6_000)
        same = await ledger.enqueue(returns.options(id="same", **TEAM), word)
        tenant = await ledger.enqueue(of_tenant.options(id="tenant", tenant="acme", **OWNER), word)
        await ledger.enqueue(asks.options(id="asks", **OWNER), word)
        async with working(ledger, returns, of_tenant, asks, reports, hears):
            expected = {
                "small-end": (["completed", "", None, None, word], "team:ops/1"),
                "large-end": (["completed", "", None, None, word * 6_000], "team:ops/1"),
                "same-end": (["completed", "", word, None, word], "team:ops/1"),
                "tenant-end": (["completed", "", None, None, word], "tenant:acme/1"),
                "asks-1-0-end": (["completed", "", None, None, word], "team:ops/1"),
            }
            for job_id, (result, key) in expected.items():
                end = await found(ledger, job_id)
                assert await end.result(timeout_s=LIMIT_S) == result
                assert (await end.snapshot()).order.key == key
        for each in (small, large, same, tenant):
            assert (await each.snapshot()).state is JobState.COMPLETED
        assert found_in(nats_server.directory, word) == {}


async def test_a_reactor_tells_a_callback_with_another_owner_of_the_end_alone(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        run = await ledger.enqueue(returns.options(id="a", **OWNER), "x")
        await ledger.cancel(run, reason="because of Jane")
        async with reacting(ledger), working(ledger, hears):
            end = await found(ledger, "a-end")
            assert await end.result(timeout_s=LIMIT_S) == "cancelled: "
        order = (await end.snapshot()).order
        assert (order.key, order.metadata["for"][:7]) == ("team:ops/1", "sealed:")


async def test_a_callback_with_another_owner_outlives_the_key_of_a_run_that_failed(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        run = await ledger.enqueue(fails.options(id="a", **OWNER), "x")
        async with working(ledger, fails), asyncio.timeout(LIMIT_S):
            while (await run.snapshot()).error is None:
                await asyncio.sleep(0.01)
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        await keys_of(ledger).destroy("person:17", 1, ledger.clock.now())
        await ledger.cancel("a", reason="no")
        async with reacting(ledger), working(ledger, hears):
            end = await found(ledger, "a-end")
            assert await end.result(timeout_s=LIMIT_S) == "cancelled: "
        assert (await end.snapshot()).order.key == "team:ops/1"


async def test_no_callback_begins_for_an_owner_who_is_being_erased(
    connected: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        await ledger.keys.key_for("team:ops")
        await keys_of(ledger).close("team:ops", 1)
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        cut = await ledger.enqueue(returns.options(id="a", **OWNER), "x")
        await ledger.cancel(cut, reason="no")
        done = await ledger.enqueue(returns.options(id="b", **OWNER), "x")
        async with working(ledger, hears, reports, returns):
            assert await done.result(timeout_s=LIMIT_S) == "x"
            await settled(ledger, CHILDREN_CONSUMER)
        assert [each.message for each in told(caplog)] == []
        for each in ("a-end", "b-end"):
            with pytest.raises(JobNotFoundError):
                await ledger.job(each)


async def test_a_callback_with_an_owner_needs_a_run_with_one(connected: Connect, tmp_path: Path) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        said = "task reports on_success of returns has the owner team:ops, and the run has none"
        with pytest.raises(InvalidInputError, match=said):
            await ledger.enqueue(returns, "x")
        with pytest.raises(InvalidInputError, match="takes its key from tenant, and the job has none"):
            await ledger.enqueue(of_tenant.options(**OWNER), "x")
        assert (await ledger.log.head()).last_sequence == 0
        parent = await ledger.enqueue(asks.options(max_attempts=1), "x")
        async with working(ledger, asks, returns):
            await parent.wait(timeout_s=LIMIT_S)
        error = (await parent.snapshot()).error
        assert error is not None
        assert "has the owner team:ops, and the run has none" in error.message
    with pytest.raises(TaskDefinitionError, match="cannot have an owner, since its batch has none"):
        async with connected() as ledger:
            await ledger.enqueue_many(asks, [{"text": "x"}], batch="b", on_end=counts_them.options(**TEAM))
    with pytest.raises(TaskDefinitionError, match="the owner of task hears takes its key from 'end'"):
        workflow(on_success=hears.options(owner="person:{end}"))


async def settled(ledger: Ledger, consumer: str) -> None:
    """Wait until nothing of a consumer waits, is held or was given back."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await find_consumer(ledger.inbox, ledger.names.ledger_stream, consumer)
            if found is not None and found.delivered.stream_sequence and not found.unsettled:
                return
            await asyncio.sleep(0.01)
