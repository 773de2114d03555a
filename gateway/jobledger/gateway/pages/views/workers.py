"""Workers: the processes that hold a lease at this moment, or gave theirs back a moment ago."""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.admin.workers import list_workers
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, opened
from jobledger.gateway.visibility import workers_for
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.projections.statistics.answers import WorkerRow

_WORKERS_MAX: Final = 500


class WorkerLine(msgspec.Struct, frozen=True, kw_only=True):
    """One process."""

    info: WorkerInfo
    did: WorkerRow | None  #: its counts in the ledger's events


class Workers(PageFacts, frozen=True, kw_only=True):
    """The page."""

    workers: list[WorkerLine]
    clients: list[WorkerInfo]  #: processes that hold locks


async def workers(looked: Viewer, *, query: When) -> Workers:
    """Return the present workers; old leases are not kept, so this page has no past."""
    del query
    found = workers_for(looked.principal, await list_workers(looked.gateway.ledger))[:_WORKERS_MAX]
    async with opened(looked) as (view, shell):
        did = {row.worker: row for row in view.store.workers(_WORKERS_MAX)}
        return Workers(
            shell=shell,
            workers=[
                WorkerLine(info=each, did=did.get(each.worker)) for each in found if each.kind == "worker"
            ],
            clients=[each for each in found if each.kind == "client"],
        )
