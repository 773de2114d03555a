"""Notes on jobs: kept in every state, shown wherever a job's events are, and without any effect on what becomes of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest
from tests.support.working import LIMIT_S, bury, types, working

from jobledger.admin.views import job_details
from jobledger.audit.verify import verify
from jobledger.ledger import (
    Context,
    InvalidInputError,
    JobNotFoundError,
    JobState,
    Ledger,
    Unique,
    sync,
    task,
)
from jobledger.ledger.server import EmbeddedServer
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio


@task(queue="noted", max_attempts=1)
async def report(page: int) -> int:
    return page


@task(queue="noted")
async def waits(ctx: Context) -> str:
    ledger = ctx.ledger
    me = await ledger.job(ctx.job_id)
    await ledger.note(me, "it runs", by="dana")  # the claim stays; only the chain is longer
    return "done"


async def test_a_note_is_kept_in_every_state_and_changes_none() -> None:
    ledger = MemoryLedger(report)
    jobs = {
        "scheduled": await ledger.enqueue(report.options(delay_s=60), 1),
        "held": await ledger.enqueue(report.options(limits=("api",)), 1),
        "queued": await ledger.enqueue(report, 1),
        "cancelled": await ledger.enqueue(report, 1),
        "dead_lettered": await ledger.enqueue(report, 1),
        "discarded": await ledger.enqueue(report, 1),
    }
    await jobs["cancelled"].cancel()
    await bury(ledger, jobs["dead_lettered"])
    await bury(ledger, jobs["discarded"])
    await ledger.discard(jobs["discarded"])
    for state, job in jobs.items():
        before = await job.snapshot()
        after = await ledger.note(job, f"seen while {state}", by="dana")
        assert (before.state.value, after.state) == (state, before.state)
        assert after.last_sequence > before.last_sequence
        assert after == msgspec.structs.replace(before, last_sequence=after.last_sequence)
        assert (await types(job))[-1] == "noted"
    shown = await job_details(ledger, await jobs["queued"].snapshot(), await jobs["queued"].history())
    assert (shown.events[-1]["text"], shown.events[-1]["by"]) == ("seen while queued", "dana")
    await ledger.run_pending()
    assert await jobs["queued"].state() is JobState.COMPLETED


async def test_only_a_text_that_can_be_read_is_a_note() -> None:
    ledger = MemoryLedger()
    job = await ledger.enqueue(report, 1)
    for text in ("", " \n", "x" * 4_001, "\ud800", 7):
        with pytest.raises(InvalidInputError, match="note"):
            await ledger.note(job, text)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(JobNotFoundError):
        await ledger.note("nobody", "seen")
    await ledger.note(job, "x" * 4_000)
    assert len(await job.history()) == 2


async def test_a_note_moves_neither_a_debounce_nor_an_overlapping_tick() -> None:
    ledger = MemoryLedger()
    first = await ledger.enqueue(report.options(debounce_s=60), 1)
    await ledger.note(first, "wait a little")
    again = await ledger.enqueue(report.options(debounce_s=60), 1)
    due_at = (await again.snapshot()).due_at
    assert (again.ref, due_at is not None and due_at >= ledger.clock.now() + timedelta(seconds=60)) == (
        first.ref,
        True,
    )
    await ledger.schedules.add("often", report, input={"page": 1}, every_s=60, overlap="skip")
    await ledger.advance(61)
    made = [stored async for stored in ledger.events(follow=False) if stored.event.job.startswith("often")]
    await ledger.note(made[0].event.job, "it has ended, and somebody looked")
    await ledger.advance(61)
    ticks = {stored.event.job async for stored in ledger.events(follow=False)}
    assert len([each for each in ticks if each.startswith("often")]) == 2


async def test_a_note_wakes_nobody_and_stands_in_nobodys_way(ledger: Ledger) -> None:
    async with working(ledger, report, waits):
        running = await ledger.enqueue(waits)
        assert await running.result(timeout_s=LIMIT_S) == "done"
        assert await types(running) == ["queued", "started", "noted", "completed"]
        ended = await ledger.enqueue(report, 1)
        await ended.wait(timeout_s=LIMIT_S)
        await asyncio.gather(*(ledger.note(ended, f"note {n}", by="dana") for n in range(5)))
        later = await ledger.enqueue(report.options(delay_s=0.3, unique=Unique()), 2)
        await ledger.note(later, "soon")
        assert await later.result(timeout_s=LIMIT_S) == 2
    assert (await types(ended)).count("noted") == 5
    assert (await verify(ledger.log)).violations_count == 0


def test_blocking_code_keeps_notes(nats_server: EmbeddedServer, environment: str) -> None:
    with sync.connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24) as ledger:
        job = ledger.enqueue(report, 1)
        assert ledger.note(job.id, "seen", by="dana").last_sequence > job.sequence
