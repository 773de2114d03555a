"""Events that an archive run took away: read where --archive names them, and told of where they are missed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from jobledger.audit.archive.chain import newest_archived, with_past
from jobledger.audit.export import JoinedLog
from jobledger.audit.export.payloads import PayloadFiles
from jobledger.cli.errors import UsageError
from jobledger.ledger.model.log import Log


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """What lies before the first event that is read."""

    first_sequence: int  #: the first one that is read
    is_archived: (
        bool  #: the ledger says that the rest is in an archive; else it is lost, or nobody knows where
    )
    is_named: bool  #: part of the archive was named, and not all of it

    def sentence(self, command: str) -> str:
        """Say what is not in the answer, and how it comes into it; `command` is the one that was given."""
        begin = f"stream sequence {self.first_sequence}"
        if self.is_named:
            return f"what --archive names begins at {begin}: name the exports before it as well, the oldest first"
        if self.is_archived:
            return f"events before {begin} were archived, and `{command} --archive DIR` reads those as well"
        return (
            f"events before {begin} are lost, since no `archived` event says where they are: "
            "see what `jobledger audit verify` finds"
        )


async def with_archive(log: Log, places: Sequence[Path]) -> Log:
    """Return the ledger with the archive of --archive in front of it; as it is when none is named.

    Raises: UsageError where exports end before the ledger begins, and as `with_past`.
    """
    if not places:
        return log
    joined = await with_past(log, places)
    await refuse_hole(joined, log, places)
    return joined


async def refuse_hole(joined: Log, live: Log, places: Sequence[Path]) -> None:
    """Refuse exports that end before the ledger begins: also after a chain was read, as an archive run may go on.

    Raises: UsageError.
    """
    first = (await live.head()).first_sequence
    if isinstance(joined, JoinedLog) and joined.archived_through < first - 1:
        raise UsageError(
            f"--archive {places[-1]}: it ends at stream sequence {joined.archived_through}, and the ledger begins at "
            f"{first}: name the exports between as well, the oldest first"
        )


def archived_payloads(log: Log) -> PayloadFiles:
    """Return the large values of the exports in front of a ledger."""
    return PayloadFiles(*(log.folders if isinstance(log, JoinedLog) else ()))


async def missing(log: Log, places: Sequence[Path] = (), *, since: datetime | None = None) -> Missing | None:
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
    return Missing(first_sequence=first, is_archived=is_archived, is_named=bool(places))
