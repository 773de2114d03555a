"""Whether the ledger is audited: how far it is sealed, when it was verified and archived last.

The answer comes from the newest events of the reactors' chains: one read each, for a ledger of any length. The ledger
shows a check only if it was recorded (`record_verify`): a check itself appends nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

import msgspec

from jobledger.audit.seals.seals import newest_seal
from jobledger.audit.verify.report import Report
from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, VERIFY, Archived, ReactorEvent, Verified

E = TypeVar("E", bound=ReactorEvent)


class AuditState(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded audit of the ledger; None: it never happened."""

    sealed_through: int | None = None  #: stream sequence that the newest seal goes up to
    sealed_at: datetime | None = (
        None  #: the seal's own time, which is hashed, and which a restore does not change
    )
    unsealed: int | None = None  #: events after it that are no seal; None without a seal
    verified: Verified | None = None  #: the newest check that was recorded
    archived_at: datetime | None = None
    archived_through: int | None = None


async def audited(log: Log) -> AuditState:
    """Read what the ledger records of its own audit.

    Raises: CorruptLedgerError, UnreachableError.
    """
    seal = await newest_seal(log)
    head = (await log.head()).last_sequence
    verified = await _newest(log, "verified", VERIFY, Verified)
    archived = await _newest(log, "archived", ARCHIVE, Archived)
    return AuditState(
        sealed_through=None if seal is None else seal.seal.to_sequence,
        sealed_at=None if seal is None else seal.seal.at,
        # The seal itself is one of the events after its range.
        unsealed=None if seal is None else max(0, head - seal.seal.to_sequence - 1),
        verified=verified,
        archived_at=None if archived is None else archived.at,
        archived_through=None if archived is None else archived.through_sequence,
    )


async def _newest(log: Log, kind: str, reactor: str, cls: type[E]) -> E | None:
    message = (await end_of_chain(log, REACTOR.of_type(log.names, kind, reactor))).event
    if message is None:
        return None
    event = REACTOR.decode(message)
    assert isinstance(event, cls), "its subject names the type"
    return event


async def record_verify(log: Log, report: Report, stamp: Stamp) -> int:
    """Record in the ledger what a check of it found; return the stream sequence of the event.

    Raises: WrongSequenceError, LedgerFullError, UnreachableError.
    """

    async def attempt() -> int:
        newest = await end_of_chain(log, REACTOR.chain(log.names, VERIFY))
        event = Verified(
            reactor=VERIFY,
            at=stamp.at,
            by=stamp.by,
            from_sequence=report.from_sequence,
            to_sequence=report.head_sequence,
            head_hash=report.head_hash,
            digest=report.digest,
            sound=report.sound,
            violations=report.violations_count,
        )
        return await log.append(
            REACTOR.link(log.names, [event], REACTOR.view(newest.event, newest.last_sequence))
        )

    return await retry_raced(attempt)
