"""The other half of the simulated schedules: a file of its own, so that two processes can share them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.model.simulation.sweep import COUNT, FIRST, sweep


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    "JOBLEDGER_SIM_SEED" in os.environ,
    reason="JOBLEDGER_SIM_SEED asks for one schedule; test_simulation.py plays it",
)
def test_no_schedule_of_the_second_half_breaks_an_invariant(
    record_property: Callable[[str, object], None],
) -> None:
    record_property("simulation", sweep(FIRST + COUNT // 2, COUNT - COUNT // 2))
