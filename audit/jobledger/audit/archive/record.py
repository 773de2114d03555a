"""The record of archive runs in the ledger: what the newest one moved, and where to. It reads no archive."""

from __future__ import annotations

from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived


async def newest_archived(log: Log) -> Archived | None:
    """Return what the newest archive run recorded, None when there was none.

    Raises: CorruptLedgerError, UnreachableError.
    """
    return (await newest_record(log))[0]


async def newest_record(log: Log) -> tuple[Archived | None, int]:
    """Return what the newest archive run recorded and at which stream sequence, None and 0 when there was none.

    Raises: CorruptLedgerError, UnreachableError.
    """
    message = (await end_of_chain(log, REACTOR.of_type(log.names, "archived", ARCHIVE))).event
    if message is None:
        return None, 0
    event = REACTOR.decode(message)
    assert isinstance(event, Archived), "its subject names the type"
    return event, message.stream_sequence
