"""A seeded mixture of jobs: quick ones, ones that fail, wait, are cancelled or harm their process; and their producer."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tests.support.watch import Watch

from jobledger.ledger import Ledger, Task
from jobledger.ledger.model.errors import IllegalTransitionError, LedgerError, UnreachableError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.subjects import JobRef

QUEUE: Final = "work"
#: Of jobs that must complete: as many as there may be deaths around them.
_INNOCENT_ATTEMPTS: Final = 100
_POISON_ATTEMPTS: Final = 2
_TRIES_MAX: Final = 200

_COMPLETED: Final = frozenset({"completed"})
_CANCELLED: Final = frozenset({"cancelled"})
_DEAD: Final = frozenset({"dead_lettered"})

#: kind -> share of a thousand
_SHARES: Final = {
    "nap": 620,
    "thread": 100,
    "process": 15,
    "stumble": 90,
    "retry": 20,
    "snooze": 20,
    "delayed": 50,
    "cancel": 50,
    "cancelled by itself": 5,
    "fail": 20,
    "long": 8,
}


class Plan(NamedTuple):
    """One job to be, and how it may end."""

    job_id: str
    kind: str
    task: str
    options: dict[str, Any]
    arguments: tuple[Any, ...]
    ends: frozenset[str]


def plans(count: int, chance: random.Random, *, poison: dict[str, int]) -> list[Plan]:
    """Return `count` plans; those of `poison` (a way to die -> how many) are among them."""
    kinds = chance.choices(list(_SHARES), list(_SHARES.values()), k=count)
    places = chance.sample(range(count // 10, count * 9 // 10), sum(poison.values()))
    ways = [way for way, number in poison.items() for _ in range(number)]
    for place, way in zip(places, ways, strict=True):
        kinds[place] = way
    return [_plan(f"n-{number}", kind, chance) for number, kind in enumerate(kinds)]


def _plan(job_id: str, kind: str, chance: random.Random) -> Plan:
    options: dict[str, Any] = {"max_attempts": _INNOCENT_ATTEMPTS, "priority": chance.choice(PRIORITIES)}
    arguments: tuple[Any, ...] = (chance.random() * 0.02,)
    task, ends = "nap", _COMPLETED
    if kind == "thread":
        task = "nap_in_thread"
    elif kind == "process":
        task = "nap_in_process"
    elif kind == "stumble":
        task, arguments = "stumble", (chance.randint(1, 3),)
    elif kind in {"retry", "snooze"}:
        task, arguments = "ask", (kind,)
    elif kind == "cancelled by itself":
        task, arguments, ends = "ask", ("cancel",), _CANCELLED
    elif kind == "delayed":
        options["delay_s"] = round(chance.uniform(0.1, 10.0), 3)
    elif kind == "cancel":
        arguments, ends = (chance.choice((0.01, 1.0, 3.0)),), _COMPLETED | _CANCELLED
    elif kind == "fail":
        task, arguments, ends = "stumble", (_INNOCENT_ATTEMPTS,), _DEAD
        options["max_attempts"] = chance.randint(1, 3)
    elif kind == "long":
        arguments = (chance.uniform(1.0, 4.0),)
    elif kind != "nap":
        where, _, how = kind.partition(" by ")
        task, arguments, ends = ("die_in_process" if where == "process" else "die"), (how,), _DEAD
        options["max_attempts"] = _POISON_ATTEMPTS
    return Plan(job_id, kind, task, options, arguments, ends)


class Producer:
    """Enqueues plans, many at once, and does not give up before each is acknowledged; cancels some a moment later."""

    def __init__(
        self, ledger: Ledger, tasks: dict[str, Task[..., Any]], watch: Watch, chance: random.Random, note: str
    ) -> None:
        self._ledger = ledger
        self._tasks = tasks
        self._watch = watch
        self._chance = chance
        self._note = note
        self._cancelling: set[asyncio.Task[None]] = set()
        self.acknowledged: list[tuple[str, str]] = []
        self.repeated = 0  #: enqueues whose answer did not come within the client's limits
        self.cancels: Counter[str] = Counter()

    async def run(self, wanted: list[Plan], *, clients: int, backlog_max: int) -> None:
        """Enqueue them all."""
        rest = iter(wanted)
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._some(rest, backlog_max))
        await asyncio.gather(*self._cancelling)

    async def _some(self, rest: Iterator[Plan], backlog_max: int) -> None:
        for plan in rest:
            while len(self.acknowledged) - len(self._watch.ended) >= backlog_max:
                await asyncio.sleep(0.05)
            await self._enqueue(plan)
            if plan.kind == "cancel":
                task = asyncio.create_task(self._cancel(plan, self._chance.random()))
                self._cancelling.add(task)
                task.add_done_callback(self._cancelling.discard)

    async def _enqueue(self, plan: Plan) -> None:
        wanted = self._tasks[plan.task].options(id=plan.job_id, queue=QUEUE, **plan.options)
        for _ in range(_TRIES_MAX):
            try:
                await self._ledger.enqueue(wanted, *plan.arguments, note=self._note)
            except UnreachableError:
                self.repeated += 1
                continue
            self.acknowledged.append((QUEUE, plan.job_id))
            return
        raise AssertionError(f"{plan.job_id} could not be enqueued")

    async def _cancel(self, plan: Plan, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            job = await self._ledger.cancel(JobRef(queue=QUEUE, job_id=plan.job_id), reason="changed my mind")
        except IllegalTransitionError:
            self.cancels["too late"] += 1
        except LedgerError:
            self.cancels["unknown"] += 1
        else:
            self.cancels[job.state.value] += 1
