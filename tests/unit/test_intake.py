"""Whose turn it is among queues of one priority: slots in the proportion of the weights, whatever their number."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, cast

import pytest
from tests.support.tables import each_row

from jobledger.workers.attempt.lanes import Lane, Tier


def _lanes(*weights: int) -> list[Lane]:
    return [Lane(f"q{number}", "normal", weight, cast("Any", None)) for number, weight in enumerate(weights)]


def _tier(lanes: list[Lane]) -> Tier:
    tier = Tier()
    for lane in lanes:
        tier.place(lane)
    return tier


@each_row("wanted", [1, 2, 7, 100])
@each_row("weights", [(1, 1), (3, 1), (5, 1, 1), (100, 1)])
def test_slots_are_shared_by_weight(weights: tuple[int, ...], wanted: int) -> None:
    lanes = _lanes(*weights)
    tier = _tier(lanes)
    given = dict.fromkeys((lane.queue for lane in lanes), 0)
    for _ in range(2_000):
        lane, amount = tier.next(wanted)
        assert 1 <= amount <= wanted
        given[lane.queue] += amount
    for lane in lanes:
        share = lane.weight / sum(weights)
        assert given[lane.queue] / sum(given.values()) == pytest.approx(share, abs=0.02)


def test_a_hundred_slots_that_are_free_at_once_do_not_all_go_to_one_queue() -> None:
    tier, left = _tier(_lanes(3, 1)), 100
    given = {"q0": 0, "q1": 0}
    while left:
        lane, amount = tier.next(left)
        given[lane.queue] += amount
        left -= amount
    assert given == {"q0": 75, "q1": 25} or abs(given["q0"] - 75) <= 5


def test_no_queue_waits_longer_than_the_weights_of_the_others() -> None:
    tier = _tier(_lanes(9, 1))
    turns = [tier.next(1)[0].queue for _ in range(100)]
    gaps = [index for index, queue in enumerate(turns) if queue == "q1"]
    assert max(later - earlier for earlier, later in itertools.pairwise(gaps)) <= 10


def test_a_queue_that_runs_empty_again_and_again_has_its_share_of_the_turns_in_which_it_has_work() -> None:
    lanes = _lanes(1, 1, 1)
    tier, given = _tier(lanes), Counter[str]()
    for turn in range(3_000):
        lanes[0].empty = turn % 3 == 0  # it is asked in two of three turns
        tier.place(lanes[0])
        lane, amount = tier.next(1)
        assert not lane.empty
        given[lane.queue] += amount
    assert given == pytest.approx({"q0": 2_000 / 3, "q1": 3_500 / 3, "q2": 3_500 / 3}, abs=5)


def test_a_lane_that_cannot_be_asked_is_not_and_one_that_had_nothing_is_every_other_time() -> None:
    lanes = _lanes(1, 1, 1)
    tier = _tier(lanes)
    tier.place(lanes[0], may_be_asked=False)
    lanes[1].empty = True
    tier.place(lanes[1])
    assert [tier.next(5)[0].queue for _ in range(4)] == ["q2"] * 4
    assert Counter(tier.next_of_all(5)[0].queue for _ in range(10)) == {"q1": 5, "q2": 5}
    tier.place(lanes[2], may_be_asked=False)
    assert tier, "q1 had nothing, and may be asked"
    assert tier.next_of_all(5) == (lanes[1], 5)
    tier.place(lanes[1], may_be_asked=False)
    assert not tier
