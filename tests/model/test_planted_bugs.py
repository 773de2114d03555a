"""Every bug that is planted is found by the simulation: it is no simulation that only shows that all is well."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.model.simulation.mutations import MUTATIONS, Planted, keep_a_lease_beyond_its_end
from tests.model.simulation.run import run_seeds

#: A planted bug that this many schedules do not find would not be found by a nightly run either.
SEEDS_TO_FIND_A_BUG = 1_500
#: Where the search begins for a bug that chance finds late: the schedules before take long and find nothing.
LATE: dict[Callable[[], Planted], int] = {keep_a_lease_beyond_its_end: 1_100}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", MUTATIONS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[], Planted]) -> None:
    with plant():
        totals = run_seeds(
            range(LATE.get(plant, 0), SEEDS_TO_FIND_A_BUG), failures_max=1, always=MUTATIONS[plant]
        )
    assert totals.failed, f"{totals.schedules} schedules did not find it"
    seed, _ = totals.failed[0]
    assert f"--seed {seed}" in totals.report()
