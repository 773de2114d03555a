"""Appending in every way of committing, raced, and reading events by choice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.counting import everything
from tests.support.orders import COMMITS, LIMIT_S, add, finish, shout
from tests.support.working import Connect

from jobledger.ledger import Context, Ledger, Task
from jobledger.ledger.model.chain import link, load
from jobledger.ledger.model.commands import CancelJob, Claim, Fail
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import InvalidError, WrongSequenceError
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.subjects import JobRef

pytestmark = pytest.mark.anyio


# Appending, in every way of committing.


def claims(ledger: Ledger, ref: JobRef, chain: Any, count: int) -> list[Any]:
    """Claims by `count` workers, all decided on the same view."""
    return [
        link(
            chain,
            decide(chain.job, Claim(worker=f"w-{n}", lease_s=15.0), ledger.stamp(f"w-{n}")),
            ledger.names,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("commit", COMMITS)
async def test_nine_writers_of_one_turn_leave_one_winner(connected: Connect, commit: str) -> None:
    async with connected(commit=commit) as ledger, asyncio.timeout(LIMIT_S):
        for _ in range(10):
            job = await ledger.enqueue(add, 1)
            chain = await load(ledger.log, job.ref)
            futures = [ledger.log.submit(linked.entries) for linked in claims(ledger, job.ref, chain, 9)]
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert sum(isinstance(result, int) for result in results) == 1
            assert sum(isinstance(result, WrongSequenceError) for result in results) == 8
            history = await job.history()
            assert len(history) == 2
            winner = next(n for n, result in enumerate(results) if isinstance(result, int))
            assert (history[1].event.by, history[1].stream_sequence) == (f"w-{winner}", results[winner])


@pytest.mark.parametrize("commit", COMMITS)
async def test_nine_clients_racing_one_chain_leave_one_winner(connected: Connect, commit: str) -> None:
    async with (
        connected(commit=commit) as one,
        connected(commit=commit) as two,
        connected(commit=commit) as three,
    ):
        clients = (one, two, three)
        for _ in range(20):
            job = await one.enqueue(add, 1)
            chain = await load(one.log, job.ref)
            racing = claims(one, job.ref, chain, 9)
            async with asyncio.timeout(LIMIT_S):
                results = await asyncio.gather(
                    *(clients[n % 3].log.append(linked.entries) for n, linked in enumerate(racing)),
                    return_exceptions=True,
                )
            assert sum(isinstance(result, int) for result in results) == 1, results
            assert len(await job.history()) == 2


@pytest.mark.parametrize("commit", COMMITS)
async def test_one_refused_member_does_not_fail_the_others(connected: Connect, commit: str) -> None:
    async with connected(commit=commit) as ledger, asyncio.timeout(LIMIT_S):
        taken = await ledger.enqueue(add.options(id="taken"), 5)
        names = ["taken" if n % 10 == 5 else f"n-{n}" for n in range(100)]
        jobs = await asyncio.gather(*(ledger.enqueue(add.options(id=name), 5) for name in names))
        assert [n for n, job in enumerate(jobs) if not job.created] == [*range(5, 100, 10)]
        stored = await everything(ledger)
        assert len(stored) == 91
        by_sequence = {each.stream_sequence: each.event.job for each in stored}
        assert all(by_sequence[job.sequence] == job.id for job in jobs)  # each got its own sequence
        assert taken.sequence == 1


@pytest.mark.parametrize("commit", COMMITS)
async def test_several_events_are_stored_all_or_none(connected: Connect, commit: str) -> None:
    async with connected(commit=commit) as ledger, asyncio.timeout(LIMIT_S):
        jobs = [await ledger.enqueue(shout, str(n)) for n in range(20)]
        error = ErrorInfo(kind="exception", type="ValueError", message="no")
        linked: list[Any] = []
        for job in jobs:
            running = await ledger.execute(job.ref, Claim(worker="w", lease_s=15.0))
            chain = await load(ledger.log, job.ref)
            events = decide(chain.job, Fail(epoch=running.claim_epoch, error=error), ledger.stamp())
            assert len(events) == 2
            linked.append(link(chain, events, ledger.names))
        for job in jobs[::2]:  # every other chain moves before the appends are sent
            await ledger.execute(job.ref, CancelJob())
        results = await asyncio.gather(
            *(ledger.log.submit(each.entries) for each in linked), return_exceptions=True
        )
        assert [isinstance(result, WrongSequenceError) for result in results] == [True, False] * 10
        for n, job in enumerate(jobs):
            types = [msgspec.json.decode(each.data)["type"] for each in await job.history()]
            end = ["cancel_requested"] if n % 2 == 0 else ["failed", "dead_lettered"]
            assert types == ["queued", "started", *end]
            if n % 2:
                assert (await job.history())[2].stream_sequence == results[n]


# Reading.


async def test_events_can_be_chosen_by_type_queue_sequence_and_time(ledger: Ledger) -> None:
    first = await ledger.enqueue(add, 1)
    second = await ledger.enqueue(shout, "x")
    await finish(ledger, first.ref, 2)

    async def chosen(**options: Any) -> list[int]:
        return [stored.stream_sequence async for stored in ledger.events(follow=False, **options)]

    assert await chosen() == [1, 2, 3, 4]
    assert await chosen(types=["queued"]) == [1, 2]
    assert await chosen(types=["queued"], queue="mail") == [2]
    assert await chosen(queue="default") == [1, 3, 4]
    assert await chosen(queue="nobody") == []
    assert await chosen(from_sequence=3) == [3, 4]
    assert await chosen(from_sequence=5) == []
    third = (await first.history())[1]
    assert await chosen(since=third.stored_at) == [3, 4]
    assert await chosen(since=datetime.now(UTC) + timedelta(days=1)) == []
    assert await chosen(since=third.stored_at.astimezone()) == [3, 4]
    assert second.sequence == 2


@pytest.mark.parametrize(
    "options", [{"queue": "a.b"}, {"from_sequence": 0}, {"from_sequence": -1}, {"types": ["qeued"]}]
)
async def test_reading_with_a_wrong_option_is_refused(ledger: Ledger, options: dict[str, Any]) -> None:
    await ledger.enqueue(add, 1)
    with pytest.raises(InvalidError):
        _ = [stored async for stored in ledger.events(follow=False, **options)]


async def test_a_time_without_zone_is_refused(ledger: Ledger) -> None:
    await ledger.enqueue(add, 1)
    with pytest.raises(InvalidError, match="time zone"):
        _ = [stored async for stored in ledger.events(follow=False, since=datetime(2026, 1, 1))]  # noqa: DTZ001


async def test_a_task_called_directly_still_runs_here() -> None:
    assert await add(1, b=2) == 3
    assert shout("x") == "X"
    assert isinstance(add, Task)
    assert Context.__name__ == "Context"
