"""Every bug that is planted is found by the simulation: it is no simulation that only shows that all is well."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.model.simulation.mutations import (
    MUTATIONS,
    Planted,
    accept_the_outcome_of_a_stale_claim,
    claim_without_a_look_at_the_lease,
    dispatch_whatever_the_job_waits_for_by_now,
    keep_a_lease_beyond_its_end,
    note_all_there_is_as_settled,
    take_a_lost_race_for_won,
    take_over_without_a_look_at_the_lease,
)
from tests.model.simulation.run import run_seeds

#: So many schedules are tried for each planted bug, from where the search begins.
SEEDS_TO_FIND_A_BUG = 1_500
#: Where the search begins for a bug that chance finds late: the schedules before take long and find nothing.
LATE: dict[Callable[[], Planted], int] = {
    claim_without_a_look_at_the_lease: 4_260,
    take_over_without_a_look_at_the_lease: 120,
    take_a_lost_race_for_won: 65,
    keep_a_lease_beyond_its_end: 5_425,  # the rarest: about two of 7,500 schedules find it
    accept_the_outcome_of_a_stale_claim: 755,
    dispatch_whatever_the_job_waits_for_by_now: 195,
    note_all_there_is_as_settled: 15,
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", MUTATIONS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[], Planted]) -> None:
    first = LATE.get(plant, 0)
    with plant():
        totals = run_seeds(range(first, first + SEEDS_TO_FIND_A_BUG), failures_max=1, always=MUTATIONS[plant])
    assert totals.failed, f"{totals.schedules} schedules did not find it"
    seed, what = totals.failed[0]
    assert "TypeError" not in what, "the planted bug does not fit what it replaces, and breaks nothing else"
    assert f"--seed {seed}" in totals.report()
