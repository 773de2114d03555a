"""Schedules that broke an invariant once, each with what was wrong."""

from __future__ import annotations

import pytest
from tests.model.simulation.run import replay


@pytest.mark.parametrize(
    "seed",
    [
        # A delivery from a timers' stream that was lost came late; its ack removed another timer from the new stream.
        6472,
    ],
)
def test_a_schedule_that_was_broken_holds(seed: int) -> None:
    result, text = replay(seed)
    assert result.violations == [], text
