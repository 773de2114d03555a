"""An archive run leaves what runs have yet to read: steps, and the ends of children until their step's end is recorded."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.groups import KEY, begin
from tests.support.stranded import reacting
from tests.support.working import LIMIT_S, Connect, becomes, working

from jobledger.audit.archive import Archiver, Done, archive_deps, open_archive
from jobledger.audit.errors import ArchiveRefusedError
from jobledger.audit.verify import verify
from jobledger.ledger import JobHandle, JobState, Ledger, Run, step, task, workflow
from jobledger.ledger.children import child_ref
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.clock import SYSTEM_CLOCK
from jobledger.ledger.model.commands import CancelJob, Claim, Complete
from jobledger.ledger.model.events import Carried, ChildOrder
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import items_of
from jobledger.ledger.timers import wait_timer
from jobledger.workers.reactors.children.creation import ChildOpener
from jobledger.workers.reactors.children.reactor import ChildrenReactor

pytestmark = pytest.mark.anyio

LARGE = 3  # the item whose result does not fit into an event
LAST = 11
GATE = asyncio.Event()


@task(queue="kids", max_attempts=1)
async def page(number: int) -> str:
    if number == LAST:
        await GATE.wait()
    return "x" * 100_000 if number == LARGE else f"page {number}"


@workflow(queue="runs")
async def collects(run: Run) -> list[str]:
    found = await run.map_settled(page, range(LAST + 1), name=KEY)
    return [each.error or f"{len(each.value())}: {each.value()[:8]}" for each in found]


WAIT = timedelta(days=90)
CALLS: list[str] = []


class LaterClock:
    """The time of a worker that lives when the wait is over."""

    def now(self) -> datetime:
        return SYSTEM_CLOCK.now() + WAIT + timedelta(seconds=30)

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()


@step
async def charge(order: int) -> str:
    CALLS.append("charge")
    return f"charge {order}"


@step
async def ship(charged: str) -> str:
    CALLS.append("ship")
    return f"{charged}, shipped"


@workflow(queue="runs")
async def waits_long(run: Run) -> list[str]:
    charged = await run.step(charge, 77)
    pages = await run.map(page, range(LAST))
    await run.sleep(WAIT.total_seconds())
    return [await run.step(ship, charged), pages[0]]


def archiver(ledger: Ledger, folder: Path) -> Archiver:
    return Archiver(
        ledger.log, folder, archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
    )


async def archive(ledger: Ledger, folder: Path) -> Done:
    """Archive all that there is, once nobody has events to read that would go away."""
    deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
    async with asyncio.timeout(LIMIT_S):
        while await deps.unread((await ledger.log.head()).last_sequence):
            await asyncio.sleep(0.02)
    return await archiver(ledger, folder).run(ledger.clock.now())


async def check(ledger: Ledger, folder: Path) -> None:
    for log in (ledger.log, await open_archive(ledger.log, folder)):
        report = await verify(log)
        assert report.sound, report.text()


async def counted(run: JobHandle[Any], ends: int) -> Job:
    """Wait until a run is parked and has counted so many ends of its children."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            job = await run.snapshot()
            if job.state is JobState.WAITING and len(items_of(job.steps[KEY].ended)) == ends:
                return job
            await asyncio.sleep(0.02)


async def test_a_run_reads_the_results_of_children_that_ended_before_archive_runs(
    connected: Connect, tmp_path: Path
) -> None:
    GATE.clear()
    async with connected() as ledger, connected() as other:
        async with working(other, collects, page, concurrency=4):
            run = await ledger.enqueue(collects.options(id="long"))
            job = await counted(run, LAST)
            children = [child_ref(run.ref, job.steps[KEY], item) for item in range(LAST + 1)]
            first = await archive(ledger, tmp_path)
            assert (first.jobs_carried, first.jobs_archived) == (len(children) + 1, 0)
            again = await archive(ledger, tmp_path)  # takes away what the first one said
            assert (again.jobs_carried, again.jobs_archived) == (len(children) + 1, 0)
            kept = await ledger.log.read_chain(ledger.names.chain(children[LARGE]))
            assert [type(each.event) for each in kept] == [Carried]
            await check(ledger, tmp_path)
            GATE.set()
            found = await run.result(timeout_s=LIMIT_S)
        assert found[0] == "6: page 0"
        assert found[LARGE] == "100000: xxxxxxxx"
        assert found[LAST] == "7: page 11"
        assert len(found) == LAST + 1
        last = await archive(ledger, tmp_path)
        assert last.jobs_carried == 0
        assert not any([(await load(ledger.log, child)).job for child in children])
        await check(ledger, tmp_path)


async def test_the_end_of_a_child_that_was_cancelled_is_read_as_well(
    connected: Connect, tmp_path: Path
) -> None:
    GATE.clear()
    async with connected() as ledger, connected() as other:
        async with working(other, collects, concurrency=4):  # nobody runs the children
            run = await ledger.enqueue(collects.options(id="cut"))
            job = await counted(run, 0)
            children = [child_ref(run.ref, job.steps[KEY], item) for item in range(LAST + 1)]
            await ledger.execute(children[5], CancelJob(reason="not this one"))
            await counted(run, 1)
            assert (await archive(ledger, tmp_path)).jobs_archived == 0
            GATE.set()
            async with working(ledger, page, concurrency=4):
                found = await run.result(timeout_s=LIMIT_S)
        assert found[5] == "it was cancelled: not this one"
        assert found[4] == "6: page 4"
        await check(ledger, tmp_path)


async def test_an_end_that_no_run_has_counted_is_not_taken_away(connected: Connect, tmp_path: Path) -> None:
    """There is no consumer yet that could be behind: no worker has run since the child ended."""
    async with connected() as ledger:
        run = await begin(ledger, ChildOrder(task=page.name, queue="kids", count=1))
        view = await load(ledger.log, run.ref)
        assert view.job is not None
        await ChildOpener(ledger).open(run.ref, view, KEY, 0b1, again=False)
        child = child_ref(run.ref, view.job.steps[KEY], 0)
        claimed = await ledger.execute(child, Claim(worker="w", lease_s=15))
        await ledger.execute(child, Complete(epoch=claimed.claim_epoch))
        before = ledger.clock.now()
        for forced in (False, True):
            with pytest.raises(ArchiveRefusedError, match=r"has not counted yet that 1 .* start a worker"):
                await archiver(ledger, tmp_path).run(before, force=forced)
        assert (await ledger.log.head()).first_sequence == 1
        async with reacting(ChildrenReactor(ledger), ledger=ledger):
            await becomes(run, JobState.QUEUED)
        done = await archiver(ledger, tmp_path).run(before, force=True)
        assert (done.jobs_carried, done.jobs_archived) == (2, 0)
        await check(ledger, tmp_path)


async def test_a_run_that_waits_for_ninety_days_finishes_after_an_archive_run(
    connected: Connect, tmp_path: Path
) -> None:
    CALLS.clear()
    async with connected() as ledger:
        async with connected() as other, working(other, waits_long, page, concurrency=4):
            run = await ledger.enqueue(waits_long.options(id="patient"))
            async with asyncio.timeout(LIMIT_S):
                while (job := await run.snapshot()).awaited != ("sleep",):
                    await asyncio.sleep(0.02)
            done = await archive(ledger, tmp_path)
            assert (done.jobs_carried, done.jobs_archived) == (1, LAST)
            assert (await ledger.log.head()).first_sequence > job.last_sequence
        timer = wait_timer((await load(ledger.log, run.ref)).job or job)
        assert timer.asked_by == job.wait_sequence
        # What the server publishes ninety days later, with a worker that lives then.
        subject = ledger.names.timer_due(timer.chain, timer.asked_by)
        async with connected(clock=LaterClock()) as later, working(later, waits_long, page):
            await ledger.connection.publish(subject, msgspec.json.encode(timer))
            assert await run.result(timeout_s=LIMIT_S) == ["charge 77, shipped", "page 0"]
        assert CALLS == ["charge", "ship"]
        await check(ledger, tmp_path)
