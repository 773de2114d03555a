"""Whose turn it is among queues of one priority: slots in the proportion of the weights, whatever their number."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
from tests.support.tables import each_row

from jobledger.workers.attempt.intake import Lane, next_lane


def _lanes(*weights: int) -> list[Lane]:
    return [Lane(f"q{number}", "normal", weight, cast("Any", None)) for number, weight in enumerate(weights)]


@each_row("wanted", [1, 2, 7, 100])
@each_row("weights", [(1, 1), (3, 1), (5, 1, 1), (100, 1)])
def test_slots_are_shared_by_weight(weights: tuple[int, ...], wanted: int) -> None:
    lanes = _lanes(*weights)
    given = dict.fromkeys((lane.queue for lane in lanes), 0)
    for _ in range(2_000):
        lane, amount = next_lane(lanes, wanted)
        assert 1 <= amount <= wanted
        given[lane.queue] += amount
    for lane in lanes:
        share = lane.weight / sum(weights)
        assert given[lane.queue] / sum(given.values()) == pytest.approx(share, abs=0.02)


def test_a_hundred_slots_that_are_free_at_once_do_not_all_go_to_one_queue() -> None:
    lanes, left = _lanes(3, 1), 100
    given = {"q0": 0, "q1": 0}
    while left:
        lane, amount = next_lane(lanes, left)
        given[lane.queue] += amount
        left -= amount
    assert given == {"q0": 75, "q1": 25} or abs(given["q0"] - 75) <= 5


def test_no_queue_waits_longer_than_the_weights_of_the_others() -> None:
    lanes = _lanes(9, 1)
    turns = [next_lane(lanes, 1)[0].queue for _ in range(100)]
    gaps = [index for index, queue in enumerate(turns) if queue == "q1"]
    assert max(later - earlier for earlier, later in itertools.pairwise(gaps)) <= 10
