"""How runs end and go on: the next run, who is told, how long one may be, and what its worker keeps meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from tests.support.runs import running
from tests.support.working import LIMIT_S, Connect, becomes, ended, types, until, working

from jobledger.audit.verify import verify
from jobledger.ledger import (
    Backoff,
    ConfigurationError,
    JobState,
    Ledger,
    Run,
    RunEnd,
    RunTooLongError,
    Signal,
    TaskDefinitionError,
    TaskRegistry,
    step,
    task,
    workflow,
)
from jobledger.ledger.model.chain import JobView
from jobledger.ledger.model.commands import DeadLetter
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.runs import passage as length
from jobledger.workers import Worker
from jobledger.workers.attempt.kept_chains import KeptChains

pytestmark = pytest.mark.anyio

CALLS: Counter[str] = Counter()
TOLD: list[RunEnd] = []
go_on = Signal("go_on", int)


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()
    TOLD.clear()


@step
async def count(number: int) -> int:
    CALLS[f"count {number}"] += 1
    return number


# Going on in a run of its own.


@workflow(queue="runs", version="2")
async def pages(run: Run, first: int, total: int = 0) -> int:
    total += await run.step(count, first)
    if first < 3:
        return run.again(first + 1, total=total)
    return total


async def test_a_run_ends_and_the_next_one_begins_as_one(ledger: Ledger) -> None:
    async with working(ledger, pages):
        job = await ledger.enqueue(pages.options(id="p", tenant="acme"), 1)
        assert await job.result(timeout_s=LIMIT_S) == 6  # of the last one
        assert (await ended(await ledger.job("p-r2"))).state is JobState.COMPLETED
        last = await ledger.job("p-r3", task=pages)
        assert await last.result(timeout_s=LIMIT_S) == 6
    found = await last.snapshot()
    assert (found.order.tenant, found.order.version, len(found.steps)) == ("acme", "2", 1)
    first, begun = (await job.history())[-1], (await (await ledger.job("p-r2")).history())[0]
    assert begun.stream_sequence == first.stream_sequence + 1
    assert begun.event.causation == "p"
    assert CALLS == {"count 1": 1, "count 2": 1, "count 3": 1}


async def test_a_run_does_not_go_on_under_an_id_that_is_taken(ledger: Ledger) -> None:
    await ledger.enqueue(pages.options(id="q-r2", queue="elsewhere", delay_s=60), 1)
    await ledger.enqueue(pages.options(id="p-r2", delay_s=60), 1)
    async with working(ledger, pages, queues=("runs",)):
        found = await ended(await ledger.enqueue(pages.options(id="p", max_attempts=1), 1))
    assert found.state is JobState.DEAD_LETTERED
    assert found.error is not None
    assert "job p-r2 exists already" in found.error.message


# Who is told.


@task(queue="told")
async def tell(end: RunEnd) -> None:
    TOLD.append(end)


@step
async def undo(number: int) -> None:
    CALLS[f"undo {number}"] += 1


@workflow(
    queue="runs",
    max_attempts=2,
    backoff=Backoff(base_s=0),
    on_success=tell,
    on_fail=tell.options(priority="high"),
)
async def calls_back(run: Run, how: str) -> str:
    run.on_failure(undo, await run.step(count, 1))
    if how == "fail":
        raise RuntimeError("no stock")
    if how == "wait":
        await run.wait(go_on)
    return "done"


def test_a_task_that_is_told_of_the_end_has_no_options_that_its_run_decides() -> None:
    with pytest.raises(
        TaskDefinitionError, match="task tell as on_fail cannot have delay_s: its run gives it"
    ):
        workflow(on_fail=tell.options(delay_s=5))


@workflow(queue="runs", on_success=tell)
async def returns_much(_run: Run) -> str:
    return "x" * 100_000


async def test_a_large_result_of_a_run_is_told_by_its_reference(ledger: Ledger) -> None:
    async with working(ledger, returns_much, tell):
        job = await ledger.enqueue(returns_much)
        assert len(await job.result(timeout_s=LIMIT_S)) == 100_000
        await until(lambda: bool(TOLD))
    (end,) = TOLD
    assert end.result is None
    assert end.result_ref is not None
    assert end.result_ref == (await job.snapshot()).result_ref


@pytest.mark.parametrize(
    ("how", "state", "error"),
    [
        ("finish", "completed", ""),
        ("fail", "dead_lettered", "RuntimeError: no stock"),
        ("wait", "cancelled", "changed my mind"),
    ],
)
async def test_somebody_is_told_once_how_a_run_ended(
    ledger: Ledger, how: str, state: str, error: str
) -> None:
    async with working(ledger, calls_back, tell):
        job = await ledger.enqueue(calls_back.options(id="r"), how)
        if how == "wait":
            await becomes(job, JobState.WAITING)
            await job.cancel(reason="changed my mind")
        assert (await ended(job)).state.value == state
        await until(lambda: bool(TOLD))
    result = "done" if how == "finish" else None
    end = RunEnd(id="r", queue="runs", task="calls_back", state=state, error=error, result=result)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    assert end == TOLD[0]
    assert len(TOLD) == 1
    assert {"count 1": 1, **({} if how == "finish" else {"undo 1": 1})} == CALLS
    told = await (await ledger.job("r-end-of-runs")).history()
    assert told[0].stream_sequence == (await job.history())[-1].stream_sequence + 1


@workflow(queue="runs", on_fail=tell)
async def waits(run: Run) -> int:
    return await run.wait(go_on)


@workflow(queue="runs")
async def asks(run: Run) -> int:
    return await run.call(waits)


async def test_somebody_is_told_of_ends_that_no_code_of_the_run_saw(ledger: Ledger) -> None:
    first, parked = [await ledger.enqueue(waits.options(id=each)) for each in ("first", "parked")]
    await first.cancel(reason="not wanted")  # before any worker
    given_up = await ledger.enqueue(waits.options(id="given-up"))
    await ledger.execute(given_up.ref, DeadLetter(reason="max_deliver"))
    async with working(ledger, waits, asks, tell):
        parent = await ledger.enqueue(asks.options(id="asks"))
        for each in (parked, parent):
            await becomes(each, JobState.WAITING)
        child = await ledger.job("asks-1-0", queue="runs")
        for each in (parked, child):
            await becomes(each, JobState.WAITING)
            await each.cancel(reason="changed my mind")
        await until(lambda: len(TOLD) == 4)
        await ended(parent)
    said = {end.id: (end.state, end.error) for end in TOLD}
    assert said == {
        "first": ("cancelled", "not wanted"),
        "given-up": ("dead_lettered", "max_deliver"),
        "parked": ("cancelled", "changed my mind"),
        "asks-1-0": ("cancelled", "changed my mind"),
    }
    for run_id in said:
        assert (await ledger.job(f"{run_id}-end-of-runs")).queue == "told"


async def test_a_run_that_fails_again_after_a_requeue_tells_nobody_twice(ledger: Ledger) -> None:
    async with working(ledger, calls_back, tell):
        job = await ledger.enqueue(calls_back.options(id="again"), "fail")
        await ended(job)
        await until(lambda: bool(TOLD))
        await ledger.requeue(job)
        await until(lambda: CALLS["undo 1"] == 1)
        async with asyncio.timeout(LIMIT_S):
            while (await types(job)).count("dead_lettered") < 2:
                await asyncio.sleep(0.01)
    error = (await job.snapshot()).error
    assert error is not None
    assert error.type == "RuntimeError"  # not that the job exists
    assert [end.id for end in TOLD] == ["again"]


# Deadlines.


@step
async def hangs() -> None:
    CALLS["hangs"] += 1
    await asyncio.sleep(60)


@workflow(queue="runs", deadline_s=0.8, on_fail=tell)
async def bounded(run: Run, how: str) -> None:
    run.on_failure(undo, await run.step(count, 1))
    if how == "runs":
        await run.step(hangs)
    if how == "asks":
        await run.call(bounded, "waits")
    if how != "ends":
        await run.wait(go_on)


async def test_a_run_is_cancelled_at_its_deadline_whatever_it_does(ledger: Ledger) -> None:
    ways = ("ends", "waits", "runs", "asks", "idle")
    async with working(ledger, bounded, tell):
        runs = {
            how: await ledger.enqueue(bounded.options(id=how, queue="idle" if how == "idle" else "runs"), how)
            for how in ways
        }
        found = {how: await ended(job) for how, job in runs.items()}
        await until(lambda: len(TOLD) == 4 + 1)  # and of the child
    assert {how: (job.state.value, job.cancel_reason) for how, job in found.items()} == {
        "ends": ("completed", ""),
        **dict.fromkeys(ways[1:], ("cancelled", "deadline")),
    }
    assert (CALLS["hangs"], CALLS["undo 1"]) == (1, 4)  # nothing was done yet in the queue that nobody serves
    assert all(
        job.finished_at - job.created_at >= timedelta(seconds=0.8)
        for how, job in found.items()
        if how != "ends" and job.finished_at
    )
    assert (await types(runs["waits"]))[:3] == ["scheduled", "queued", "started"]
    assert (await verify(ledger.log)).violations == ()
    with pytest.raises(ConfigurationError, match="deadline_s"):
        workflow(deadline_s=-1)


# How long one may be.


@workflow(queue="runs", max_attempts=1)
async def endless(run: Run) -> None:
    number = 0
    while True:
        number += await run.step(count, 1)
        CALLS["long"] += run.long


async def test_a_run_that_becomes_too_long_is_told_early_and_ends(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length, "EVENTS_WARN", 15)
    monkeypatch.setattr(length, "EVENTS_MAX", 30)
    async with working(ledger, endless):
        job = await ended(await ledger.enqueue(endless))
    assert (job.state, job.dead_reason) == (JobState.DEAD_LETTERED, "rejected")
    assert job.error is not None
    assert job.error.type == RunTooLongError.__name__
    assert "`return run.again(...)`" in job.error.message
    assert 10 < CALLS["long"] < CALLS["count 1"] < 30


# What its worker keeps.


@workflow(queue="runs")
async def often(run: Run, times: int) -> int:
    total = 0
    for _ in range(times):
        total += await run.wait(go_on)
    return total


async def test_a_parked_run_goes_on_without_its_chain_being_read(connected: Connect) -> None:
    async with connected() as ledger, connected() as client:
        worker = Worker(ledger, TaskRegistry([often]))
        kept = worker._kept
        reads: list[str] = []
        read_chain = ledger.log.read_chain

        async def spy(chain: str) -> object:
            reads.append(chain)
            return await read_chain(chain)

        ledger.log.read_chain = spy  # type: ignore[method-assign, assignment] # pyright: ignore[reportAttributeAccessIssue]
        running = asyncio.create_task(worker.run())
        try:
            await worker.taking.wait()  # its lanes are made
            job = await client.enqueue(often.options(id="o"), 3)
            for number in range(3):
                # What is kept may be of the pause before this one, until its signal was taken.
                await until(lambda number=number: kept.hits == number and len(kept) > 0)  # type: ignore[misc]
                await client.signal(job, go_on, number)
            assert await job.result(timeout_s=LIMIT_S) == 3
        finally:
            worker.stop()
            await running
    assert kept.hits == 3
    assert not [chain for chain in reads if ".o." in chain]


async def test_a_kept_chain_that_somebody_wrote_to_meanwhile_is_not_used(connected: Connect) -> None:
    async with connected() as ledger, connected() as other:
        async with working(ledger, often, concurrency=1) as worker:
            job = await ledger.enqueue(often, 2)
            await until(lambda: len(worker._kept) == 1)
            stale = worker._kept._drop(job.ref)
        async with working(other, often):  # the first one's worker does not hear of what it does
            await other.signal(job, go_on, 1)
            await becomes(job, JobState.WAITING)
        assert stale is not None
        await ledger.signal(job, go_on, 2)
        async with working(ledger, often) as third:
            third._kept.keep(job.ref, stale)
            assert len(third._kept) == 1
            assert await job.result(timeout_s=LIMIT_S) == 3
            assert third._kept.hits == 0


def test_kept_chains_have_a_bound() -> None:
    kept, view = KeptChains(bytes_max=10_000), JobView(running().run)
    first, *others = (JobRef(queue="runs", job_id=f"r-{number}") for number in range(3))
    for ref in (first, *others):
        kept.keep(ref, view)
    assert len(kept) == 2
    assert kept._drop(first) is None
    assert [kept._drop(ref) for ref in others] == [view, view]


@task(queue="kids")
async def never() -> str:
    await asyncio.sleep(60)
    return "never"


@workflow(queue="runs")
async def races(run: Run) -> int:
    async def slow() -> int:
        return len(await run.call(never))

    async def quick() -> int:
        return await run.wait(go_on)

    return await run.race(slow, quick)


async def test_the_children_of_a_branch_that_lost_are_cancelled(ledger: Ledger) -> None:
    async with working(ledger, races, never):
        job = await ledger.enqueue(races.options(id="race"))
        await becomes(job, JobState.WAITING)
        await ledger.signal(job, go_on, 7)
        assert await job.result(timeout_s=LIMIT_S) == 7
        child = await ended(await ledger.job("race-1-0-of-runs"))
    assert child.state is JobState.CANCELLED


# Undo, wherever the run was.


@step
async def charge_slowly() -> str:
    CALLS["charge"] += 1
    return "charged"


@step(max_attempts=2, backoff=Backoff(base_s=0))
async def refund(charge: str) -> None:
    CALLS["refund"] += 1
    if CALLS["refund"] == 1:
        await asyncio.sleep(30)  # its worker ends meanwhile


@workflow(queue="runs", max_attempts=2)
async def cut_off(run: Run) -> None:
    run.on_failure(refund, await run.step(charge_slowly))
    await asyncio.sleep(30)


async def test_what_is_recorded_is_undone_although_the_code_was_cut_off_before_it_said_how(
    ledger: Ledger,
) -> None:
    @workflow(queue="runs", name="late")
    async def late(run: Run) -> None:
        charge = await run.step(charge_slowly)
        CALLS["passes"] += 1
        if CALLS["passes"] == 1:
            await asyncio.sleep(30)  # cancelled before it registered anything
        run.on_failure(undo, 1)
        await run.step(count, len(charge))

    async with working(ledger, late):
        job = await ledger.enqueue(late)
        await until(lambda: CALLS["passes"] == 1)
        await job.cancel(reason="no longer wanted")
        found = await ended(job)
    assert (found.state, found.cancel_reason) == (JobState.CANCELLED, "no longer wanted")
    assert CALLS == {"charge": 1, "passes": 2, "undo 1": 1}


async def test_undos_that_were_cut_off_are_gone_on_with_by_another_worker(connected: Connect) -> None:
    async with connected() as ledger, working(ledger, cut_off, grace_s=0):
        job = await ledger.enqueue(cut_off.options(timeout_s=0.3, max_attempts=1))
        await until(lambda: CALLS["refund"] == 1)
    async with connected() as other, working(other, cut_off):
        found = await ended(await other.job(job.id))
    assert found.state is JobState.DEAD_LETTERED
    assert found.error is not None
    assert found.error.kind == "timeout"
    assert CALLS["charge"] == 1
    assert CALLS["refund"] == 2
