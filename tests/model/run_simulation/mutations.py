"""Bugs of runs, planted on purpose: each takes one rule away that the simulation must miss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec
from tests.model.run_simulation.others import SimReactor

from jobledger.ledger.model import decisions
from jobledger.ledger.model.chain import JobView
from jobledger.ledger.model.commands import Join, Stamp
from jobledger.ledger.model.decision_parts import carried, facts, runs
from jobledger.ledger.model.events import Joined, JoinFact
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.orders import ChildOrder
from jobledger.ledger.model.runs.steps import admit
from jobledger.workers.reactors.children.reach import ChildFollower

Planted = AbstractContextManager[Any]


def count_an_end_again() -> Planted:
    real = runs._news

    def news(job: Job, known: Any, command: Join) -> JoinFact:
        return real(job, msgspec.structs.replace(known, ended_set=b""), command)

    return mock.patch.object(runs, "_news", news)


def count_every_dead_letter() -> Planted:
    real = runs._news

    def news(job: Job, known: Any, command: Join) -> JoinFact:
        order = msgspec.structs.replace(known.order, on_dead_letter="fail")
        return real(job, msgspec.structs.replace(known, order=order), command)

    return mock.patch.object(runs, "_news", news)


def wake_at_every_end() -> Planted:
    real = runs.join

    def join(job: Job, command: Join, stamp: Stamp) -> Any:
        events = real(job, command, stamp)
        if job.state is JobState.WAITING and isinstance(events[0], Joined):
            fields = {name: getattr(events[0], name) for name in JoinFact.__struct_fields__}
            return (facts.ready(job, stamp, "resumed", joined=JoinFact(**fields)),)
        return events

    return mock.patch.object(decisions, "join", join)


def open_one_child_too_many() -> Planted:
    def more(order: ChildOrder, opened: int, ended: int, failed: int) -> int:
        limit = order.limit + 1 if order.limit else 0
        return admit(msgspec.structs.replace(order, limit=limit), opened, ended, failed)

    return mock.patch.object(runs, "admit", more)


def ack_before_acting() -> Planted:
    return mock.patch.object(SimReactor, "ack_first", new=True)


def enqueue_without_a_look_back() -> Planted:
    real = ChildFollower.follow

    async def follow(
        self: ChildFollower, parent: Any, view: JobView, items: Any = None, *, again: bool = False
    ) -> Any:
        if items is not None and not again:
            return view
        return await real(self, parent, view, items, again=again)

    return mock.patch.object(ChildFollower, "follow", follow)


def pause_without_a_look() -> Planted:
    return mock.patch.object(runs, "_check_nothing_came", return_value=None)


def forget_whose_child_it_was() -> Planted:
    real = facts.of_family

    def of_family(job: Job) -> dict[str, Any]:
        return {**real(job), "member": None}

    return mock.patch.object(facts, "of_family", of_family)


def carry_a_run_without_its_steps() -> Planted:
    return mock.patch.object(carried, "carried_steps", return_value=())


#: Those that chance finds soon; `enqueue_without_a_look_back` has a test of its own.
MUTATIONS: tuple[Callable[[], Planted], ...] = (
    count_an_end_again,
    count_every_dead_letter,
    wake_at_every_end,
    open_one_child_too_many,
    ack_before_acting,
    pause_without_a_look,
    forget_whose_child_it_was,
    carry_a_run_without_its_steps,
)
