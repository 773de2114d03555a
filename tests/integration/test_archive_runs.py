"""An archive run comes by a run that is parked for months: it goes on as if nothing had happened, and is proven whole."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.archiving import unmoved
from tests.support.runs import end, fail, group, of_holder, start
from tests.support.working import Connect

from jobledger.audit.archive.archiver import Archiver
from jobledger.audit.archive.chain import open_archive
from jobledger.audit.archive.deps import archive_deps
from jobledger.audit.verify import verify
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import load, transact
from jobledger.ledger.model.commands import (
    Claim,
    Command,
    Complete,
    Dispatch,
    Enqueue,
    GiveSignal,
    Join,
    Pause,
)
from jobledger.ledger.model.events import Member, Order
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs import carried_parts
from jobledger.ledger.model.runs.orders import child_id
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.timers import wait_timer

pytestmark = pytest.mark.anyio

REF = JobRef(queue="orders", job_id="order-77")
CLAIM = Claim(worker="w1", lease_s=15.0)


async def do(ledger: Ledger, *commands: Command) -> Job:
    job: Job | None = (await load(ledger.log, REF)).job
    for command in commands:
        by_holder = of_holder(command, job)
        job = (await transact(ledger.log, REF, by_holder, lambda: ledger.stamp("w1"))).job
    assert job is not None
    return job


async def children(ledger: Ledger, *items: int) -> None:
    """Make children of the step `pages`, and let them run to their end."""
    run = (await load(ledger.log, REF)).job
    assert run is not None
    for item in items:
        ref = JobRef(queue="pages", job_id=child_id(REF.job_id, run.steps["pages"].number, item))
        order = Order(member=Member(queue=REF.queue, job=REF.job_id, step="pages", item=item))
        claimed = (
            await transact(ledger.log, ref, Enqueue(ref=ref, task="fetch", order=order), ledger.stamp),
            await transact(ledger.log, ref, CLAIM, ledger.stamp),
        )[1].job
        assert claimed is not None
        await transact(ledger.log, ref, Complete(epoch=claimed.claim_epoch), ledger.stamp)


async def archive(ledger: Ledger, folder: Path) -> Any:
    deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
    return await Archiver(ledger.log, folder, deps).run(ledger.clock.now())


@pytest.mark.parametrize("part_bytes", [carried_parts.PART_BYTES_MAX, 300])
async def test_a_parked_run_survives_an_archive_run(
    connected: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(carried_parts, "PART_BYTES_MAX", part_bytes)
    async with connected() as ledger:
        until = ledger.clock.now() + timedelta(days=90)
        wait = start("paid", kind="wait", target="paid", until=until)
        await do(
            ledger,
            Enqueue(ref=REF, task="order", order=Order(max_attempts=1, version="2")),
            CLAIM,
            *(end(f"s{number}", result=msgspec.Raw(b'"done"')) for number in range(20)),
            fail("late", retry_at=until),
            group(count=9, limit=3),
        )
        await children(ledger, 0, 1)
        before = await do(
            ledger,
            Join(step="pages", completed=((0, 1),)),
            GiveSignal(name="early", id="1", value=msgspec.Raw(b"7")),
            wait,
            Pause(epoch=0, steps=("paid", "pages"), until=until, undos=1),
        )
        done = await archive(ledger, tmp_path)
        # The run, and two children whose results it has yet to read.
        assert (done.jobs_carried, before.last_sequence < done.first_sequence) == (3, True)
        after = (await load(ledger.log, REF)).job
        assert after is not None
        assert unmoved(after) == unmoved(before)
        assert after.steps["pages"].opened == before.steps["pages"].opened == 0b11111

        # What the server publishes at that moment, handed over by hand.
        timer = wait_timer(after)
        assert (timer.asked_by, timer.due_at) == (before.wait_sequence, until)
        due = Dispatch(cause=timer.cause, asked_by=timer.asked_by, reason="brought forward")
        await children(ledger, 2, 3, 4)
        job = await do(ledger, due, CLAIM, end("after"), Join(step="pages", completed=((2, 4),)))
        assert (job.steps["after"].number, job.steps["pages"].ended) == (24, 0b11111)
        await archive(ledger, tmp_path)  # while it runs
        ended = await do(ledger, end("last"), Complete(epoch=0))
        assert (ended.state, len(ended.steps)) == (JobState.COMPLETED, 25)
        for log in (ledger.log, await open_archive(ledger.log, tmp_path)):
            report = await verify(log)
            assert report.sound, report.text()
