"""A ledger of held, granted and ended jobs in memory, and reactors that race for its grants: no server, no clock, no luck."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.events import Completed, Held, Started
from jobledger.ledger.model.limits.definition import LimitRemoved, LimitSet
from jobledger.ledger.model.limits.flow import Granted, GrantedJob
from jobledger.ledger.model.limits.grants import Decision, Granter
from jobledger.ledger.model.limits.holders import JobKey
from jobledger.ledger.model.limits.modes import Cancel
from jobledger.workers.reactors.flow.snapshots import decode, prepare, restore, state_of, waiting_of

T0 = datetime(2026, 1, 1, tzinfo=UTC)
Stored = tuple[int, Envelope]


def held(job: str, *limits: str, queue: str = "q", at: datetime = T0, **more: Any) -> Held:
    return Held(at=at, by="t", job=job, queue=queue, task="t", limits=tuple(sorted(limits)), **more)


def completed(job: str, queue: str = "q", at: datetime = T0) -> Completed:
    return Completed(at=at, by="t", job=job, queue=queue, task="t", attempt=1)


def started(job: str, queue: str = "q", at: datetime = T0) -> Started:
    return Started(at=at, by="t", job=job, queue=queue, task="t", attempt=1, worker="w", lease_s=1.0)


def limit(name: str, slots: int | None = None, **more: Any) -> LimitSet:
    return LimitSet(at=T0, by="t", limit=name, slots=slots, source="operator", **more)


def fold(granter: Granter, sequence: int, event: Envelope) -> None:
    """Tell a granter an event, whatever it is about."""
    match event:
        case Granted():
            granter.granted(event, sequence)
        case LimitSet() | LimitRemoved():
            granter.limit(event, sequence)
        case _:
            granter.job(event, sequence)  # type: ignore[arg-type]


class MemorySpill:
    """A spill in a dictionary."""

    def __init__(self) -> None:
        self.jobs: dict[int, dict[int, Any]] = {}
        self.most = 0

    def put(self, line: int, job: Any) -> None:
        self.jobs.setdefault(line, {})[job[0]] = job
        self.most = max(self.most, sum(map(len, self.jobs.values())))

    def page(self, line: int, after: int, most: int) -> list[Any]:
        return [job for number, job in sorted(self.jobs.get(line, {}).items()) if number > after][:most]

    def drop(self, line: int, through: int) -> None:
        self.jobs[line] = {number: job for number, job in self.jobs[line].items() if number > through}

    def find(self, job: JobKey) -> Any:
        found = ((line, each) for line, jobs in self.jobs.items() for each in jobs.values())
        return next(((line, each) for line, each in found if each[1:3] == job), None)

    def remove(self, line: int, held: int) -> None:
        del self.jobs[line][held]


class Ledger:
    """The events, and who may append a `granted`: whoever knows the newest one."""

    def __init__(self) -> None:
        self.events: list[Envelope] = []
        self.granted = 0
        self.names = itertools.count()

    @property
    def head(self) -> int:
        return len(self.events)

    def add(self, event: Envelope) -> int:
        self.events.append(event)
        return len(self.events)

    def since(self, sequence: int) -> Iterator[Stored]:
        return enumerate(self.events[sequence:], sequence + 1)


class Reactor:
    """One that reads the ledger at its own pace, decides, and appends on condition that it knows the newest `granted`."""

    def __init__(self, ledger: Ledger, *, conditional: bool = True, **bounds: int) -> None:
        self.ledger, self.conditional, self.bounds = ledger, conditional, bounds
        self.name = f"r{next(ledger.names)}"
        self.granter = Granter(MemorySpill(), **bounds)
        self.known = 0  # stream sequence of the newest `granted` that it knows
        self.mine: set[int] = set()
        self.said: tuple[Cancel, ...] = ()  # of its newest decision

    def read(self, most: int = 1 << 30) -> None:
        for sequence, event in self.ledger.since(self.granter.through):
            if most <= 0:
                return
            most -= 1
            if isinstance(event, Granted):
                self.known = max(self.known, sequence)
            if sequence in self.mine:
                self.granter.through = sequence
            else:
                fold(self.granter, sequence, event)

    def act(self, now: datetime, most: int = 500) -> Decision | None:
        """Decide and append; return what was accepted, None if there was nothing, or another was first."""
        decision = self.granter.decide(now, most)
        self.said = decision.cancels
        if not decision.grants:
            return None
        if self.conditional and self.ledger.granted != self.known:
            self.granter.take_back()
            return None
        jobs = tuple(GrantedJob(queue=each.queue, job=each.job, held=each.held) for each in decision.grants)
        sequence = self.ledger.add(
            Granted(
                at=decision.at,
                by=self.name,
                shard="main",
                through=decision.through,
                limits_sequence=decision.limits_sequence,
                jobs=jobs,
                slots=decision.slots,
            )
        )
        self.ledger.granted = self.known = sequence
        self.granter.confirm(sequence)
        self.mine.add(sequence)
        return decision

    def restart(self) -> None:
        """Be written and read again, as another process would be after a snapshot."""
        before = self.granter
        named, low = waiting_of(before)
        state = decode(msgspec.json.encode(state_of(before, named)))
        through = before.through
        self.granter = Granter(MemorySpill(), **self.bounds)
        for sequence, event in self.ledger.since(0):
            if isinstance(event, LimitSet | LimitRemoved) and sequence <= through:
                fold(self.granter, sequence, event)
        prepare(self.granter, state)
        for each in named:
            fold(self.granter, each.held, self.ledger.events[each.held - 1])
        for sequence, event in self.ledger.since(low - 1):
            if sequence > through:
                break
            fold(self.granter, sequence, event)
        restore(self.granter, state, through)
        for queue in before.picker.closed:
            self.granter.close(queue)
        for key, terms in before.definitions.offered.items():
            self.granter.offer(key, terms)
