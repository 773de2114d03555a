"""Who is granted next: random histories against invariants, planted faults, and directed cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.model.grant_simulation import World, recomputed
from tests.support.grant_worlds import T0, Ledger, Reactor, completed, fold, held, limit

from jobledger.ledger.model.events import Cancelled
from jobledger.ledger.model.limits.definition import Override, Terms
from jobledger.ledger.model.limits.flow import MAIN, Granted, GrantedJob
from jobledger.ledger.model.limits.grants import LOWEST_FIRST_EVERY, Granter
from jobledger.ledger.model.limits.guard import LATER, Guard
from jobledger.ledger.model.limits.holders import Holders, JobKey, JobSlots

SEEDS = range(6)
ALL_MODES: dict[str, Any] = {"modes": ("queue", "newest", "replace", "drop"), "keeps": ("attempt", "job")}


@pytest.mark.parametrize("options", [{}, ALL_MODES], ids=["queue", "all modes"])
def test_whatever_happens_no_limit_is_exceeded_no_line_overtaken_and_no_job_forgotten(
    options: dict[str, Any],
) -> None:
    worlds = [World(seed, **options).run() for seed in SEEDS]
    for world in worlds:
        world.drain()
    assert sum(world.granted for world in worlds) > 100 * len(SEEDS)
    assert all(sum(getattr(world, what) for world in worlds) > 30 for what in ("refused", "restarts"))


def _count_by_window(patch: pytest.MonkeyPatch) -> None:
    """Forget who was granted before the newest four: a window of grants instead of those that hold."""
    put = Holders.put

    def put_and_forget(self: Holders, job: JobKey, holding: JobSlots | None) -> None:
        put(self, job, holding)
        for key, jobs in self.by_key.items():
            self.by_key[key] = dict.fromkeys(each for each in jobs if each in list(self.jobs)[-4:])

    patch.setattr(Holders, "put", put_and_forget)


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None] | None, dict[str, Any], str]] = {
    "count by window": (_count_by_window, {}, "hold"),
    "no condition": (None, {"conditional": False}, "hold|was granted after"),
    "forgotten redrive": (None, {"redrive": False}, "are left for ever"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, options, message = PLANTED[fault]
    if plant is not None:
        plant(monkeypatch)

    def run() -> None:
        for seed in range(50):
            World(seed, **options).run().drain()

    with pytest.raises(AssertionError, match=message):
        run()


def _never_passed(*_: object) -> None:
    """Take the guard away."""


def _ends_until_both(ends: int) -> int | None:
    """Return after how many ends a job was granted that needs two keys which are free in turns; None: not at all."""
    granter = _granter(limit("a", 1), limit("b", 1), held("a0", "a"), held("b0", "b"))
    runs = dict(zip("ab", _decided(granter), strict=True))
    granter.job(held("both", "a", "b"), granter.through + 1)
    for end in range(ends):
        key = "ab"[end % 2]
        granter.job(held(f"{key}{end + 1}", key), granter.through + 1)
        if key in runs:
            granter.job(completed(runs.pop(key)), granter.through + 1)
        for job in _decided(granter):
            if job == "both":
                return end
            runs[job[0]] = job
    return None


def test_a_job_that_needs_two_keys_is_granted_after_few_others() -> None:
    found = _ends_until_both(5_000)
    assert found is not None
    assert found <= 2 * LATER + 2  # `LATER` grants at each of two keys, and the end of both holders


def test_without_the_guard_that_job_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "passed", _never_passed)
    assert _ends_until_both(5_000) is None


def _most_overtakings(seed: int, ends: int) -> int:
    """Let jobs that need any of three keys crowd; return how many younger ones passed some job at each of its keys."""
    pick = random.Random(seed)
    lines = [keys for size in (1, 2, 3) for keys in itertools.combinations("abc", size)]
    granter = _granter(*(limit(key, pick.randint(1, 2)) for key in "abc"))
    waiting: dict[str, tuple[int, tuple[str, ...]]] = {}
    granted: dict[str, list[int]] = {key: [] for key in "abc"}
    runs: list[str] = []
    worst = 0
    for _ in range(ends):
        for keys in lines:
            if sum(each == keys for _, each in waiting.values()) < 2:
                sequence = granter.through + 1
                granter.job(held(f"j{sequence}", *keys), sequence)
                waiting[f"j{sequence}"] = (sequence, keys)
        for job in _decided(granter):
            sequence, keys = waiting.pop(job)
            worst = max(worst, min(sum(each > sequence for each in granted[key]) for key in keys))
            for key in keys:
                granted[key].append(sequence)
            runs.append(job)
        granter.job(completed(runs.pop(pick.randrange(len(runs)))), granter.through + 1)
    left = [
        min(sum(each > sequence for each in granted[key]) for key in keys)
        for sequence, keys in waiting.values()
    ]
    return max(worst, *left)


def test_nobody_waits_longer_than_the_guard_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    # `LATER` at each key, and then one turn of each of the seven lines, of which each has at most two slots.
    assert max(_most_overtakings(seed, 600) for seed in range(4)) <= LATER + 7 * 2
    monkeypatch.setattr(Guard, "passed", _never_passed)
    assert max(_most_overtakings(seed, 600) for seed in range(4)) > 2 * (LATER + 7 * 2)


def test_one_reactor_that_was_written_and_read_again_decides_as_one_that_was_not() -> None:
    for seed in range(6):
        world = World(seed, keeps=("attempt", "job"), reactors=1).run()
        assert world.restarts
        grants, differ = recomputed(world.ledger.since(0))
        assert grants > 20
        assert not differ


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


def test_a_grant_counts_for_the_rate_that_its_author_knew() -> None:
    """Whoever reads that the rate is gone before it reads the grant: a rate that comes back counts from there."""
    granter = _granter(limit("r", rate=1.0), held("a", "r"), held("b", "r"), limit("r", 9))
    granted = Granted(
        shard=MAIN,
        at=T0,
        by="t",
        through=3,
        limits_sequence=1,
        jobs=(GrantedJob(queue="q", job="a", held=2),),
    )
    granter.granted(granted, 5)
    granter.started(("q", "a"))
    granter.limit(limit("r", rate=1.0), 6)
    assert _decided(granter, after_s=0.9) == []
    assert _decided(granter, after_s=1.0) == ["b"]


def test_jobs_of_a_closed_queue_are_passed_over() -> None:
    granter = _granter(limit("g", 1), held("a", "g", queue="paused"), held("b", "g"))
    granter.close("paused")
    assert _decided(granter) == ["b"]
    granter.job(completed("b"), 5)
    assert _decided(granter) == []
    granter.open("paused")
    assert _decided(granter) == ["a"]


def _others(granter: Granter, jobs: list[str]) -> list[str]:
    """End jobs one by one; return who was granted instead."""
    found: list[str] = []
    for job in jobs:
        granter.job(completed(job), granter.through + 1)
        found += _decided(granter)
    return found


def test_ten_jobs_of_a_small_tenant_do_not_wait_behind_a_thousand_of_another() -> None:
    big = [held(f"big{n}", "g", fair="big") for n in range(1_000)]
    granter = _granter(limit("g", 10), *big)
    runs = _decided(granter)
    for n in range(10):
        granter.job(held(f"small{n}", "g", fair="small"), granter.through + 1)
    found = _others(granter, [*runs, *(f"big{n}" for n in range(10, 20))])
    assert sum(job.startswith("small") for job in found) >= 9


def test_a_grant_looks_at_two_lines_at_most_however_many_there_are() -> None:
    """1,000 fairness keys share five tenants of one slot each: nearly all lines stand at a full key."""
    jobs = [held(f"j{n}", "g", f"t:{n % 5}", fair=f"f{n}") for n in range(1_000)]
    granter = _granter(limit("g", 10), limit("t", 1), *jobs)
    runs = _decided(granter)
    while runs:
        runs = [*runs[1:], *_others(granter, runs[:1])]
    assert granter.total == len(jobs)
    assert granter.picker.looks <= 2 * len(jobs)


def test_a_fairness_key_of_twice_the_weight_gets_twice_as_much() -> None:
    weights = limit("tenant", weight=1.0, overrides={"a": Override(weight=2.0)})
    jobs = [held(f"{key}{n}", "g", f"tenant:{key}") for n in range(100) for key in "ab"]
    granter = _granter(limit("g", 30), weights, *jobs)
    granted = _decided(granter)
    assert sum(job.startswith("a") for job in granted) == 20


def test_the_lowest_priority_comes_first_now_and_then() -> None:
    jobs = [held(f"{p}{n}", "g", priority=p) for n in range(64) for p in ("high", "low")]
    granter = _granter(limit("g", 4 * LOWEST_FIRST_EVERY), *jobs)
    granted = _decided(granter)
    assert [n % LOWEST_FIRST_EVERY for n, job in enumerate(granted) if job.startswith("low")] == [15] * 4


def test_of_a_key_with_mode_newest_only_the_youngest_waits() -> None:
    granter = _granter(limit("d", 1, mode="newest"), held("a", "d:1"))
    assert _decided(granter) == ["a"]
    for job in ("b", "c"):
        granter.job(held(job, "d:1"), granter.through + 1)
    said = granter.decide(T0).cancels
    assert [(each.job, each.why, each.by, each.held) for each in said] == [("b", "superseded", "c", 4)]
    granter.job(_cancelled("b"), granter.through + 1)
    assert granter.decide(T0).cancels == ()
    assert _others(granter, ["a"]) == ["c"]


def test_of_a_key_with_mode_replace_the_holder_is_asked_to_end_once() -> None:
    granter = _granter(limit("d", 1, mode="replace"), held("a", "d:1"))
    assert _decided(granter) == ["a"]
    granter.job(held("b", "d:1"), granter.through + 1)
    said = granter.decide(T0).cancels
    assert [(each.job, each.why, each.by, each.held) for each in said] == [("a", "superseded", "b", 0)]
    assert granter.decide(T0).cancels == ()
    granter.job(_cancelled("a"), granter.through + 1)
    assert _decided(granter) == ["b"]


def test_nobody_waits_for_a_full_key_with_mode_drop() -> None:
    granter = _granter(limit("d", 1, mode="drop"), held("a", "d:1"), held("b", "d:1"), held("c", "d:2"))
    decision = granter.decide(T0)
    assert [each.job for each in decision.grants] == ["a", "c"]
    assert [(each.job, each.why, each.by) for each in decision.cancels] == [("b", "dropped", "a")]


def test_a_job_that_keeps_its_slot_comes_back_past_those_who_wait_for_it() -> None:
    granter = _granter(limit("o", 1, keep="job"), limit("g", 1), held("a", "g", "o:1"), held("b", "g", "o:1"))
    assert _decided(granter) == ["a"]
    granter.job(held("a", "g", "o:1", cause="retried"), granter.through + 1)
    assert _decided(granter) == ["a"]
    granter.job(completed("a"), granter.through + 1)
    assert _decided(granter) == ["b"]


def test_a_lowered_limit_grants_nothing_until_enough_have_ended() -> None:
    granter = _granter(limit("g", 3), *(held(f"j{n}", "g") for n in range(5)))
    runs = _decided(granter)
    granter.limit(limit("g", 1), granter.through + 1)
    assert _others(granter, runs[:2]) == []
    assert _others(granter, runs[2:]) == ["j3"]


def test_slots_that_are_offered_count_for_a_key_without_a_definition() -> None:
    granter = _granter(*(held(f"j{n}", "queue:q") for n in range(5)))
    assert _decided(granter) == []
    granter.offer("queue:q", Terms(slots=2))
    decision = granter.decide(T0)
    assert ([each.job for each in decision.grants], decision.slots) == (["j0", "j1"], {"queue:q": 2})


def test_what_a_rate_waits_for_is_told() -> None:
    granter = _granter(limit("r", rate=1.0, burst=2), *(held(f"j{n}", "r") for n in range(5)))
    _decided(granter)
    asked = granter.decide(T0)
    assert (asked.unstarted, asked.wake_at) == ((("q", "j0"), ("q", "j1")), None)
    granter.started(("q", "j0"))
    assert granter.decide(T0).wake_at == T0 + timedelta(seconds=1)


def test_jobs_beyond_the_heads_of_a_line_are_put_aside_and_come_back_in_order() -> None:
    reactor = Reactor(Ledger(), heads_max=4, in_memory_max=10)
    reactor.ledger.add(limit("g", 1))
    for n in range(50):
        reactor.ledger.add(held(f"j{n}", "g"))
    reactor.ledger.add(_cancelled("j30"))
    reactor.read()
    assert (len(reactor.granter.lines), len(reactor.granter.lines.jobs)) == (49, 4)
    found: list[str] = []
    while (decision := reactor.act(T0)) is not None:
        assert len(reactor.granter.lines.jobs) <= 4
        found += [each.job for each in decision.grants]
        reactor.ledger.add(completed(found[-1]))
        reactor.read()
    assert found == [f"j{n}" for n in range(50) if n != 30]


def test_a_grant_of_a_job_that_left_meanwhile_is_void() -> None:
    ledger = Ledger()
    reactors = [Reactor(ledger), Reactor(ledger)]
    for event in (limit("g", 1), held("a", "g"), held("b", "g")):
        ledger.add(event)
    reactors[0].read()
    ledger.add(_cancelled("a"))
    assert reactors[0].act(T0) is not None
    for reactor in reactors:
        reactor.read()
        assert reactor.granter.holders.jobs == {}
    decision = reactors[1].act(T0)
    assert decision is not None
    assert [each.job for each in decision.grants] == ["b"]


def _cancelled(job: str) -> Cancelled:
    return Cancelled(at=T0, by="t", job=job, queue="q", task="t")
