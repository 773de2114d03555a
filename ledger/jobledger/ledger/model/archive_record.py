"""The record of archive runs in the ledger: what the newest one moved, and where to, and what was forgotten since.

It reads no archive.
"""

from __future__ import annotations

import contextlib

from jobledger.ledger.model.log import Log, end_of_chain, events_among
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived, Forgotten, ForgottenPast


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


async def forgotten_past(log: Log) -> ForgottenPast | None:
    """Return what was forgotten of the archive, None where nothing was; `log` may have the archive in front.

    The newest archive run says it once more, so only events after that one are looked through.

    Raises: CorruptLedgerError, UnreachableError.
    """
    newest, recorded_at = await newest_record(log)
    if newest is None:
        return None
    found = newest.forgotten
    subject = REACTOR.of_type(log.names, "forgotten", ARCHIVE)
    batches = log.read_messages(from_sequence=recorded_at + 1, subject=subject)
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in events_among(batch):
                event = REACTOR.decode(message)
                assert isinstance(event, Forgotten), "its subject names the type"
                found = event.past
    return found
