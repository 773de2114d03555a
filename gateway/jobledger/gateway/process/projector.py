"""The child *projector*: follows the ledger into the projection's file, so that no request waits for a fold."""

from __future__ import annotations

from pathlib import Path

from anyio.abc import ObjectReceiveStream

from jobledger.gateway.process.messages import Setup, ToChild, ToGateway
from jobledger.ledger import Ledger
from jobledger.projections import Projector, Snapshots
from jobledger.workers.processes.messages import Ready


async def project(
    ledger: Ledger, setup: Setup, line: ToGateway, _requests: ObjectReceiveStream[ToChild]
) -> None:
    """Follow until cancelled; report once the file is ready.

    Raises: ProjectionError, and as `Log.read`.
    """
    path = Path(setup.projection)
    with Projector(ledger.log, path, snapshots=Snapshots(path)) as projector:
        await projector.prepare(mend=True)
        line.send(Ready())
        await projector.run()
