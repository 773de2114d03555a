"""The child *keeper*: it moves old events or deletes large values once, so that no request or job waits for that."""

from __future__ import annotations

from pathlib import Path

from anyio.abc import ObjectReceiveStream

from jobledger.admin.keeper import clear_once, move_once
from jobledger.gateway.process.messages import KeeperReport, Setup, ToChild, ToGateway
from jobledger.ledger import Ledger


async def move_events(
    ledger: Ledger, setup: Setup, line: ToGateway, _requests: ObjectReceiveStream[ToChild]
) -> None:
    """Look once, and report the outcome. Raises: UnreachableError, and the errors of a look."""
    if setup.clears:
        moved = await clear_once(ledger, setup.archive)
    else:
        moved = await move_once(ledger, Path(setup.projection), setup.archive)
    line.send(KeeperReport(moved=moved))
