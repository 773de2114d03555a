"""Reruns on a real server: what was recorded before a step is copied and proven, and the run itself stays as it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.forgery import Line, copied, relinked, rewritten
from tests.support.working import LIMIT_S, Connect, ended, working

from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.export import verify_export, write_export
from jobledger.audit.verify import verify
from jobledger.ledger import (
    Backoff,
    ChildFailedError,
    InvalidInputError,
    JobHandle,
    JobState,
    Ledger,
    RefusedError,
    Run,
    Signal,
    StepFailedError,
    step,
    task,
    workflow,
)
from jobledger.ledger.model.commands import Claim, CompleteStep, Interrupt
from jobledger.ledger.model.events import CopiedEnd, StepCompleted, StepFailed
from jobledger.ledger.reruns.plans import plan_rerun

pytestmark = pytest.mark.anyio

CALLS: Counter[str] = Counter()
LARGE = "x" * 100_000
IS_MENDED = asyncio.Event()

go_on = Signal("go_on", str)


@task(queue="kids", max_attempts=1)
async def page(number: int) -> str:
    CALLS["page"] += 1
    if number > 2:
        raise ValueError("no such page")
    return f"page {number}"


@step
async def reserve(order: str) -> str:
    CALLS["reserve"] += 1
    return f"{order} {LARGE}"


@step(max_attempts=1)
async def broken() -> None:
    CALLS["broken"] += 1
    raise ValueError("it never works")


@step(max_attempts=1)
async def charge(reserved: str, at: str) -> str:
    CALLS["charge"] += 1
    if not IS_MENDED.is_set():
        raise RuntimeError("the bank is closed")
    return f"charged {reserved[:8]} at {at}"


@step
async def quick() -> str:
    CALLS["quick"] += 1
    return "quick"


@workflow(name="order", queue="runs", max_attempts=1)
async def order(run: Run, order: str, pages: int = 2) -> list[Any]:
    reserved = await run.step(reserve, order)
    found = await run.map(page, range(pages))
    at = await run.wait(go_on)
    try:
        await run.step(broken)
    except StepFailedError:
        CALLS["caught"] += 1
    await run.gather(lambda: run.step(quick))
    number = await run.random()
    charged = await run.step(charge, reserved, at)
    return [run.id, charged, found, number]


@pytest.fixture(autouse=True)
def _anew() -> None:
    CALLS.clear()
    IS_MENDED.clear()


async def failed(ledger: Ledger, job_id: str = "order-77") -> JobHandle[Any]:
    """Run to the dead letter that the closed bank makes of it."""
    run = await ledger.enqueue(order.options(id=job_id), "ord-77")
    await ledger.signal(run, go_on, "noon")
    assert (await ended(run)).state is JobState.DEAD_LETTERED
    return run


async def check(ledger: Ledger) -> int:
    report = await verify(ledger.log)
    assert report.sound, report.text()
    return report.copies


async def test_a_rerun_copies_what_was_recorded_before_a_step_and_does_the_rest(ledger: Ledger) -> None:
    async with working(ledger, order, page, concurrency=4):
        source = await failed(ledger)
        before = [stored.data for stored in await source.history()]
        calls = dict(CALLS)
        IS_MENDED.set()
        again = await ledger.rerun(source, from_step="charge", task=order, id="order-77-again", by="alice")
        assert again.created
        assert (await again.result(timeout_s=LIMIT_S))[:3] == [
            "order-77-again",
            "charged ord-77 x at noon",
            ["page 0", "page 1"],
        ]
    assert [stored.data for stored in await source.history()] == before  # and it stays as it was
    # What was copied was not executed again, nor were its children: only the function passed by the failed step.
    assert dict(CALLS) == {**calls, "charge": calls["charge"] + 1, "caught": calls["caught"] + 1}
    own, copies = await again.history(), dict[str, CopiedEnd]()
    first, run = own[0].event, await again.snapshot()
    assert (first.by, run.order.member, run.order.rerun_of and run.order.rerun_of.steps) == ("alice", None, 6)
    of_source = {stored.stream_sequence: stored for stored in await source.history()}
    for stored in own:
        event = stored.event
        if isinstance(event, StepCompleted | StepFailed) and event.copied is not None:
            copies[event.step] = event.copied
            known = of_source[event.copied.sequence]
            assert (known.event.__class__, known.hash) == (event.__class__, event.copied.sha256)
            assert getattr(known.event, "result", None) == getattr(event, "result", None)
    assert list(copies) == ["reserve", "page", "go_on", "broken", "branch/quick", "random"]
    assert list(run.steps) == [*copies, "charge"]
    assert await check(ledger) == 6


async def test_a_rerun_is_made_once_and_an_id_that_another_job_has_is_refused(ledger: Ledger) -> None:
    async with working(ledger, order, page, concurrency=4):
        source = await failed(ledger)
    first = await ledger.rerun("order-77", from_step="charge", id="again")
    second = await ledger.rerun(source, from_step="charge", id="again")
    assert (first.created, second.created, first.sequence) == (True, False, second.sequence)
    with pytest.raises(InvalidInputError, match="exists and is no rerun of order-77 from 'go_on'"):
        await ledger.rerun(source, from_step="go_on", id="again")
    with pytest.raises(InvalidInputError, match="exists and is no rerun"):
        await ledger.rerun(source, from_step="charge", id="order-77")


async def test_a_new_input_changes_what_is_executed_and_not_what_is_copied(ledger: Ledger) -> None:
    async with working(ledger, order, page, concurrency=4):
        source = await failed(ledger)
        IS_MENDED.set()
        with pytest.raises(InvalidInputError, match="pages"):
            await ledger.rerun(source, from_step="page", input={"order": "x", "pages": "many"}, task=order)
        again = await ledger.rerun(source, from_step="page", input={"order": "x", "pages": 1}, task=order)
        await ledger.signal(again, go_on, "one")  # the source's was the source's
        _, charged, found, _ = await again.result(timeout_s=LIMIT_S)
        assert (charged, found) == ("charged ord-77 x at one", ["page 0"])
        assert (CALLS["reserve"], CALLS["page"]) == (1, 3)
    assert await check(ledger) == 1


async def test_a_rerun_takes_its_source_as_it_was_at_a_moment(ledger: Ledger) -> None:
    async with working(ledger, order, page, concurrency=4):
        source = await failed(ledger)
    history = await source.history()
    at = next(stored.stored_at for stored in history if getattr(stored.event, "step", "") == "page")
    plan = await plan_rerun(ledger, source.ref, from_step="page", at=at)
    assert ([each.key for each in plan.copied], plan.source.state) == (["reserve"], JobState.RUNNING)
    assert plan.rerun_of.sequence < history[-1].stream_sequence
    with pytest.raises(InvalidInputError, match=r"recorded no step 'charge'.*`jobledger jobs show order-77`"):
        await plan_rerun(ledger, source.ref, from_step="charge", at=at)
    with pytest.raises(InvalidInputError, match="has no events in the ledger up to"):
        await plan_rerun(ledger, source.ref, from_step="page", at=at - timedelta(days=1))
    with pytest.raises(InvalidInputError, match="is still to come"):
        await plan_rerun(ledger, source.ref, from_step="page", at=at + timedelta(days=1))
    assert (await ledger.log.head()).last_sequence == history[-1].stream_sequence


async def test_copying_goes_on_where_an_attempt_was_lost(connected: Connect) -> None:
    async with connected() as ledger:
        async with working(ledger, order, page, concurrency=4):
            source = await failed(ledger)
        again = await ledger.rerun(source, from_step="charge", id="again")
        # A worker copies one step, and stops.
        claimed = await ledger.execute(again.ref, Claim(worker="gone", lease_s=15))
        known = next(each for each in await source.history() if getattr(each.event, "step", "") == "reserve")
        event = known.event
        assert isinstance(event, StepCompleted)
        copy = CompleteStep(
            epoch=claimed.claim_epoch,
            step=event.step,
            kind=event.kind,
            target=event.target,
            input_sha256=event.input_sha256,
            result=event.result,
            result_ref=event.result_ref,
            tries=event.tries,
            duration_ms=event.duration_ms,
            copied=CopiedEnd(sequence=known.stream_sequence, sha256=known.hash),
        )
        await ledger.execute(again.ref, copy)
        await ledger.execute(again.ref, Interrupt(epoch=claimed.claim_epoch, reason="it was lost"))
        IS_MENDED.set()
        async with working(ledger, order, page, concurrency=4):
            assert (await again.result(timeout_s=2 * LIMIT_S))[1] == "charged ord-77 x at noon"
        assert (CALLS["reserve"], await check(ledger)) == (1, 6)


async def test_a_source_that_is_in_an_archive_is_refused_before_and_after(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected() as ledger:
        async with working(ledger, order, page, concurrency=4):
            source = await failed(ledger)  # a dead letter is carried: its events go away
            deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
            async with asyncio.timeout(LIMIT_S):
                while await deps.unread((await ledger.log.head()).last_sequence):
                    await asyncio.sleep(0.02)
        late = await ledger.rerun(source, from_step="charge", id="late")
        await Archiver(ledger.log, tmp_path, deps).run(ledger.clock.now())
        with pytest.raises(RefusedError, match=r"step 'reserve' of run order-77 ended at .* in an archive"):
            await ledger.rerun(source, from_step="charge")
        async with working(ledger, order, page, concurrency=4):
            job = await ended(late)
        assert job.error is not None
        assert (job.state, job.error.type) == (JobState.DEAD_LETTERED, "RerunSourceError")
        assert "is in an archive by now" in job.error.message
        report = await verify(await open_archive(ledger.log, tmp_path))
        assert report.sound, report.text()


async def test_a_changed_byte_in_a_copy_of_an_export_is_found(ledger: Ledger, tmp_path: Path) -> None:
    IS_MENDED.set()
    async with working(ledger, order, page, concurrency=4):
        source = await ledger.enqueue(order.options(id="order-77"), "ord-77")
        await ledger.signal(source, go_on, "noon")
        await ended(source)
        again = await ledger.rerun(source, from_step="charge", id="again")
        await ended(again)
    folder = tmp_path / "whole"
    await write_export(ledger.log, folder)
    sound = await verify_export(folder)
    assert (sound.sound, sound.copies, "copied" in sound.proven) == (True, 6, True)

    def altered(lines: list[Line]) -> list[Line]:
        """One byte of a result that was copied; whoever forges works the links out anew."""
        at = next(n for n, line in enumerate(lines) if ".again." in line.subject and b'"page 0"' in line.data)
        chain = lines[at].chain
        lines[at] = lines[at]._replace(data=lines[at].data.replace(b'"page 0"', b'"page 9"', 1))
        return relinked(lines, chain)

    forged = copied(folder, tmp_path / "forged")
    rewritten(forged, altered, manifest=True)
    found = await verify_export(forged)
    assert {violation.rule for violation in found.violations} == {"copied"}
    assert "differs from what run order-77 recorded at" in found.violations[0].sentence


@workflow(name="undoes", queue="runs", max_attempts=1)
async def undoes(run: Run) -> None:
    await run.step(quick)
    run.on_failure(quick)
    await run.step(charge, "r", "noon")


@task(name="plain", queue="runs")
async def plain() -> None:
    """Record nothing."""


async def test_what_cannot_be_begun_again_is_refused_with_one_sentence(ledger: Ledger) -> None:
    async with working(ledger, order, page, undoes, plain, concurrency=4):
        source = await failed(ledger)
        took_back = await ledger.enqueue(undoes.options(id="undone"))
        nothing = await ledger.enqueue(plain.options(id="plain"))
        for job in (took_back, nothing):
            await ended(job)
    head = (await ledger.log.head()).last_sequence
    branch = next(key for key in (await source.snapshot()).steps if "/" in key)
    for job, from_step, kind, said in (
        (source, "chrge", InvalidInputError, "no step 'chrge': did you mean 'charge'"),
        (source, branch, InvalidInputError, "is in a branch"),
        (nothing, "charge", InvalidInputError, "job plain has recorded no steps"),
        (took_back, "charge", RefusedError, r"has begun to take back what it did \(undo/.*with `at`"),
        (took_back, "undo/quick", InvalidInputError, "took something back"),
    ):
        with pytest.raises(kind, match=said):
            await ledger.rerun(job, from_step=from_step)
    with pytest.raises(InvalidInputError, match="job undone runs task undoes, not order"):
        await ledger.rerun(took_back, from_step="quick", task=order)
    assert (await ledger.log.head()).last_sequence == head


@workflow(name="refused", queue="runs", max_attempts=1)
async def refused(run: Run) -> str:
    await run.start(page, 0)  # its end is not asked for, so that a rerun leaves the step out
    try:
        await run.options(on_dead_letter="fail").map(page, [1, 3])
    except ChildFailedError as error:
        return f"{error.job_id} {await run.step(quick)}"
    return ""


async def test_a_group_that_failed_names_the_child_of_the_run_that_asked_for_it(ledger: Ledger) -> None:
    async with working(ledger, refused, page, concurrency=4):
        source = await ledger.enqueue(refused.options(id="first"))
        assert await source.result(timeout_s=LIMIT_S) == "first-2-1-of-runs quick"
        again = await ledger.rerun(source, from_step="quick", task=refused)
        assert await again.result(timeout_s=LIMIT_S) == "first-2-1-of-runs quick"
        twice = await ledger.rerun(again, from_step="quick", task=refused)  # a copy of a copy
        assert await twice.result(timeout_s=LIMIT_S) == "first-2-1-of-runs quick"
    assert await check(ledger) == 2


@workflow(name="twice", queue="runs", max_attempts=2, backoff=Backoff(base_s=0))
async def twice(run: Run) -> str:
    try:
        await run.step(broken)
    except StepFailedError:
        CALLS["caught"] += 1
    return await run.step(charge, "reserved", "noon")


async def test_a_copied_failure_is_raised_again_and_tried_anew_after_a_failed_attempt(ledger: Ledger) -> None:
    """As in any run: the first attempt gets what was recorded, and the one after a failed attempt tries failed steps anew."""
    async with working(ledger, twice):
        source = await ledger.enqueue(twice.options(id="first"))
        assert (await ended(source)).state is JobState.DEAD_LETTERED
        calls = CALLS["broken"]
        again = await ledger.rerun(source, from_step="charge")
        job = await ended(again)
    assert (job.attempts_count, CALLS["broken"] - calls) == (2, 1)
    assert await check(ledger) == 1
