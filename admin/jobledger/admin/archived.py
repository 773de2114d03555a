"""Events that an archive run took away: read if the archive is named, otherwise reported as missing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from jobledger.admin.errors import ArchiveGapError, MissingEvents
from jobledger.audit.archive.chain import with_past
from jobledger.audit.export import JoinedLog
from jobledger.audit.export.payloads import PayloadFiles
from jobledger.audit.verify.payloads import PayloadStates
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.archive_record import forgotten_past, newest_archived
from jobledger.ledger.model.log import Log
from jobledger.ledger.nats.payloads import Stores


async def with_archive(log: Log, places: Sequence[Path]) -> Log:
    """Return the ledger with the archive in `places` in front of it; as it is when none is named.

    Raises: ArchiveGapError, and as `with_past`.
    """
    if not places:
        return log
    joined = await with_past(log, places)
    await refuse_hole(joined, log, places)
    return joined


async def refuse_hole(joined: Log, live: Log, places: Sequence[Path]) -> None:
    """Refuse exports that end before the ledger begins. Call it after a read too: an archive run may have gone on.

    Raises: ArchiveGapError.
    """
    first = (await live.head()).first_sequence
    if isinstance(joined, JoinedLog) and joined.archived_through < first - 1:
        raise ArchiveGapError(places[-1], joined.archived_through, first)


def archived_payloads(log: Log) -> PayloadFiles:
    """Return the large values of the exports in front of a ledger."""
    return PayloadFiles(*(log.folders if isinstance(log, JoinedLog) else ()))


def payload_places(ledger: Ledger, log: Log) -> list[PayloadStates]:
    """Return where large values are looked for: the ledger's object stores, then the exports in front of `log`."""
    return [Stores(ledger.inputs, ledger.results), archived_payloads(log)]


async def missing(
    log: Log, places: Sequence[Path] = (), *, since: datetime | None = None
) -> MissingEvents | None:
    """Return what is missing before the first event of `log`, None when it has all; `since`: from that time on."""
    first = (await log.head()).first_sequence
    if first <= 1:
        return None
    if since is not None:
        oldest = await log.get(first)
        if oldest is not None and oldest.stored_at < since:
            return None
    newest = await newest_archived(log)
    is_archived = newest is not None and newest.through_sequence >= first - 1
    return MissingEvents(
        first_sequence=first,
        is_archived=is_archived,
        is_named=bool(places),
        forgotten=await forgotten_past(log),
    )
