"""The child *keeper*: moves old events, or deletes large values, once, so that no request and no job waits for that."""

from __future__ import annotations

from pathlib import Path

from anyio.abc import ObjectReceiveStream

from jobledger.admin.keeper import clear_once, move_once
from jobledger.gateway.process.messages import KeeperReport, Setup, ToChild, ToGateway
from jobledger.ledger import Ledger


async def move_events(
    ledger: Ledger, setup: Setup, line: ToGateway, _requests: ObjectReceiveStream[ToChild]
) -> None:
    """Look once, and say what came of it. Raises: UnreachableError, what a look raises."""
    if setup.clears:
        moved = await clear_once(ledger, setup.archive)
    else:
        moved = await move_once(ledger, Path(setup.projection), setup.archive)
    line.send(KeeperReport(moved=moved))
