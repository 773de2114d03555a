"""Random ledgers with limits of every kind, two reactors that race and die, and what must hold whatever happens."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
from tests.support.grant_worlds import T0, Ledger, Reactor, completed, fold, held, limit

from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.events import Cancelled, Completed, Held, Queued, Snoozed, Started
from jobledger.ledger.model.limits.definition import Definition, LimitRemoved, LimitSet, Mode, Terms, evolve
from jobledger.ledger.model.limits.flow import Granted
from jobledger.ledger.model.limits.grants import Granter
from jobledger.ledger.model.limits.holders import JobKey
from jobledger.ledger.model.limits.lines import Line
from jobledger.ledger.model.limits.names import split

STEPS = 200
IDLE_MAX = 10  #: rounds in which nothing happens, after which nothing ever will


class World:
    """One seed is one history. Whatever is appended is checked at once, by counting and not by the code under test."""

    def __init__(
        self,
        seed: int,
        *,
        modes: tuple[Mode, ...] = ("queue",),
        keeps: tuple[Any, ...] = ("attempt",),
        conditional: bool = True,
        redrive: bool = True,
        reactors: int = 2,
        changes: bool = True,
        rates: bool = True,
    ) -> None:
        self.random = random.Random(seed)
        self.seed, self.modes, self.redrive = seed, modes, redrive
        self.ledger = Ledger()
        bounds = {
            "heads_max": self.random.choice((2, 256)),
            "in_memory_max": self.random.choice((5, 100_000)),
        }
        self.reactors = [Reactor(self.ledger, conditional=conditional, **bounds) for _ in range(reactors)]
        self.changes, self.rates, self.now, self.count = changes, rates, T0, 0
        self.waiting: dict[JobKey, tuple[int, Held]] = {}
        self.holding: dict[JobKey, Held] = {}  # granted; the value says which keys
        self.kept: dict[JobKey, set[str]] = defaultdict(set)
        self.queued: dict[JobKey, None] = {}
        self.definitions: dict[str, Definition] = {}
        self.newest: dict[Any, int] = {}  # by line, the newest `held` that was granted
        self.granted = self.refused = self.restarts = 0
        # It stays: two jobs that kept one key each, by definitions that changed, may wait for each other's for ever.
        self.keep = {name: self.random.choice(keeps) for name in "gtwx"}
        for name in "gtwx":
            self.define(name)

    def define(self, name: str) -> None:
        pick = self.random.choice
        slots = self.random.randint(1, 6) if name == "g" else pick((None, 1, 1, 2, 3, 5, 0))
        rated = self.random.random() < 0.3 and self.rates
        rate = {"rate": pick((0.5, 3.0, 20.0)), "burst": self.random.randint(1, 3)} if rated else {}
        mode = "queue" if name == "g" else pick(self.modes)
        self.add(limit(name, slots, mode=mode, keep=self.keep[name], weight=pick((1.0, 2.0, 0.5)), **rate))

    def add(self, event: Envelope) -> int:
        sequence = self.ledger.add(event)
        if isinstance(event, LimitSet | LimitRemoved):
            self.definitions[event.limit] = evolve(None, event, sequence)
        return sequence

    def terms(self, key: str) -> Terms | None:
        name, rest = split(key)
        return self.definitions[name].of(rest)

    def run(self, steps: int = STEPS) -> World:
        for step in range(steps):
            self.now += timedelta(seconds=self.random.expovariate(5))
            self.arrive(self.random.randint(0, 4) if step < steps * 0.7 else 0)
            self.disturb()
            for reactor in self.reactors:
                self.let(reactor)
            for _ in range(self.random.randint(0, 3)):
                self.end_one()
        return self

    def arrive(self, jobs: int) -> None:
        pick, chance = self.random.choice, self.random.random
        for _ in range(jobs):
            self.count += 1
            limits = [each for each in ("g", f"t:{pick('abc')}", f"w:{pick('abcd')}", "x") if chance() < 0.6]
            self.hold(
                held(
                    f"j{self.count}",
                    *(limits or ["g"]),
                    queue=pick("pq"),
                    fair=pick(("", "a", "b")),
                    priority=pick(("normal", "normal", "high", "low")),
                )
            )

    def hold(self, event: Held) -> None:
        self.waiting[event.queue, event.job] = self.add(event), event

    def disturb(self) -> None:
        chance, pick = self.random.random, self.random.choice
        if chance() < 0.1 and self.waiting:
            self.cancel(pick(list(self.waiting)))
        if self.changes and chance() < 0.02:
            self.define(pick("gtwx"))
        if self.changes and chance() < 0.01:
            self.add(LimitRemoved(at=T0, by="t", limit=pick("tw")))

    def cancel(self, job: JobKey) -> None:
        self.waiting.pop(job, None)
        self.give_back(job, for_good=True)
        self.add(Cancelled(at=self.now, by="t", job=job[1], queue=job[0], task="t"))

    def let(self, reactor: Reactor) -> None:
        """Let a reactor read something, decide, or die; what it dies of is between any two of its acts."""
        chance, pick = self.random.random, self.random.choice
        if chance() < 0.6:
            reactor.read(pick((1, 5, 1_000)))
        if chance() < 0.4:
            most = pick((1, 3, 500))
            before = reactor.ledger.granted
            decision = reactor.act(self.now, most)
            self.obey(reactor)
            if decision is None:
                self.refused += reactor.known < before
            else:
                granted = self.ledger.events[self.ledger.granted - 1]
                assert isinstance(granted, Granted)
                self.take(granted, reactor.granter, is_all=len(decision.grants) < most and not reactor.said)
                if chance() < 0.2:
                    self.restart(reactor)  # before it queued whom it granted
                else:
                    self.queue((each.queue, each.job) for each in granted.jobs)
        if chance() < 0.05:
            self.restart(reactor)

    def restart(self, reactor: Reactor) -> None:
        self.restarts += 1
        reactor.restart()
        if self.redrive:
            self.queue(reactor.granter.holders.jobs)

    def obey(self, reactor: Reactor) -> None:
        """Cancel whom a reactor's newest decision says to cancel."""
        for each in reactor.said:
            if (each.queue, each.job) in (self.waiting if each.held else self.holding):
                self.cancel((each.queue, each.job))

    def take(self, granted: Granted, granter: Granter, *, is_all: bool) -> None:
        for each in granted.jobs:
            job = (each.queue, each.job)
            if self.waiting.get(job, (0,))[0] != each.held:
                continue  # void
            sequence, event = self.waiting.pop(job)
            self.holding[job] = event
            self.granted += 1
            self.check_line(job, sequence, event)
        for key in {key for each in granted.jobs for key in self.keys_of((each.queue, each.job))}:
            self.check_above(key, granted)
        if is_all:
            stuck = [line.key for line in granter.lines.lines.values() if _can_be_granted(granter, line)]
            assert not stuck, f"seed {self.seed}: there is room, and {stuck[0]} was not granted"

    def keys_of(self, job: JobKey) -> tuple[str, ...]:
        event = self.holding.get(job)
        kept = self.kept.get(job, ())
        return () if event is None else tuple(key for key in event.limits if key not in kept)

    def check_line(self, job: JobKey, sequence: int, event: Held) -> None:
        line = (event.priority, event.queue, event.fair, event.limits, tuple(sorted(self.kept.get(job, ()))))
        older = self.newest.get(line, 0)
        assert sequence > older, f"seed {self.seed}: {job} of {sequence} was granted after {older}"
        self.newest[line] = sequence

    def check_above(self, key: str, granted: Granted) -> None:
        name, rest = split(key)
        obeyed = [
            evolve(None, event, sequence)
            for sequence, event in self.ledger.since(0)
            if isinstance(event, LimitSet | LimitRemoved)
            and event.limit == name
            and sequence <= granted.limits_sequence
        ]
        terms = obeyed[-1].of(rest)
        assert terms is not None, f"seed {self.seed}: {key} is not defined"
        used = sum(key in event.limits for event in self.holding.values())
        used += sum(key in keys for job, keys in self.kept.items() if job not in self.holding)
        if terms.slots is not None:
            assert used <= terms.slots, f"seed {self.seed}: {used} of {terms.slots} hold {key}"

    def queue(self, jobs: Iterable[JobKey]) -> None:
        """Append `queued` for those who hold slots and were not queued."""
        for job in jobs:
            if job in self.holding and job not in self.queued:
                self.queued[job] = None
                self.add(Queued(at=self.now, by="t", job=job[1], queue=job[0], task="t", cause="admitted"))

    def end_one(self) -> None:
        runs = list(self.queued)
        if not runs:
            return
        job = self.random.choice(runs)
        chance = self.random.random()
        stamp: dict[str, Any] = {"at": self.now, "by": "t", "job": job[1], "queue": job[0], "task": "t"}
        if chance < 0.3:
            self.add(Started(**stamp, attempt=1, worker="w", lease_s=1.0))
            return
        again = self.holding[job]
        self.give_back(job, for_good=chance < 0.8)
        if chance < 0.8:
            self.add(Completed(**stamp, attempt=1))
            return
        if chance < 0.9:
            self.add(Snoozed(**stamp, attempt=1, until=self.now))
        self.hold(msgspec.structs.replace(again, cause="due" if chance < 0.9 else "ungranted"))

    def give_back(self, job: JobKey, *, for_good: bool) -> None:
        self.queued.pop(job, None)
        event = self.holding.pop(job, None)
        if for_good:
            self.kept.pop(job, None)
        elif event is not None:
            holding = (reactor.granter.holders.jobs.get(job) for reactor in self.reactors)
            self.kept[job] = {key for each in holding if each is not None for key in each.kept}

    def drain(self) -> None:
        """Let everything end: whoever may ever be granted is granted."""
        for name in "gtwx":
            self.add(limit(name, 2, keep=self.keep[name]))
        idle, head = 0, 0
        while idle < IDLE_MAX and (self.waiting or self.holding):
            idle, head = idle + 1 if self.ledger.head == head else 0, self.ledger.head
            self.now += timedelta(seconds=1)
            for reactor in self.reactors:
                reactor.read()
                decision = reactor.act(self.now)
                self.obey(reactor)
                if decision is not None:
                    granted = self.ledger.events[self.ledger.granted - 1]
                    assert isinstance(granted, Granted)
                    self.take(granted, reactor.granter, is_all=not reactor.said)
                    self.queue((each.queue, each.job) for each in granted.jobs)
            for job in list(self.queued):
                self.give_back(job, for_good=True)
                self.add(completed(job[1], job[0]))
        left = [*self.waiting, *self.holding]
        assert not left, f"seed {self.seed}: {len(left)} jobs are left for ever, such as {left[0]}"


def _can_be_granted(granter: Granter, line: Line) -> bool:
    """Return whether every key of a line has room, with one slot less where another line has the right of way."""
    first = granter.guard.first
    others: set[str] = set() if first is None or first is line else set(first.keys)
    if line.queue in granter.picker.closed:
        return False
    for name in line.keys:
        key = granter.picker.key(name)
        if key.terms is None or name in others:
            return False
        if key.terms.slots is not None and granter.holders.used(name) >= key.terms.slots:
            return False
        if key.terms.rate is not None and granter.rates.free_at(name, key.terms) > granter.picker.at:
            return False
        if key.terms.rate is not None and len(key.unstarted) >= key.terms.burst:
            return False
    return True


def recomputed(events: Iterable[tuple[int, Envelope]]) -> tuple[int, int]:
    """Decide every grant again over what its author knew; return how many there are, and how many differ."""
    granter, unread = Granter(), deque[tuple[int, Envelope]]()
    grants = differ = 0
    for sequence, event in events:
        if not isinstance(event, Granted):
            unread.append((sequence, event))
            continue
        while unread and unread[0][0] <= event.through:
            fold(granter, *unread.popleft())
        grants += 1
        decided = granter.decide(event.at, len(event.jobs)).grants
        if [each.held for each in decided] == [each.held for each in event.jobs]:
            granter.confirm(sequence)
        else:
            differ += 1
            granter.take_back()
            granter.granted(event, sequence)
    return grants, differ
