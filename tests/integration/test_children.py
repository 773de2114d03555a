"""Jobs that jobs make, through `context.ledger`: what they inherit, and that no attempt makes them twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.limits import LIMIT_S
from tests.support.orders import add, enqueue_of
from tests.support.working import Connect, attempts, ended, until, working

from jobledger.ledger import (
    AttemptStoppedError,
    Backoff,
    Context,
    InputMismatchError,
    InvalidInputError,
    JobRef,
    JobState,
    Ledger,
    RefusedError,
    TaskRegistry,
    task,
)
from jobledger.ledger.children import Children, Parent
from jobledger.workers import debug as again

QUICK = Backoff(base_s=0)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@task(queue="children")
async def child(n: int, text: str = "") -> int:
    return n


@task(queue="children")
async def other(n: int) -> int:
    return n


@task(queue="parents", max_attempts=3, backoff=QUICK)
async def makes(context: Context, fail_before: int) -> list[tuple[str, bool]]:
    """Make three jobs, and fail after making them in every attempt before the given one."""
    ledger = context.ledger
    made = [
        await ledger.enqueue(child, 1),
        await ledger.enqueue(other, 1),
        await ledger.enqueue(child, 2, text=100_000 * "x"),
    ]
    if context.attempt < fail_before:
        raise ValueError("after making them")
    return [(each.id, each.created) for each in made]


@task(queue="parents", max_attempts=3, backoff=QUICK)
def makes_in_thread(context: Context, fail_before: int) -> list[tuple[str, bool]]:
    ledger = context.sync_ledger
    made = [ledger.enqueue(child, 1), ledger.enqueue(other, 1), ledger.enqueue(child, 2)]
    if context.attempt < fail_before:
        raise ValueError("after making them")
    return [(each.id, each.created) for each in made]


async def _chain_of(ledger: Ledger, job_id: str) -> dict[str, Any]:
    first: dict[str, Any] = msgspec.json.decode((await (await ledger.job(job_id)).history())[0].data)
    return first


@pytest.mark.parametrize("parent", [makes, makes_in_thread])
async def test_a_second_attempt_makes_no_job_a_second_time(ledger: Ledger, parent: Any) -> None:
    async with working(ledger, parent, child, other):
        job = await ledger.enqueue(parent.options(id="p"), fail_before=2)
        made = await job.result(timeout_s=LIMIT_S)
        assert await attempts(job) == ["failed", "completed"]
        assert made == [("p-child-1", False), ("p-other-1", False), ("p-child-2", False)]
        assert await (await ledger.job("p-child-2", task=child)).result(timeout_s=LIMIT_S) == 2
    begun = [stored async for stored in ledger.events(follow=False, types=["queued"])]
    assert sorted(each.event.job for each in begun) == ["p", "p-child-1", "p-child-2", "p-other-1"]


async def test_a_job_made_by_a_job_inherits_from_it_and_names_it(ledger: Ledger) -> None:
    ref = JobRef(queue="parents", job_id="p")
    order: dict[str, Any] = {"input": msgspec.Raw(b'{"fail_before":1}'), "trace": TRACE, "tenant": "acme"}
    await ledger.execute(ref, enqueue_of(ref, task="makes", **order))
    async with working(ledger, makes, child, other) as worker:
        assert (await ended(await ledger.job(ref))).state is JobState.COMPLETED
        worker_name = worker.identity
    made = await _chain_of(ledger, "p-child-1")
    assert (made["trace"], made["tenant"], made["causation"]) == (TRACE, "acme", "p")
    assert (made["correlation"], made["by"]) == ("p", worker_name)
    # The grandchild belongs to the first cause, not to its parent.
    own = ledger.on_behalf_of(Parent.of(await (await ledger.job("p-child-1")).snapshot(), "w"))
    grandchild = await _chain_of(ledger, (await own.enqueue(other, 1)).id)
    assert (grandchild["job"], grandchild["correlation"], grandchild["causation"]) == (
        "p-child-1-other-1",
        "p",
        "p-child-1",
    )


async def test_another_input_under_the_same_id_is_an_error_that_names_both_jobs(ledger: Ledger) -> None:
    @task(queue="parents", max_attempts=2, backoff=QUICK)
    async def wavers(context: Context) -> None:
        await context.ledger.enqueue(child, context.attempt, text="same")
        raise ValueError("once more")

    async with working(ledger, wavers, child):
        job = await ended(await ledger.enqueue(wavers.options(id="p")))
    assert job.error is not None
    assert job.error.type == "InputMismatchError"
    assert "job p-child-1 in queue children exists with another input (n) than job p gives it now" in (
        job.error.message
    )
    assert msgspec.json.decode((await (await ledger.job("p-child-1")).snapshot()).order.input)["n"] == 1


async def test_many_jobs_and_given_ids_in_one_attempt(ledger: Ledger) -> None:
    parent = Parent(job_id="p", worker="w-1")
    first = ledger.on_behalf_of(parent)
    assert (await first.enqueue(child, 0)).id == "p-child-1"
    assert (await first.enqueue(child.options(id="mine"), 7)).id == "mine"
    done = await first.enqueue_many(child, ({"n": n} for n in range(1, 100)))
    assert (done.created, done.existing) == (99, 0)
    second = ledger.on_behalf_of(parent)
    assert (await second.enqueue(child.options(id="mine"), 7)).created is False  # as for any other client
    with pytest.raises(
        InputMismatchError, match=r"job mine in queue children exists with another input .n. and"
    ):
        await second.enqueue(child.options(id="mine"), 8)
    done = await second.enqueue_many(child, ({"n": n} for n in range(110)))
    assert (done.created, done.existing) == (10, 100)
    assert (await ledger.job("p-child-110")).queue == "children"
    third = ledger.on_behalf_of(parent)
    with pytest.raises(InputMismatchError, match=r"p-child-2 .*another input .n. than job p") as caught:
        await third.enqueue_many(child, ({"n": 2 * n} for n in range(10)))
    assert (caught.value.parent_id, caught.value.differing) == ("p", ["n"])


async def test_equal_inputs_are_equal_however_they_are_written(ledger: Ledger) -> None:
    @task(queue="children")
    async def takes(names: set[str]) -> None: ...

    @task(queue="children", name="takes")
    async def takes_otherwise(names: set[str], more: int) -> None: ...

    parent = Parent(job_id="p", worker="w-1")
    own = ledger.on_behalf_of(parent)
    await own.enqueue(takes.options(id="p-takes-1"), names={"a"})
    ref = JobRef(queue="children", job_id="p-takes-2")
    await own.execute(ref, enqueue_of(ref, task="takes", input=msgspec.Raw(b'{"names" : ["b","a","b"]}')))
    own = ledger.on_behalf_of(parent)
    assert not (await own.enqueue(takes, {"a"})).created
    assert not (await own.enqueue(takes, {"a", "b"})).created
    own = ledger.on_behalf_of(parent)
    with pytest.raises(InputMismatchError) as caught:
        await own.enqueue(takes_otherwise, {"a"}, 1)
    assert caught.value.differing == ["more"]
    await own.enqueue(other.options(id="p-takes-1", queue="elsewhere"), 1)
    with pytest.raises(InputMismatchError) as caught:
        await ledger.on_behalf_of(parent).enqueue(takes.options(queue="elsewhere"), {"a"})
    assert caught.value.differing == ["task"]


async def test_a_job_of_somebody_else_is_not_taken_for_the_one_that_a_jobs_code_makes(ledger: Ledger) -> None:
    """It has the same task and input, and runs in ten years: whoever guessed the id held the work back in silence."""
    taken = await ledger.enqueue(child.options(id="p-child-1", delay_s=3e8), 0)
    for many in (False, True):
        own = ledger.on_behalf_of(Parent(job_id="p", worker="w-1"))
        with pytest.raises(InputMismatchError, match=r"p-child-1 .*and job p did not make it") as caught:
            await (own.enqueue_many(child, [{"n": 0}]) if many else own.enqueue(child, 0))
        assert (caught.value.parent_id, caught.value.differing) == ("p", ["parent"])
    assert (await taken.snapshot()).state == "scheduled"


async def test_two_attempts_at_the_same_time_make_each_job_once(ledger: Ledger, connected: Connect) -> None:
    """A worker that was frozen runs on beside the one that took its job over."""
    parent = Parent(job_id="p", worker="w-1")
    async with connected() as elsewhere:
        clients = [ledger.on_behalf_of(parent), elsewhere.on_behalf_of(parent)]

        async def make(client: Ledger) -> list[bool]:
            return [(await client.enqueue(child, n)).created for n in range(20)]

        one, two = await asyncio.gather(*map(make, clients))
    assert [a + b for a, b in zip(one, two, strict=True)] == 20 * [1]
    assert len([stored async for stored in ledger.events(follow=False)]) == 20


async def test_calls_at_once_are_numbered_in_their_order(ledger: Ledger) -> None:
    own = ledger.on_behalf_of(Parent(job_id="p", worker="w-1"))
    texts = ["", 200_000 * "x", "y"]  # the large one takes longer
    made = await asyncio.gather(*(own.enqueue(child, n, text=text) for n, text in enumerate(texts)))
    assert [each.id for each in made] == ["p-child-1", "p-child-2", "p-child-3"]
    assert [(await each.snapshot()).order.input_ref is None for each in made] == [True, False, True]


def test_an_id_that_would_be_too_long_is_shortened_the_same_way_each_time() -> None:
    parent = Parent(job_id=64 * "p", worker="w-1")
    first, second = Children(parent), Children(parent)
    ids = [first.next_id("child") for _ in range(3)]
    assert ids == [second.next_id("child") for _ in range(3)]
    assert len(set(ids)) == 3
    assert {len(each) for each in ids} == {64}


@task(queue="parents", max_attempts=1)
async def blocks_its_loop(context: Context) -> None:
    context.sync_ledger.enqueue(child, 1)


@task(queue="parents", max_attempts=1)
def cannot_await(context: Context) -> None:
    _ = context.ledger


async def test_the_ledger_of_the_other_kind_of_task_is_refused_with_what_to_use(ledger: Ledger) -> None:
    async with working(ledger, blocks_its_loop, cannot_await):
        one = await ended(await ledger.enqueue(blocks_its_loop))
        two = await ended(await ledger.enqueue(cannot_await))
    assert one.error is not None
    assert two.error is not None
    assert "use context.ledger here, and await it" in one.error.message
    assert "use context.sync_ledger here, whose verbs block" in two.error.message


WAITING: list[BaseException] = []
BEGAN = threading.Event()


@task(queue="parents", max_attempts=1)
def waits_for_ever(context: Context) -> None:
    job = context.sync_ledger.enqueue(child.options(delay_s=3_600), 1)
    BEGAN.set()
    try:
        job.result()
    except BaseException as error:
        WAITING.append(error)
        raise


async def test_a_verb_under_way_ends_when_its_attempt_is_told_to_stop(ledger: Ledger) -> None:
    BEGAN.clear()
    WAITING.clear()
    async with working(ledger, waits_for_ever):
        job = await ledger.enqueue(waits_for_ever.options(id="p"))
        await until(BEGAN.is_set)
        await job.cancel(reason="no need")
        assert (await ended(job)).state is JobState.CANCELLED
        await until(lambda: bool(WAITING))
    assert isinstance(WAITING[0], AttemptStoppedError)
    assert await (await ledger.job("p-child-1")).state() is JobState.SCHEDULED


@task(queue="parents", max_attempts=1)
def locks_and_makes_many(context: Context) -> None:
    ledger = context.sync_ledger

    def numbers() -> Iterator[dict[str, int]]:
        for n in count():
            if n == 3:
                BEGAN.set()
            yield {"n": n}

    try:
        with ledger.lock("children", "all"), ledger.events(live=True):
            ledger.enqueue_many(child.options(delay_s=3_600), numbers())
    except BaseException as error:
        WAITING.append(error)
        raise


async def test_a_stop_ends_what_takes_long_and_gives_back_what_was_held(ledger: Ledger) -> None:
    BEGAN.clear()
    WAITING.clear()
    async with working(ledger, locks_and_makes_many):
        job = await ledger.enqueue(locks_and_makes_many.options(id="p"))
        await until(BEGAN.is_set)
        await job.cancel(reason="no need")
        assert (await ended(job)).state is JobState.CANCELLED
        await until(lambda: bool(WAITING))
        assert isinstance(WAITING[0], AttemptStoppedError)
        async with ledger.lock("children", "all", wait_s=LIMIT_S / 2) as held:
            assert held.is_held
    assert await (await ledger.job("p-child-1")).state() is JobState.SCHEDULED


SOURCE = """
from jobledger.ledger import Backoff, Context, task

@task(queue="children")
async def child(n: int, text: str = "") -> int:
    return n

@task(queue="cpu", run_in="process", max_attempts=2, backoff=Backoff(base_s=0))
def makes_in_process(context: Context, fail_before: int) -> dict[str, object]:
    made = [context.sync_ledger.enqueue(child, n) for n in (1, 2)]
    if context.attempt < fail_before:
        raise ValueError("after making them")
    return {
        "ids": [each.id for each in made],
        "created": [each.created for each in made],
        "result": made[0].result(timeout_s=10),
        "state": str(context.sync_ledger.job(context.job_id).state()),
        "epoch": context.claim_epoch,
    }

@task(queue="cpu", run_in="process", max_attempts=1)
async def awaits_in_process(context: Context) -> None:
    await context.ledger.enqueue(child, 1)
"""


async def test_a_task_in_a_process_makes_jobs_over_a_connection_of_its_own(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "children_tasks.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    registry = TaskRegistry.load(["children_tasks"])
    async with working(ledger, registry=registry, pool_size=1):
        job = await ledger.enqueue(registry.get("makes_in_process").options(id="p"), fail_before=2)
        result = await job.result(timeout_s=LIMIT_S)
        awaits = await ended(await ledger.enqueue(registry.get("awaits_in_process")))
    epoch = (await job.snapshot()).attempts[-1].epoch
    assert result == {
        "ids": ["p-child-1", "p-child-2"],
        "created": [False, False],
        "result": 1,
        "state": "running",
        "epoch": epoch,
    }
    assert (await _chain_of(ledger, "p-child-1"))["causation"] == "p"
    assert awaits.error is not None
    assert "use context.sync_ledger here" in awaits.error.message


@task(queue="parents")
async def tells_epoch(context: Context) -> int:
    return context.claim_epoch


async def test_a_context_knows_the_epoch_of_its_claim(ledger: Ledger) -> None:
    async with working(ledger, tells_epoch):
        job = await ledger.enqueue(tells_epoch)
        epoch = await job.result(timeout_s=LIMIT_S)
    assert [each.epoch for each in (await job.snapshot()).attempts] == [epoch]
    assert epoch > job.sequence


async def test_a_job_that_is_debugged_makes_no_others(ledger: Ledger) -> None:
    job = await ledger.enqueue(makes.options(max_attempts=1), 1)
    material = await again.fetch(ledger, await job.history())
    ran = await again.run(material, makes, ledger.names)
    assert isinstance(ran.error, RefusedError)
    assert "is run here without its ledger" in str(ran.error)
    assert [stored async for stored in ledger.events(follow=False)] == await job.history()


async def test_stamps_on_behalf_of_several_jobs_are_never_equal(ledger: Ledger) -> None:
    clients = [ledger, *(ledger.on_behalf_of(Parent(job_id=name, worker="w")) for name in ("a", "b"))]
    times = [client.stamp().at for _ in range(50) for client in clients]
    assert len(set(times)) == len(times)


async def test_the_plain_client_still_gives_new_ids(ledger: Ledger) -> None:
    ledger.on_behalf_of(Parent(job_id="p", worker="w"))
    assert not (await ledger.enqueue(add, 1)).id.startswith("p-")
    with pytest.raises(InvalidInputError):
        await ledger.on_behalf_of(Parent(job_id="p", worker="w")).enqueue(add, "x")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
