"""Leases whose renewals wait, as those of a process that stands still."""

from __future__ import annotations

import asyncio

import pytest

from jobledger.ledger import Ledger
from jobledger.ledger.nats.leases import WorkerInfo


def renewals(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have a client's renewals wait while the event that is returned is not set; it is set at first."""
    renew, goes_on = ledger.leases.renew, asyncio.Event()
    goes_on.set()

    async def renew_then(info: WorkerInfo, revision: int) -> int:
        await goes_on.wait()
        return await renew(info, revision)

    monkeypatch.setattr(ledger.leases, "renew", renew_then)
    return goes_on
