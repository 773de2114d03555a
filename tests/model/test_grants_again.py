"""Grants decided again, and what would have been with other limits: over histories that random worlds wrote."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.model.grant_simulation import World
from tests.support.grant_worlds import T0, Ledger, Reactor, completed, fold, held, limit, started

from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.limits.definition import LimitSet, Override, evolve
from jobledger.ledger.model.limits.flow import Granted, GrantedJob
from jobledger.ledger.model.limits.grants import POLICY, Granter
from jobledger.ledger.model.limits.recompute import Author, GrantComparison, Recomputation
from jobledger.ledger.model.limits.simulation import KeyWaits, WaitRecord, recorded, simulated


def _recomputed(events: list[Envelope]) -> GrantComparison:
    found = GrantComparison()
    for author in sorted({Author(event.by, event.began) for event in events if isinstance(event, Granted)}):
        again = Recomputation(author, Granter())
        for sequence, event in enumerate(events, 1):
            again.feed(event, sequence)
        found += again.found
    return found


def test_grants_of_one_reactor_come_out_the_same() -> None:
    for seed in range(3):
        found = _recomputed(World(seed, reactors=1, rates=False).run().ledger.events)
        assert found.grants > 20
        assert (found.different, found.differences) == (0, ())


def test_grants_of_reactors_that_race_and_restart_come_out_the_same() -> None:
    worlds = [World(seed, rates=False).run() for seed in range(1, 5)]
    assert sum(world.refused for world in worlds) > 15
    found = sum((_recomputed(world.ledger.events) for world in worlds), GrantComparison())
    assert found.grants > 150
    assert (found.different, found.unknown, found.differences) == (0, 0, ())


@pytest.mark.parametrize(
    "options",
    [{"changes": False}, {"rates": False, "modes": ("newest", "replace", "drop")}],
    ids=["rates", "modes"],
)
def test_grants_of_which_the_ledger_does_not_tell_enough_are_counted_apart(options: dict[str, Any]) -> None:
    found = sum(
        (_recomputed(World(seed, **options).run().ledger.events) for seed in range(6)), GrantComparison()
    )
    assert found.grants > 100
    assert (found.different, found.differences) == (0, ())
    assert 0 < found.unknown == found.unknown_starts + found.unknown_cancels < found.grants / 2
    assert bool(found.unknown_cancels) is ("modes" in options)


def test_the_weight_of_a_fairness_key_is_that_of_the_job_with_which_it_came_back() -> None:
    """It followed from the job that made it, which a reactor forgets at a moment that no event tells."""
    granter = Granter()
    events = [
        limit("g", 1),
        limit("t", 5, weight=4.0),
        held("a", "g", fair="x"),
        completed("a"),
        held("b", "t:x", fair="x"),
    ]
    fold(granter, 1, events[0])
    fold(granter, 2, events[1])
    fold(granter, 3, events[2])
    granter.decide(T0)
    granter.confirm(4)
    fold(granter, 5, events[3])
    fold(granter, 6, events[4])
    assert granter.shares[1, "x"].weight == 4.0


def test_a_grant_of_another_job_than_the_one_whose_turn_it_was_is_told() -> None:
    events = list(World(1, reactors=1, rates=False).run().ledger.events)
    place = next(n for n, event in enumerate(events) if isinstance(event, Granted) and len(event.jobs) > 2)
    granted = events[place]
    assert isinstance(granted, Granted)
    first, second, *rest = granted.jobs
    events[place] = msgspec.structs.replace(granted, jobs=(second, first, *rest))
    found = _recomputed(events)
    assert found.different >= 1
    told = found.differences[0]
    assert (told.stream_sequence, told.at) == (place + 1, 0)
    assert (told.recorded, told.recomputed) == (f"{second.queue}/{second.job}", f"{first.queue}/{first.job}")


@pytest.mark.parametrize("limit_name", ["plain", "last"])
def test_a_mode_makes_unknown_only_the_grants_that_it_can_reach(limit_name: str) -> None:
    events: list[Envelope] = [limit("plain", 1), limit("last", 1, mode="newest")]
    events += [
        held("m", "last:x", fair="m", priority="low"),
        held("a", limit_name, fair="t"),
        held("b", limit_name, fair="t"),
    ]
    # The turn of "a", but where "b" supersedes it.
    job, number = ("b", 5) if limit_name == "plain" else ("a", 4)
    jobs = (GrantedJob(queue="q", job=job, held=number),)
    events.append(
        Granted(at=T0, by="r", shard="main", through=5, limits_sequence=2, jobs=jobs, policy=POLICY, began=0)
    )
    found = _recomputed(events)
    assert (found.different, found.unknown_cancels) == ((1, 0) if limit_name == "plain" else (0, 1))


def test_grants_by_other_rules_are_counted_and_not_compared() -> None:
    events = [
        msgspec.structs.replace(event, policy=99) if isinstance(event, Granted) else event
        for event in World(1, reactors=1).run().ledger.events
    ]
    found = _recomputed(events)
    assert found.other_policy > 20
    assert found.grants == 0


class Morning:
    """Jobs of two tenants that come at once and take ten seconds each; each tenant has one slot, or others after 20 s."""

    def __init__(self, jobs: int = 6, later: int = 1) -> None:
        self.ledger = Ledger()
        self.times: list[timedelta] = []
        self.reactor = Reactor(self.ledger)
        self.now = timedelta()
        self.add(limit("tenant", 1))
        for n in range(jobs):
            for tenant in ("a", "b"):
                self.add(held(f"{tenant}{n}", f"tenant:{tenant}"))
        for turn in range(jobs):
            if turn == 2 and later != 1:
                self.add(limit("tenant", later))
            self.reactor.read()
            decision = self.reactor.act(T0 + self.now)
            if decision is None:
                break
            self.times.append(self.now)
            self.now += timedelta(seconds=10)
            for each in decision.grants:
                self.add(completed(each.job))

    def add(self, event: Envelope) -> None:
        self.ledger.add(event)
        self.times.append(self.now)

    def recording(self, begin_s: float = 0, end_s: float = 1_000) -> WaitRecord:
        recording = WaitRecord(T0 + timedelta(seconds=begin_s), T0 + timedelta(seconds=end_s))
        for sequence, (event, at) in enumerate(zip(self.ledger.events, self.times, strict=True), 1):
            if T0 + at > recording.end:
                break
            recording.feed(event, sequence, T0 + at)
        recording.done()
        return recording

    def with_slots(self, slots: int, **more: float) -> dict[str, KeyWaits]:
        event: LimitSet = limit("tenant", slots)
        return simulated(self.recording(**more), {"tenant": evolve(None, event, 1)})


def test_with_the_same_limits_jobs_wait_as_long_as_they_did() -> None:
    morning = Morning()
    waits = recorded(morning.recording())
    assert [waits["tenant:a"].p50_s, waits["tenant:a"].p99_s, waits["tenant:a"].jobs] == [20, 40, 6]
    assert waits == simulated(morning.recording(), {})
    assert waits == morning.with_slots(1)


def test_with_more_slots_they_wait_less_and_with_none_they_starve() -> None:
    morning = Morning()
    more = morning.with_slots(3)["tenant:b"]
    assert (more.p50_s, more.longest_s, more.starves) == (0, 10, False)
    none = morning.with_slots(0)["tenant:b"]
    assert (none.granted, none.longest_s, none.starves) == (0, 1_000, True)


def test_a_limit_that_was_changed_in_the_span_changes_at_that_moment_unless_it_is_given() -> None:
    morning = Morning(later=2)
    same = recorded(morning.recording())
    assert [same["tenant:a"].p50_s, same["tenant:a"].longest_s] == [20, 30]
    assert simulated(morning.recording(), {}) == same
    assert simulated(morning.recording(begin_s=-1), {}) == recorded(morning.recording(begin_s=-1)), (
        "set in it"
    )
    assert morning.with_slots(1)["tenant:a"].longest_s == 50


def test_who_waits_or_runs_at_the_beginning_counts_from_there() -> None:
    morning = Morning()
    same = recorded(morning.recording(begin_s=15, end_s=35))
    assert same == morning.with_slots(1, begin_s=15, end_s=35)
    assert (same["tenant:a"].jobs, same["tenant:a"].granted, same["tenant:a"].longest_s) == (4, 2, 20)


def _rated(
    begin_s: float, end_s: float = 100, **changes: Any
) -> tuple[dict[str, KeyWaits], dict[str, KeyWaits]]:
    """Record jobs that come at once where one may start every ten seconds; return that, and what changes make of it."""
    api = limit("api", rate=0.1, burst=1)
    events: list[tuple[float, Envelope]] = [(0, api), *((0, held(f"j{n}", "api")) for n in range(6))]
    ledger = Ledger()
    for _, event in events:
        ledger.add(event)
    reactor = Reactor(ledger)
    for n in range(6):
        now = 10.0 * n
        reactor.read()
        decision = reactor.act(T0 + timedelta(seconds=now))
        assert decision is not None
        (grant,) = decision.grants
        events.append((now, ledger.events[-1]))
        for after, event in ((1, started(grant.job)), (2, completed(grant.job))):
            ledger.add(event)
            events.append((now + after, event))
    recording = WaitRecord(T0 + timedelta(seconds=begin_s), T0 + timedelta(seconds=end_s))
    for sequence, (at, event) in enumerate(events, 1):
        if at <= end_s:
            recording.feed(event, sequence, T0 + timedelta(seconds=at))
    recording.done()
    wished = {"api": evolve(None, msgspec.structs.replace(api, **changes), 1)} if changes else {}
    return recorded(recording), simulated(recording, wished)


def test_with_the_same_rate_jobs_wait_as_long_as_they_did_also_where_it_was_used_before() -> None:
    for begin_s in (0, 15, 35):
        was, would = _rated(begin_s)
        assert was == would
    late = _rated(35)[1]["api"]
    assert (late.p50_s, late.longest_s, late.granted) == (5, 15, 2)


def test_another_rate_or_burst_is_simulated() -> None:
    twice = _rated(0, rate=0.2)[1]["api"]
    assert (twice.p50_s, twice.longest_s) == (10, 25)
    burst = _rated(0, burst=3)[1]["api"]
    assert (burst.p50_s, burst.longest_s) == (0, 30)
    key = _rated(0, overrides={"": Override(rate=1.0)})[1]["api"]
    assert key.longest_s == 5
