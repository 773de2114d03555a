"""The ledger itself: its length, its seals, its last check, and the position of the lists."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from markupsafe import Markup

from jobledger.admin.ledger_room import room_of
from jobledger.admin.projection import ProjectionStatus, projection_status
from jobledger.audit.watch import AuditState, audited
from jobledger.gateway.pages.charts.plot import share
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, shell_of
from jobledger.gateway.problems import without_files
from jobledger.ledger.model.log import Head
from jobledger.ledger.nats.streams import find_stream


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """The storage of the ledger."""

    used: int  #: bytes in use
    committed: int  #: bytes in use, and those that waiting jobs still need
    room: int
    #: Estimate by the growth of the last day; None: not known yet, or no growth.
    fills_in: timedelta | None


class LedgerPage(PageFacts, frozen=True, kw_only=True):
    """The page."""

    environment: str
    head: Head
    head_hash: str  #: hex sha256 of the newest event; "" without one
    audited: AuditState
    projection: ProjectionStatus
    storage: Storage | None
    fuel: Markup


async def ledger(looked: Viewer, *, query: When) -> LedgerPage:
    """Return the present state of the ledger."""
    del query
    gateway = looked.gateway
    head = await gateway.ledger.log.head()
    newest = await gateway.ledger.log.get(head.last_sequence) if head.last_sequence else None
    status, problem = await projection_status(gateway.ledger, await gateway.rows.path())
    stored = await find_stream(gateway.ledger.inbox, gateway.ledger.names.ledger_stream)
    shell = await shell_of(looked)
    storage = None
    room = None if stored is None else await room_of(gateway.ledger, stored, gateway.ledger.clock.now())
    if room is not None:
        storage = Storage(used=room.used, committed=room.committed, room=room.size, fills_in=room.lasts)
    return LedgerPage(
        shell=shell,
        environment=gateway.ledger.names.environment,
        head=head,
        head_hash="" if newest is None else newest.hash,
        audited=await audited(gateway.ledger.log),
        projection=msgspec.structs.replace(
            status, projection="", problem="" if problem is None else without_files(problem)
        ),
        storage=storage,
        fuel=Markup("") if storage is None else _gauge(storage),
    )


def _gauge(storage: Storage) -> Markup:
    parts = [
        ("t-running", "used, bytes", float(storage.used)),
        ("t-waiting", "promised to waiting jobs, bytes", float(storage.committed - storage.used)),
        ("free", "free, bytes", float(max(0, storage.room - storage.committed))),
    ]
    return share(parts, label="How full the ledger is")
