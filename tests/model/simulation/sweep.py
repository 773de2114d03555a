"""Many schedules as one assertion, for the test suite."""

from __future__ import annotations

import os

from tests.model.simulation.faults import KINDS
from tests.model.simulation.run import run_many

#: What most planted bugs need; `make simulate` goes on where these end.
COUNT = int(os.environ.get("JOBLEDGER_SIM_COUNT", "300"))
FIRST = int(os.environ.get("JOBLEDGER_SIM_FIRST", "0"))
_ENOUGH_FOR_EVERY_KIND = 300
#: Seeds by which deliveries come in another order, and an advisory of the server is lost: both are seldom.
_SELDOM = (4051, 532)


def sweep(first: int, count: int) -> str:
    """Run schedules, in two processes, and return the totals.

    One alone would be the last of the tests to end, with the other cores idle.

    Raises: AssertionError with the seeds when an invariant was broken, or when a kind of fault never happened.
    """
    seeds = sorted({*range(first, first + count), *_SELDOM})
    totals = run_many(seeds, processes=min(2, os.cpu_count() or 1))
    report = totals.report()
    assert totals.failed == [], report
    assert totals.schedules == len(seeds)
    if count >= _ENOUGH_FOR_EVERY_KIND:
        assert [kind for kind in KINDS if not totals.faults[kind]] == [], f"never happened; {report}"
    return report
