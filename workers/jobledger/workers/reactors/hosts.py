"""The reactors that every worker hosts, beside its jobs and without delaying them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobledger.ledger.client import Ledger
from jobledger.workers.reactors.children.reactor import ChildrenReactor
from jobledger.workers.reactors.dead_letters import DeadLetterReactor
from jobledger.workers.reactors.flow.reactor import FlowReactor
from jobledger.workers.reactors.reactor import Reactor, host
from jobledger.workers.reactors.reconciler import Reconciler
from jobledger.workers.reactors.stranded_jobs import OnDeadLetter
from jobledger.workers.reactors.timers import timer_reactors


def flow_reactor(ledger: Ledger, identity: Callable[[], str]) -> FlowReactor:
    """Return the reactor of the limits; `identity`: returns the name under which the process holds its lease."""
    return FlowReactor(ledger, identity)


def all_reactors(
    ledger: Ledger, on_dead_letter: OnDeadLetter | None = None, flow: FlowReactor | None = None
) -> list[Reactor]:
    """Return the reactors of one process, new ones at each call; `on_dead_letter` gets new dead letters.

    `flow`: the process's reactor of the limits; without it the process grants no slots.
    """
    return [
        *timer_reactors(ledger),
        ChildrenReactor(ledger),
        DeadLetterReactor(ledger, on_dead_letter=on_dead_letter),
        Reconciler(ledger, on_dead_letter=on_dead_letter),
        *([] if flow is None else [flow]),
    ]


def start_reactors(
    ledger: Ledger, on_dead_letter: OnDeadLetter | None = None, flow: FlowReactor | None = None
) -> list[asyncio.Task[None]]:
    """Start all reactors, each in a task of its own that ends when it is cancelled."""
    return [
        asyncio.create_task(host(ledger, each), name=each.name)
        for each in all_reactors(ledger, on_dead_letter, flow)
    ]
