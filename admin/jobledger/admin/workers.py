"""Who works: the processes that hold a lease at this moment, or gave theirs back a moment ago."""

from __future__ import annotations

from jobledger.ledger.client import Ledger
from jobledger.ledger.nats.leases import WorkerInfo


async def list_workers(ledger: Ledger) -> list[WorkerInfo]:
    """Return the workers whose leases live and those that stopped within the last lease time, those of a host together.

    Raises: UnreachableError.
    """
    return sorted(await ledger.leases.all(), key=lambda info: (info.host, info.supervisor, info.worker))
