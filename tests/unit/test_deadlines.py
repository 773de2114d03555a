"""Many waits with one limit: each ends at its own time, by one timer, and is heard when somebody else cancels it."""

from __future__ import annotations

import asyncio

import pytest

from jobledger.ledger.patience import Deadline, Deadlines

pytestmark = pytest.mark.anyio
LIMIT_S = 0.05
FOREVER_S = 30.0
ROUNDED_S = 0.002  # uvloop counts milliseconds


async def wait(among: Deadlines, seconds: float = FOREVER_S) -> float:
    """Wait within the limit; return how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError), Deadline(among):
        await asyncio.sleep(seconds)
    return loop.time() - began


async def test_each_of_many_ends_at_its_own_time_and_one_timer_is_set() -> None:
    loop = asyncio.get_running_loop()
    set_at: list[float] = []
    among = Deadlines(loop, LIMIT_S)
    call_at = loop.call_at

    def counted(when: float, *given: object) -> asyncio.TimerHandle:
        if getattr(given[0], "__self__", None) is among:
            set_at.append(when)
        return call_at(when, *given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "call_at", counted)
        waits: list[asyncio.Task[float]] = []
        for _ in range(20):
            waits.append(asyncio.create_task(wait(among)))
            await asyncio.sleep(LIMIT_S / 40)
        took = await asyncio.gather(*waits)
    assert all(LIMIT_S - ROUNDED_S <= each < 10 * LIMIT_S for each in took), took
    assert len(set_at) <= 21
    assert sorted(set_at) == set_at


async def test_what_ends_in_time_is_left_alone_and_the_next_one_still_ends() -> None:
    among = Deadlines(asyncio.get_running_loop(), LIMIT_S)
    for _ in range(3):
        limit = Deadline(among)
        with limit:
            await asyncio.sleep(0)
        assert not limit.has_expired
    with pytest.raises(ValueError, match="its own"), Deadline(among):
        raise ValueError("its own")
    await asyncio.sleep(2 * LIMIT_S)  # the timer of the first one fires, and finds nobody
    assert await wait(among) >= LIMIT_S - ROUNDED_S
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_timer_of_a_single_wait_is_taken_back_with_it() -> None:
    loop = asyncio.get_running_loop()
    among = Deadlines(loop, LIMIT_S, is_single=True)
    with Deadline(among):
        timer = among._timer
        assert timer is not None
    assert timer.cancelled()
    assert await wait(Deadlines(loop, LIMIT_S, is_single=True)) >= LIMIT_S - ROUNDED_S


async def test_another_cancel_is_heard_also_when_the_limit_is_reached_too() -> None:
    loop = asyncio.get_running_loop()
    among = Deadlines(loop, LIMIT_S)
    began = asyncio.Event()

    async def waiting() -> None:
        with Deadline(among):
            began.set()
            try:
                await asyncio.sleep(FOREVER_S)
            finally:
                while loop.time() < among_ends:  # both have come before the block ends
                    await asyncio.sleep(0.001)
                await asyncio.sleep(LIMIT_S)

    task = asyncio.create_task(waiting())
    await began.wait()
    among_ends = loop.time() + LIMIT_S
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_limit_inside_another_ends_alone() -> None:
    loop = asyncio.get_running_loop()
    outer, inner = Deadlines(loop, FOREVER_S), Deadlines(loop, LIMIT_S)
    with Deadline(outer) as long:
        assert await wait(inner) < FOREVER_S
        await asyncio.sleep(0)
    assert not long.has_expired


async def test_a_future_that_somebody_awaits_ends_at_the_limit_and_an_answered_one_does_not() -> None:
    loop = asyncio.get_running_loop()
    among = Deadlines(loop, LIMIT_S)
    answered, silent = loop.create_future(), loop.create_future()
    began = loop.time()
    for each in (answered, silent):
        among.begin(each)
    answered.set_result(1)
    with pytest.raises(TimeoutError):
        await silent
    assert loop.time() - began >= LIMIT_S - ROUNDED_S
    assert await answered == 1
    assert [among.end(each) for each in (answered, silent)] == [None, None]
    among.begin(timed := loop.create_future())
    ends_at = among.end(timed)
    assert ends_at is not None
    assert ends_at > loop.time()


async def test_a_task_that_is_cancelled_when_its_future_reaches_the_limit_hears_of_that() -> None:
    loop = asyncio.get_running_loop()
    among = Deadlines(loop, LIMIT_S)
    future: asyncio.Future[None] = loop.create_future()

    async def waiting() -> None:
        among.begin(future)
        await future

    future.add_done_callback(lambda _: task.cancel())  # called before the task is woken, which waits later
    task = asyncio.create_task(waiting())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
