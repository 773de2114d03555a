"""Who is granted next: random worlds against invariants, and directed cases."""

from __future__ import annotations

from datetime import timedelta

from tests.support.grant_worlds import T0, completed, fold, held, limit

from jobledger.ledger.model.limits.grants import Granter


def _granter(*events: object) -> Granter:
    granter = Granter()
    for sequence, event in enumerate(events, 1):
        fold(granter, sequence, event)  # type: ignore[arg-type]
    return granter


def _decided(granter: Granter, **more: float) -> list[str]:
    decision = granter.decide(T0 + timedelta(seconds=more.get("after_s", 0.0)))
    if decision.grants:
        granter.through += 1
        granter.confirm(granter.through)
    return [each.job for each in decision.grants]


def test_no_more_jobs_hold_a_slot_than_there_are() -> None:
    granter = _granter(limit("g", 2), *(held(f"j{n}", "g") for n in range(5)))
    assert _decided(granter) == ["j0", "j1"]
    assert _decided(granter) == []
    granter.job(completed("j1"), 9)
    assert _decided(granter) == ["j2"]


def test_a_limit_without_a_definition_grants_nothing() -> None:
    granter = _granter(limit("g", 2), held("a", "g", "other"), held("b", "g"))
    assert _decided(granter) == ["b"]


def test_what_was_refused_is_decided_again() -> None:
    granter = _granter(limit("g", 2), *(held(f"j{n}", "g", f"t:{n}") for n in range(5)), limit("t", 1))
    first = granter.decide(T0).grants
    granter.take_back()
    assert granter.decide(T0).grants == first


def test_a_rate_lets_a_burst_through_and_then_one_by_one() -> None:
    granter = _granter(limit("r", rate=1.0, burst=2), *(held(f"j{n}", "r") for n in range(5)))
    assert _decided(granter) == ["j0", "j1"]
    for job in ("j0", "j1"):
        granter.started(("q", job))
    assert _decided(granter) == []
    assert _decided(granter, after_s=1.0) == ["j2"]


def test_jobs_of_a_closed_queue_are_passed_over() -> None:
    granter = _granter(limit("g", 1), held("a", "g", queue="paused"), held("b", "g"))
    granter.close("paused")
    assert _decided(granter) == ["b"]
    granter.job(completed("b"), 5)
    assert _decided(granter) == []
    granter.open("paused")
    assert _decided(granter) == ["a"]
