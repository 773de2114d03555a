"""A ledger that is nearly full takes no new jobs, and everything that it has still comes to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.roles import authorization, printed, user
from tests.support.schedules import declare, ticked_jobs
from tests.support.secured import secured
from tests.support.working import LIMIT_S, Connect, ended, until, working

from jobledger.admin.ledger_size import resize_ledger
from jobledger.audit.archive import Archiver, archive_deps
from jobledger.ledger import (
    Context,
    JobHandle,
    JobState,
    Ledger,
    LedgerFullError,
    LedgerThrottledError,
    connect,
    task,
)
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.throttle import CLAIM_UP_TO, ENQUEUE_UP_TO, Load, load_of, needed_by_job, waiting_jobs
from jobledger.projections import counting

pytestmark = pytest.mark.anyio
SMALL = 128 << 10
GO = asyncio.Event()


@task(queue="work")
async def work(text: str) -> int:
    return len(text)


@task(queue="work")
async def enqueues(context: Context) -> str:
    await GO.wait()
    child = await context.ledger.enqueue(work.options(queue="later"), text="x")
    return child.id


@task(queue="work")
async def large() -> str:
    return "x" * 50_000


@task(queue="work")
async def waits() -> str:
    await GO.wait()
    return "done"


@pytest.fixture(autouse=True)
def go() -> None:
    GO.set()


@pytest.fixture
async def small(connected: Connect) -> AsyncIterator[Ledger]:
    async with connected(ledger_bytes_max=SMALL, room_timeout_s=0) as ledger:
        yield ledger


async def fill(ledger: Ledger, *, up_to: float) -> int:
    """Enqueue jobs that nobody takes until a share of the ledger is stored, past what clients keep free."""
    added = 0
    passes = ledger.throttle.passes
    ledger.throttle.passes = lambda size: True  # type: ignore[method-assign]
    while (await ledger.log.head()).stored_bytes < up_to * SMALL:
        await ledger.enqueue(work.options(queue="elsewhere"), text="x" * 300)
        added += 1
    ledger.throttle.passes = passes  # type: ignore[method-assign]
    return added


def _unheard(*_said: object) -> None:
    """Take what an archive run tells of its progress."""


async def load(ledger: Ledger) -> Load:
    waiting = await waiting_jobs(ledger.inbox, ledger.names)
    return load_of(await ledger.log.head(), waiting, await needed_by_job(ledger.log))


async def test_new_jobs_are_refused_at_once_and_many_wait_for_room(connected: Connect) -> None:
    async with connected(ledger_bytes_max=SMALL) as ledger:
        await fill(ledger, up_to=0.91)
        since = asyncio.get_running_loop().time()
        with pytest.raises(
            LedgerThrottledError, match=r"9[12]% of its room is taken.*`jobledger ledger resize SIZE`"
        ):
            await ledger.enqueue(work, text="no")
        assert asyncio.get_running_loop().time() - since < 1.0
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            many = group.create_task(ledger.enqueue_many(work, ({"text": "x"} for _ in range(10))))
            await until(lambda: not ledger.throttle.passes(0))
            assert not many.done()
            await resize_ledger(ledger, 16 * SMALL)
        assert many.result().created == 10
        assert (await ledger.enqueue(work, text="yes")).created


async def test_many_that_wait_in_vain_say_how_many_were_enqueued(small: Ledger) -> None:
    with pytest.raises(LedgerThrottledError, match=r"input (\d+): .* \(enqueued before it: \1\)"):
        await small.enqueue_many(work, ({"text": "x" * 300} for _ in range(10_000)))
    # No worker ever ran: each event is of a job that waits.
    assert ENQUEUE_UP_TO - 0.05 < (await load(small)).share < ENQUEUE_UP_TO + 0.05


async def test_a_burst_of_callers_fills_no_more_than_one_caller_does(connected: Connect) -> None:
    async with connected(ledger_bytes_max=8 * SMALL) as ledger:
        calls = [ledger.enqueue(work, text="x" * 300) for _ in range(1_500)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in answers} == {JobHandle, LedgerThrottledError}
        assert (await load(ledger)).share < ENQUEUE_UP_TO + 0.05


async def test_jobs_that_enqueue_go_on_in_a_ledger_that_takes_no_others(connected: Connect) -> None:
    """They would hold all slots and wait for room that they take themselves: their own bytes are all that counts."""
    async with connected(ledger_bytes_max=4 * SMALL, room_timeout_s=5.0) as ledger:
        with contextlib.suppress(LedgerThrottledError):
            while True:
                await ledger.enqueue(enqueues)
        assert (await ledger.log.head()).stored_bytes < ENQUEUE_UP_TO / 2 * 4 * SMALL
        async with working(ledger, enqueues, concurrency=4), asyncio.timeout(LIMIT_S):
            while (await ledger.log.head()).stored_bytes < ENQUEUE_UP_TO * 4 * SMALL:
                await asyncio.sleep(0.02)
            await resize_ledger(ledger, 16 * SMALL)  # for the rest of their children
            while await waiting_jobs(ledger.inbox, ledger.names):
                await asyncio.sleep(0.02)
        assert not [each async for each in ledger.events(types=["failed"], follow=False)]


async def test_one_large_result_says_little_of_what_the_next_jobs_need(connected: Connect) -> None:
    async with connected(ledger_bytes_max=32 * SMALL) as ledger:
        async with working(ledger, work, large):
            jobs = [await ledger.enqueue(work, text=str(number)) for number in range(100)]
            await ended(jobs[-1])
            await ended(await ledger.enqueue(large))
        for number in range(200):
            assert (await ledger.enqueue(work.options(queue="elsewhere"), text=str(number))).created


async def test_an_id_that_has_a_job_gives_that_job_also_where_no_new_one_is_taken(small: Ledger) -> None:
    first = await small.enqueue(work.options(id="first"), text="x")
    await fill(small, up_to=0.91)
    await until(lambda: not small.throttle.passes(0))
    again = await small.enqueue(work.options(id="first"), text="x")
    assert (again.id, again.created) == (first.id, False)
    with pytest.raises(LedgerThrottledError):
        await small.enqueue(work.options(id="second"), text="x")


async def test_everything_that_was_enqueued_ends_and_an_archive_run_has_room(
    connected: Connect, tmp_path: Path
) -> None:
    """Three clients enqueue as fast as they can, one worker is slower: none of them meets a full ledger."""
    full, added = 0, 0

    async def enqueue_for(ledger: Ledger, end: float) -> None:
        nonlocal full, added
        while asyncio.get_running_loop().time() < end:
            try:
                await ledger.enqueue(work, text="x" * 300)
                added += 1
            except LedgerThrottledError:
                await asyncio.sleep(0.02)
            except LedgerFullError:
                full += 1

    async with contextlib.AsyncExitStack() as stack:
        ledgers = [await stack.enter_async_context(connected(ledger_bytes_max=8 * SMALL)) for _ in range(4)]
        end = asyncio.get_running_loop().time() + 1.2
        async with working(ledgers[0], work, concurrency=4):
            await asyncio.gather(*(enqueue_for(each, end) for each in ledgers[1:] for _ in range(4)))
            async with asyncio.timeout(LIMIT_S):
                while await waiting_jobs(ledgers[0].inbox, ledgers[0].names):
                    await asyncio.sleep(0.05)
        assert (full, added > 100) == (0, True)
        ends = [each async for each in ledgers[0].events(types=["completed"], follow=False)]
        assert len(ends) == added
        assert (await load(ledgers[0])).share < 1.0
        deps = archive_deps(
            ledgers[0],
            by="ann",
            on_progress=_unheard,
            count=counting(ledgers[0].log, tmp_path / "jobs.db"),
        )
        done = await Archiver(ledgers[0].log, tmp_path / "archive", deps).run(before=datetime.now(UTC))
        assert done is not None
        assert (await load(ledgers[0])).share < 0.1
        assert (await ledgers[1].enqueue(work, text="again")).created


async def test_a_worker_starts_nothing_in_the_last_room_and_ends_what_runs(small: Ledger) -> None:
    GO.clear()
    running = await small.enqueue(waits)
    async with working(small, work, waits):
        await until_state(running.id, small, JobState.RUNNING)
        await fill(small, up_to=CLAIM_UP_TO + 0.005)
        await until(small.throttle.holds_claims)
        unthrottled_passes = small.throttle.passes
        small.throttle.passes = lambda size: True  # type: ignore[method-assign]
        waiting = await small.enqueue(work, text="x")
        small.throttle.passes = unthrottled_passes  # type: ignore[method-assign]
        GO.set()
        assert (await ended(running)).state is JobState.COMPLETED
        assert await waiting.state() is JobState.QUEUED
        await resize_ledger(small, 16 * SMALL)
        assert (await ended(waiting)).state is JobState.COMPLETED


async def test_a_job_that_enqueues_waits_for_room_with_its_attempt(connected: Connect) -> None:
    async with connected(ledger_bytes_max=SMALL) as ledger:
        parent = await ledger.enqueue(enqueues)
        GO.clear()
        async with working(ledger, enqueues):
            await until_state(parent.id, ledger, JobState.RUNNING)
            await fill(ledger, up_to=CLAIM_UP_TO + 0.005)
            await until(ledger.throttle.holds_claims)
            GO.set()
            await until(lambda: not ledger.throttle.passes(0))
            assert await parent.state() is JobState.RUNNING
            await resize_ledger(ledger, 16 * SMALL)
            child = await parent.result(timeout_s=LIMIT_S)
        assert (await ledger.job(child)).ref.queue == "later"
        assert len((await parent.snapshot()).attempts) == 1


async def test_a_process_that_claims_counts_waiting_jobs_before_it_enqueues(small: Ledger) -> None:
    """Claims look at the stored bytes alone, and that look is no answer for a new job."""
    await small.pause_queue("elsewhere", by="ann")
    async with working(small, work, queues=("elsewhere",)):
        await fill(small, up_to=0.6)  # none ever ran, and all of them wait
        small.throttle.holds_claims()
        await until(lambda: small.throttle._load.stored_bytes > 0.6 * SMALL)
    with pytest.raises(LedgerThrottledError):
        await small.enqueue(work, text="x")


async def test_a_tick_is_put_off_until_there_is_room_and_made_then(connected: Connect) -> None:
    asked = asyncio.Event()
    async with connected(ledger_bytes_max=SMALL) as ledger:
        await fill(ledger, up_to=0.91)
        require = ledger.throttle.require

        async def heard(size: int, *, waits: bool = False, of_job: bool = False) -> None:
            asked.set()
            await require(size, waits=waits, of_job=of_job)

        ledger.throttle.require = heard  # type: ignore[method-assign]
        async with working(ledger, work, queues=("cron",)):
            await declare(ledger)  # each second
            await asyncio.wait_for(asked.wait(), LIMIT_S)
            assert not await ticked_jobs(ledger)
            await resize_ledger(ledger, 16 * SMALL)
            async with asyncio.timeout(LIMIT_S):
                while not await ticked_jobs(ledger):
                    await asyncio.sleep(0.05)


async def test_a_delivery_that_would_make_jobs_is_refused_and_taken_later(small: Ledger) -> None:
    rule = RouteRule(name="all", task="work", queue="hooks", input={"text": "/text"})
    await small.routes.set("shop", RouteDefinition(scheme="internal", rules=(rule,)))
    await fill(small, up_to=0.91)
    with pytest.raises(LedgerThrottledError):
        await small.emit("shop", {"text": "x"}, id="a")
    await resize_ledger(small, 16 * SMALL)
    assert not (await small.emit("shop", {"text": "x"}, id="a")).repeated


async def test_who_may_not_ask_how_many_wait_goes_by_what_is_stored(
    tmp_path: Path, nats_server_binary: str
) -> None:
    rights = printed("producer", "--queue", "elsewhere", "--of", "app")
    before = "\n".join(line for line in rights.splitlines() if "CONSUMER.LIST" not in line)
    assert before != rights
    with secured(nats_server_binary, tmp_path, authorization(user("app", before))) as server:
        async with connect(server.url(), user="all", password="p", ledger_bytes_max=SMALL) as made:
            await fill(made, up_to=0.7)
        async with connect(server.url(), user="app", password="p", create=False) as ledger:
            assert (await ledger.enqueue(work.options(queue="elsewhere"), text="yes")).created
            await fill(ledger, up_to=0.91)
            with pytest.raises(LedgerThrottledError):
                await ledger.enqueue(work.options(queue="elsewhere"), text="no")


async def until_state(job: str, ledger: Ledger, state: JobState) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await (await ledger.job(job)).state()) is not state:
            await asyncio.sleep(0.01)
