"""Delays of deliveries: none of them lets the deliveries of a dispatch be used up in moments."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tests.support.tables import each_row

from jobledger.ledger.nats.durables import DELIVERIES_MAX
from jobledger.workers.attempt import settlement

MINUTE_S = 60.0


@each_row(
    ("delay", "least_s", "most_s"),
    [
        (settlement.full_ledger_s, 30 * MINUTE_S, 40 * MINUTE_S),
        (settlement.unreadable_s, 80 * MINUTE_S, 100 * MINUTE_S),
        (settlement.elsewhere_s, 25 * MINUTE_S, 60 * MINUTE_S),
        (functools.partial(settlement.soon_s, 0.25), 30 * MINUTE_S, 60 * MINUTE_S),
        (settlement.no_lease_s, 5 * MINUTE_S, 10 * MINUTE_S),
        (functools.partial(settlement.held_elsewhere_s, 3.0), 5 * MINUTE_S, 10 * MINUTE_S),
    ],
)
def test_all_deliveries_together_take_a_while(
    delay: Callable[[int], float], least_s: float, most_s: float
) -> None:
    each = [delay(count) for count in range(1, DELIVERIES_MAX)]
    assert each == sorted(each)
    assert least_s <= sum(each) <= most_s


def test_an_unknown_task_is_offered_for_some_eighty_minutes_before_the_last_delivery() -> None:
    assert settlement.UNKNOWN_TASK_DELIVERIES_MAX == DELIVERIES_MAX - 1
    each = [settlement.unknown_task_s(count) for count in range(1, settlement.UNKNOWN_TASK_DELIVERIES_MAX)]
    assert each == sorted(each)
    assert 75 * MINUTE_S <= sum(each) <= 85 * MINUTE_S


def test_a_dead_workers_job_is_not_kept_waiting_at_first() -> None:
    assert [settlement.held_elsewhere_s(3.0, count) for count in (1, 2, 6, 7)] == [3.0, 3.0, 3.0, 6.0]
    assert settlement.elsewhere_s(1) == 0.0


def test_a_worker_that_just_lost_its_lease_keeps_no_dispatch_for_minutes() -> None:
    """However often its workers died before: it was held for four minutes at its tenth delivery."""
    assert [settlement.no_lease_s(count) for count in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert max(settlement.no_lease_s(count) for count in range(1, DELIVERIES_MAX + 1)) == 30.0
