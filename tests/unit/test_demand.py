"""How many workers a queue needs, by what comes in, what waits, and how long attempts take."""

from __future__ import annotations

import pytest

from jobledger.projections.queries.demand import Demand


@pytest.mark.parametrize(
    ("demand", "workers"),
    [
        (Demand(), 0),
        (Demand(waiting=1), 1),  # nobody knows yet how long an attempt takes
        (Demand(waiting=5_000), 1),
        (Demand(waiting=1_500, attempt_s=0.3), 5),  # 1,500 in 10 s, 0.3 s each, 10 at once
        (Demand(enqueued_per_s=10.0, attempt_s=0.3), 1),
        (Demand(enqueued_per_s=100.0, attempt_s=0.5), 5),
        (Demand(enqueued_per_s=100.0, waiting=1_000, attempt_s=0.5), 10),
        (Demand(running=25), 3),  # they keep their slots
        (Demand(waiting=1_500, running=3, attempt_s=0.3, is_paused=True), 0),
    ],
)
def test_so_many_workers_have_the_slots_that_are_wanted(demand: Demand, workers: int) -> None:
    assert demand.workers(concurrency=10, target_s=10.0) == workers


def test_a_shorter_target_wants_more_slots() -> None:
    demand = Demand(waiting=100, attempt_s=1.0)
    assert [demand.slots(target_s) for target_s in (100.0, 10.0, 1.0)] == [1.0, 10.0, 100.0]
