"""The lines of jobs that wait for limits: first held, first granted, in whatever order a reader hears of them."""

from __future__ import annotations

import random

import pytest
from tests.support.grant_worlds import T0, MemorySpill, completed, fold, held, limit

from jobledger.ledger.model.limits.grants import Granter


@pytest.mark.parametrize("seed", range(6))
def test_jobs_are_granted_in_the_order_in_which_they_were_held_however_late_they_are_heard_of(
    seed: int,
) -> None:
    chance, spill = random.Random(seed), MemorySpill()
    granter = Granter(spill, heads_max=3, in_memory_max=8)
    fold(granter, 1, limit("one", 1))
    fold(granter, 2, limit("two", 1))
    waiting = list(range(3, 63))
    chance.shuffle(waiting)
    lines = (("one",), ("one", "two"))
    order: dict[tuple[str, ...], list[int]] = {each: [] for each in lines}
    while waiting or len(granter.lines):
        for number in waiting[:3]:
            of = lines[number % 2]
            granter.wait(("q", f"{number}"), (1, "q", "f", of), number, is_new=False)
        del waiting[:3]
        if len(waiting) > 20:
            continue  # let the lines grow before anybody is granted
        known = {
            of: min((e.held for e, _ in granter.lines.oldest() if e.limits == of), default=0) for of in lines
        }
        (grant,) = granter.decide(T0).grants
        of = lines[grant.held % 2]
        assert grant.held == known[of] == min(each for each in known.values() if each)
        granter.confirm(1_000)
        fold(granter, 1_001, completed(grant.job))
        order[of].append(grant.held)
    assert spill.most > 0
    assert sum(map(len, order.values())) == 60
    assert not granter.lines.spilled


def test_a_job_that_is_heard_of_late_comes_first_also_where_its_line_was_looked_at() -> None:
    granter = Granter()
    fold(granter, 1, limit("one", 1))
    fold(granter, 2, held("holds", "one"))
    granter.decide(T0)
    granter.confirm(3)
    fold(granter, 9, held("b", "one"))
    fold(granter, 10, held("other", "one", fair="x"))
    assert not granter.decide(T0).grants
    granter.wait(("q", "a"), (1, "q", "", ("one",)), 5, is_new=False)
    fold(granter, 11, completed("holds"))
    found = []
    for sequence in range(12, 18, 2):
        (grant,) = granter.decide(T0).grants
        found.append(grant.job)
        granter.confirm(sequence)
        fold(granter, sequence + 1, completed(grant.job))
    assert found.index("a") < found.index("b")
