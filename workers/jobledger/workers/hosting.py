"""Which reactors every worker hosts, and how: next to its work, never in its way."""

from __future__ import annotations

import asyncio

from jobledger.ledger.client import Ledger
from jobledger.workers.reactors import Reactor, host
from jobledger.workers.timers import timer_reactors


def all_reactors(ledger: Ledger) -> list[Reactor]:
    """Return the reactors of one process, new ones at each call."""
    return timer_reactors(ledger)


def start_reactors(ledger: Ledger) -> list[asyncio.Task[None]]:
    """Start them all, each in a task of its own that ends when it is cancelled."""
    return [asyncio.create_task(host(ledger, each), name=each.name) for each in all_reactors(ledger)]
