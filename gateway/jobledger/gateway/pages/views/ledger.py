"""The ledger itself: how long it is, how far it is sealed, when it was checked last, how far the lists are."""

from __future__ import annotations

import msgspec

from jobledger.admin.projection import ProjectionStatus, projection_status
from jobledger.audit.watch import Audited, audited
from jobledger.gateway.pages.page import Looked, When
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.gateway.problems import without_files
from jobledger.ledger.model.log import Head


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    environment: str
    head: Head
    head_hash: str  #: hex sha256 of the newest event; "" without one
    audited: Audited
    projection: ProjectionStatus
    connected: bool


async def ledger(looked: Looked, *, query: When) -> LedgerPage:
    """Return how the ledger is now."""
    del query
    gateway = looked.gateway
    head = await gateway.ledger.log.head()
    newest = await gateway.ledger.log.get(head.last_sequence) if head.last_sequence else None
    status, problem = await projection_status(gateway.ledger, await gateway.rows.path())
    async with gateway.projection.opened() as view:
        shell = await surround(looked, view, None, fleet=False)
    return LedgerPage(
        shell=shell,
        environment=gateway.ledger.names.environment,
        head=head,
        head_hash="" if newest is None else newest.hash,
        audited=await audited(gateway.ledger.log),
        projection=msgspec.structs.replace(
            status, projection="", problem="" if problem is None else without_files(problem)
        ),
        connected=gateway.ledger.connection.is_connected,
    )
