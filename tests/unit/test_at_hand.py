"""Deliveries at hand: kept only while jobs are short, begun in their order, and never for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.working import until

from jobledger.workers.attempt.at_hand import AtHand

pytestmark = pytest.mark.anyio
SHORT_S, LONG_S = 0.001, 0.5


def _made(slots: int = 3, *, jobs_s: float | None = SHORT_S) -> tuple[AtHand, list[Any]]:
    back: list[Any] = []
    made = AtHand(asyncio.get_running_loop(), slots, back.append)
    if jobs_s is not None:
        for _ in range(100):
            made.ran(jobs_s)
    return made, back


@pytest.mark.parametrize("jobs_s", [None, LONG_S], ids=["before any job", "after long ones"])
async def test_nothing_is_kept_unless_jobs_are_short(jobs_s: float | None) -> None:
    made, back = _made(jobs_s=jobs_s)
    assert (made.room, made.add(_delivery(1)), len(made.waiting), back) == (0, False, 0, [])


async def test_as_many_are_kept_as_there_are_slots_and_the_oldest_comes_first() -> None:
    made, back = _made(slots=2)
    one, two, three = _delivery(1), _delivery(2), _delivery(3)
    assert made.room == 2
    assert [made.add(each) for each in (one, two, three)] == [True, True, False]
    assert (made.room, len(made.waiting)) == (0, 2)
    assert [made.waiting.popleft()[0] for _ in range(2)] == [one, two]
    assert back == []


async def test_what_waits_too_long_goes_back_and_nothing_is_kept_until_jobs_are_short_again() -> None:
    made, back = _made()
    one, two = _delivery(1), _delivery(2)
    assert made.add(one)
    assert made.add(two)
    await until(lambda: back == [one, two])
    assert (len(made.waiting), made.room) == (0, 0)
    for _ in range(100):
        made.ran(SHORT_S)
    assert made.add(one)
    await until(lambda: back == [one, two, one])


async def test_a_worker_that_stops_gives_all_back_at_once() -> None:
    made, back = _made()
    one, two = _delivery(1), _delivery(2)
    assert made.add(one)
    assert made.add(two)
    made.give_back()
    assert (back, len(made.waiting)) == ([one, two], 0)


def _delivery(number: int) -> Any:
    """A delivery of which only its identity matters here."""
    return ("delivery", number)
