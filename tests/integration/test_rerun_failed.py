"""Reruns of what failed: every step and child that completed is copied and proven, and only the others are made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.forgery import Line, copied, relinked, rewritten
from tests.support.groups import Groups
from tests.support.working import LIMIT_S, Connect, becomes, ended, working

from jobledger.audit.export import verify_export, write_export
from jobledger.audit.verify import verify
from jobledger.ledger import (
    Graph,
    IllegalTransitionError,
    InvalidInputError,
    JobHandle,
    JobState,
    Ledger,
    RefusedError,
    Run,
    Signal,
    step,
    sync,
    task,
    workflow,
)
from jobledger.ledger.children import child_ref
from jobledger.ledger.model.commands import Claim, CopyEnds, Interrupt, StartStep
from jobledger.ledger.model.events import CopiedEnd, Joined, StepStarted
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.reruns import groups
from jobledger.ledger.reruns.plans import plan_rerun
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

CALLS: Counter[str] = Counter()
BROKEN: set[int] = set()

go_on = Signal("go_on", str)


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()
    BROKEN.clear()


@task(queue="kids", max_attempts=1)
async def page(number: int) -> str:
    CALLS[f"page {number}"] += 1
    if number in BROKEN:
        raise ValueError("it is broken")
    return f"page {number}"


@task(queue="kids", max_attempts=1)
async def joined(parts: list[str]) -> str:
    CALLS["joined"] += 1
    return "+".join(parts)


@step(max_attempts=1)
async def measured(number: int) -> int:
    CALLS[f"measured {number}"] += 1
    if number in BROKEN:
        raise ValueError("it is broken")
    return number * number


@workflow(queue="runs", max_attempts=1)
async def gathers(run: Run, count: int) -> list[str]:
    def branch(number: int) -> Callable[[], Awaitable[str]]:
        async def fetch() -> str:
            await run.step(measured, 100 + number)
            return await run.options(on_dead_letter="fail").call(page, number)

        return fetch

    first = await run.step(measured, 50)
    return [str(first), *await run.gather(*(branch(number) for number in range(count)))]


@workflow(queue="runs", max_attempts=1)
async def maps(run: Run, count: int, limit: int = 0) -> list[str]:
    return await run.options(on_dead_letter="fail").map(page, range(count), limit=limit)


@workflow(queue="runs", max_attempts=1)
async def settles(run: Run, count: int) -> list[str]:
    ends = await run.map_settled(page, range(count))
    return [end.value() for end in ends]


@workflow(queue="runs", max_attempts=1)
async def chunks(run: Run, count: int) -> list[int]:
    return await run.each(measured, range(count), chunk=2, limit=2)


@workflow(queue="runs", max_attempts=1)
async def nests(run: Run, count: int) -> list[list[str]]:
    async def left() -> list[str]:
        return await run.options(on_dead_letter="fail").call(maps, count)

    async def right() -> list[str]:
        return await run.map(page, range(100, 102))

    return list(await run.gather(left, right))


WORKFLOWS = (gathers, maps, settles, chunks, nests)
PAGES = [f"page {number}" for number in range(6)]
RESULTS: dict[str, Any] = {
    "gathers": ["2500", *PAGES],
    "maps": PAGES,
    "settles": PAGES,
    "chunks": [0, 1, 4, 9, 16, 25],
    "nests": [PAGES, ["page 100", "page 101"]],
}


async def check(ledger: Ledger) -> int:
    report = await verify(ledger.log)
    assert report.sound, report.text()
    return report.copies


async def failed(ledger: Ledger, flow: Any, *args: Any, **options: Any) -> JobHandle[Any]:
    run = await ledger.enqueue(flow.options(id="first", **options), *args)
    assert (await ended(run)).state is JobState.DEAD_LETTERED
    return run


def calls_again(before: Counter[str]) -> set[str]:
    """Return what was called since, each once."""
    since = CALLS - before
    assert set(since.values()) <= {1}
    return set(since)


@pytest.mark.parametrize("broken", [{3}, {0, 5}, set(range(6))], ids=["one", "two", "all"])
@pytest.mark.parametrize("flow", WORKFLOWS, ids=lambda flow: flow.name)
async def test_what_completed_is_copied_and_only_the_others_are_made(
    ledger: Ledger, flow: Any, broken: set[int]
) -> None:
    BROKEN.update(broken)
    async with working(ledger, *WORKFLOWS, page, concurrency=8):
        source = await failed(ledger, flow, 6)
        before, history = CALLS.copy(), [stored.data for stored in await source.history()]
        BROKEN.clear()
        again = await ledger.rerun(source, failed=True, task=flow, id="again")
        assert await again.result(timeout_s=LIMIT_S) == RESULTS[flow.name]
    assert [stored.data for stored in await source.history()] == history
    if flow is chunks:  # a chunk is one step, which had completed or had not
        due = {f"measured {each}" for number in broken for each in (number // 2 * 2, number // 2 * 2 + 1)}
    else:
        due = {f"page {number}" for number in broken}
    assert calls_again(before) == due
    rerun_of = (await again.snapshot()).order.rerun_of
    assert rerun_of is not None
    assert await check(ledger) >= rerun_of.children


async def test_a_graph_begins_again_with_the_nodes_that_completed(ledger: Ledger) -> None:
    BROKEN.add(3)
    graph = Graph("nightly", on_failure="continue", on_dead_letter="fail")
    pages = [graph.add(page, number) for number in range(5)]
    graph.add(joined, [pages[0], pages[1]])
    graph.add(joined, [pages[2], pages[3]])
    async with working(ledger, page, joined, concurrency=8):
        source = await ledger.run_graph(graph, id="first")
        assert (await ended(source)).state is JobState.DEAD_LETTERED
        before = CALLS.copy()
        BROKEN.clear()
        again = await ledger.rerun(source, failed=True)
        results = await again.result(timeout_s=LIMIT_S)
    assert (results["joined"], results["joined#2"]) == ("page 0+page 1", "page 2+page 3")
    assert calls_again(before) == {"page 3", "joined"}
    assert await check(ledger) == 5


async def test_one_bad_item_of_many_is_one_new_child_and_few_events(ledger: Ledger) -> None:
    BROKEN.add(7)
    async with working(ledger, maps, page, concurrency=50):
        source = await failed(ledger, maps, 2_500, 2_500)
        BROKEN.clear()
        again = await ledger.rerun(source, failed=True, task=maps)
        assert len(await again.result(timeout_s=LIMIT_S)) == 2_500
    assert sum(CALLS.values()) == 2_501
    events = [stored.event for stored in await again.history()]
    copied = [event.copied for event in events if isinstance(event, Joined) and event.copied is not None]
    assert [len(each.sequences) for each in copied] == [1_000, 1_000, 499]
    step = msgspec.structs.replace((await again.snapshot()).steps["page"], origins=())
    chains = [ledger.names.chain(child_ref(again.ref, step, item)) for item in (6, 7, 8)]
    assert [bool(await ledger.log.newest_sequence(chain)) for chain in chains] == [False, True, False]
    assert await check(ledger) == 2_499


async def test_a_limit_holds_among_children_that_are_made_again(ledger: Ledger) -> None:
    BROKEN.update({2, 9, 17, 18, 30})
    async with working(ledger, settles, maps, page, concurrency=8):
        source = await failed(ledger, maps, 40, 5)
        known = (await source.snapshot()).steps["page"].opened.bit_count()
        assert known < 40  # it began no others once one had failed
        before, completed = CALLS.copy(), {each for each in range(40) if CALLS[f"page {each}"]} - BROKEN
        BROKEN.clear()
        again = await ledger.rerun(source, failed=True, task=maps)
        assert await again.result(timeout_s=LIMIT_S) == [f"page {number}" for number in range(40)]
    assert calls_again(before) == {f"page {each}" for each in range(40) if each not in completed}
    found = await Groups.of(ledger.log)
    assert found.peaks[again.id, "page"] <= 5
    assert await check(ledger) > 0


async def test_a_rerun_that_failed_too_is_begun_again_with_what_both_did(ledger: Ledger) -> None:
    BROKEN.update({1, 4})
    async with working(ledger, *WORKFLOWS, page, concurrency=8):
        run = await failed(ledger, nests, 6)
        for mended, state in ((1, JobState.DEAD_LETTERED), (4, JobState.COMPLETED)):
            BROKEN.discard(mended)
            before = CALLS.copy()
            run = await ledger.rerun(run, failed=True, task=nests)
            assert (await ended(run)).state is state
            assert calls_again(before) == ({"page 1", "page 4"} if mended == 1 else {"page 4"})
        assert await run.result(timeout_s=LIMIT_S) == RESULTS["nests"]
    await check(ledger)


async def test_a_child_that_completed_after_its_run_died_is_copied_too(ledger: Ledger) -> None:
    BROKEN.add(3)
    async with working(ledger, maps, page, concurrency=8):
        source = await failed(ledger, maps, 6)
        BROKEN.clear()
        child = ledger.handle_of(child_ref(source.ref, (await source.snapshot()).steps["page"], 3))
        await ledger.requeue(child)
        assert (await ended(child)).state is JobState.COMPLETED
        before = CALLS.copy()
        again = await ledger.rerun(source, failed=True, task=maps)
        assert await again.result(timeout_s=LIMIT_S) == PAGES
    assert calls_again(before) == set()
    assert await check(ledger) == 6


@workflow(queue="inner", max_attempts=1)
async def inner(run: Run, count: int) -> list[str]:
    return await run.options(on_dead_letter="fail").map(page, range(count))


@workflow(queue="runs", max_attempts=1)
async def outer(run: Run, count: int) -> list[str]:
    return await run.options(on_dead_letter="fail").call(inner, count)


async def test_a_rerun_whose_child_never_began_is_begun_again_with_what_the_first_run_did(
    ledger: Ledger,
) -> None:
    BROKEN.add(3)
    async with working(ledger, outer, inner, page, concurrency=8):
        source = await failed(ledger, outer, 6)
    BROKEN.clear()
    async with working(ledger, outer):  # nobody serves the queue of the child
        again = await ledger.rerun(source, failed=True, task=outer)
        await becomes(again, JobState.WAITING)
        async with asyncio.timeout(LIMIT_S):
            while not await ledger.log.newest_sequence(ledger.names.chain(await child_of(again, "inner"))):
                await asyncio.sleep(0.01)
        await again.cancel()
        await ended(again)
    before = CALLS.copy()
    async with working(ledger, outer, inner, page, concurrency=8):
        last = await ledger.rerun(again, failed=True, task=outer)
        assert await last.result(timeout_s=LIMIT_S) == PAGES
    assert calls_again(before) == {"page 3"}
    await check(ledger)


async def child_of(run: JobHandle[Any], step: str) -> JobRef:
    return child_ref(run.ref, (await run.snapshot()).steps[step], 0)


@workflow(name="waits", queue="runs", max_attempts=1)
async def waits(run: Run, count: int) -> list[str]:
    found = await run.map(page, range(count))
    return [*found, await run.wait(go_on)]


async def test_a_cancelled_run_is_begun_again_and_what_may_go_on_is_refused(ledger: Ledger) -> None:
    async with working(ledger, waits, maps, settles, page, concurrency=8):
        waiting = await ledger.enqueue(waits.options(id="waiting"), 3)
        async with asyncio.timeout(LIMIT_S):
            while "go_on" not in (await waiting.snapshot()).awaited:
                await asyncio.sleep(0.01)
        with pytest.raises(
            RefusedError, match=r"run waiting is waiting and may still go on: `jobledger jobs show waiting`"
        ):
            await ledger.rerun(waiting, failed=True)
        await waiting.cancel()
        await ended(waiting)
        again = await ledger.rerun(waiting, failed=True, task=waits)
        await ledger.signal(again, go_on, "now")
        assert await again.result(timeout_s=LIMIT_S) == ["page 0", "page 1", "page 2", "now"]
        head = (await ledger.log.head()).last_sequence
        with pytest.raises(RefusedError, match="completed: nothing is left to mend"):
            await ledger.rerun(again, failed=True)
        wrong: tuple[dict[str, Any], ...] = ({}, {"failed": True, "from_step": "page"}, {"failed": False})
        for how in wrong:
            with pytest.raises(InvalidInputError, match="say either from which step"):
                await ledger.rerun(waiting, **how)
    assert sum(CALLS.values()) == 3
    assert (await ledger.log.head()).last_sequence == head
    assert await check(ledger) == 1


async def test_copying_ends_of_children_goes_on_where_an_attempt_was_lost(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_ENDS_MAX", 2)
    BROKEN.add(3)
    async with connected() as ledger:
        async with working(ledger, maps, page, concurrency=8):
            source = await failed(ledger, maps, 6)
        BROKEN.clear()
        before, plan = CALLS.copy(), await plan_rerun(ledger, source.ref, failed=True)
        (group,) = plan.groups
        assert (plan.copied, plan.again, group.children) == ((), (), 5)
        again = await ledger.rerun(source, failed=True, task=maps, id="again")
        # A worker begins the group and copies the first two ends, and stops.
        epoch = (await ledger.execute(again.ref, Claim(worker="gone", lease_s=15))).claim_epoch
        event = group.begun.event
        assert isinstance(event, StepStarted)
        begun = StartStep(
            epoch=epoch,
            step=event.step,
            kind=event.kind,
            target=event.target,
            input_sha256=event.input_sha256,
            order=event.order,
            items=event.items,
            items_ref=event.items_ref,
            copied=CopiedEnd(sequence=group.begun.stream_sequence, sha256=group.begun.hash),
        )
        await ledger.execute(again.ref, begun)
        items, ends = next(group.facts())
        copy = CopyEnds(epoch=epoch, step=event.step, completed=items, copied=ends)
        await ledger.execute(again.ref, copy)
        with pytest.raises(IllegalTransitionError, match="copy these"):
            await ledger.execute(again.ref, copy)
        await ledger.execute(again.ref, Interrupt(epoch=epoch, reason="it was lost"))
        async with working(ledger, maps, page, concurrency=8):
            assert await again.result(timeout_s=LIMIT_S) == PAGES
        assert calls_again(before) == {"page 3"}
        assert await check(ledger) == 5


async def test_a_copied_end_of_a_child_that_is_another_one_is_found(ledger: Ledger, tmp_path: Path) -> None:
    BROKEN.add(3)
    async with working(ledger, maps, page, concurrency=8):
        source = await failed(ledger, maps, 6)
        again = await ledger.rerun(source, failed=True, id="again")
        await ended(again)
    folder = tmp_path / "whole"
    await write_export(ledger.log, folder)
    sound = await verify_export(folder)
    assert (sound.sound, sound.copies, "copied" in sound.proven) == (True, 5, True)

    def swapped(lines: list[Line]) -> list[Line]:
        """Two items exchange their children, with sequences and hashes."""
        at = next(n for n, line in enumerate(lines) if line.subject.endswith(".again.joined"))
        event = msgspec.json.decode(lines[at].data)
        for name in ("sequences", "sha256"):
            event["copied"][name][:2] = reversed(event["copied"][name][:2])
        lines[at] = lines[at]._replace(data=msgspec.json.encode(event))
        return relinked(lines, lines[at].chain)

    forged = copied(folder, tmp_path / "forged")
    rewritten(forged, swapped, manifest=True)
    found = await verify_export(forged)
    assert [violation.rule for violation in found.violations] == ["copied", "copied"]
    assert "item 0, is no completion of child" in found.violations[0].sentence


async def test_the_blocking_client_begins_again_what_failed(
    nats_server: EmbeddedServer, ledger: Ledger
) -> None:
    BROKEN.add(1)
    async with working(ledger, maps, page, concurrency=8):
        source = await failed(ledger, maps, 2)
        BROKEN.clear()

        def begin() -> list[str]:
            environment = ledger.config.environment
            with sync.connect(nats_server.url, environment=environment) as blocking:
                again: list[str] = blocking.rerun(source.id, failed=True, task=maps).result(timeout_s=LIMIT_S)
                return again

        assert await asyncio.to_thread(begin) == ["page 0", "page 1"]
    assert CALLS == {"page 0": 1, "page 1": 2}
