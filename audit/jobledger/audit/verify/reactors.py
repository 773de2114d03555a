"""The part of a check that is about reactors: their chains, and what the archive says of the ledger's beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jobledger.audit.verify.rules import Broken
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.reactor import (
    ARCHIVE,
    SEALS,
    Archived,
    Counted,
    ReactorEvent,
    SealRecorded,
    decode_reactor_event,
    reactor_event_type,
)
from jobledger.ledger.model.subjects import Names

#: Whose chain each event belongs to; so a check keeps one hash for each and no more.
_REACTOR_OF: Final[dict[type[ReactorEvent], str]] = {
    SealRecorded: SEALS,
    Archived: ARCHIVE,
    Counted: ARCHIVE,
}


class ReactorChains:
    """The reactors' chains seen so far."""

    def __init__(self, names: Names, *, from_start: bool) -> None:
        self._names = names
        self._from_start = from_start  # the check began at sequence 1: a chain it does not know has no past
        self._digests: dict[str, bytes] = {}
        self.archived: Archived | None = None  #: the newest one
        self.seals = 0

    @property
    def archived_through(self) -> int:
        """The last stream sequence of which `archived` says that it is in the archive; 0 before there is one."""
        return 0 if self.archived is None else self.archived.through_sequence

    def feed(self, message: Message, digest: bytes) -> Iterator[Broken]:
        """Take in the next event of a reactor, and tell what is wrong with it."""
        try:
            event = decode_reactor_event(message)
        except CorruptLedgerError as error:
            yield "readable", str(error)
            return
        if event.at.tzinfo is None:
            yield "readable", "its time `at` has no zone"
        kind = reactor_event_type(event)
        own = event.reactor == _REACTOR_OF[type(event)]
        if not own or message.subject != self._names.reactor_event(event.reactor, kind):
            yield "subject", f"it is stored as {message.subject!r}, its own fields say otherwise"
        if not own:
            return
        yield from self._check_link(event)
        self._digests[event.reactor] = digest
        if isinstance(event, Archived):
            yield from self._check_archived(event, message.stream_sequence)
            self.archived = event
        elif isinstance(event, Counted):
            yield from self._check_counted(event, message.stream_sequence)
        else:
            self.seals += 1

    def _check_link(self, event: ReactorEvent) -> Iterator[Broken]:
        known = self._digests.get(event.reactor)
        if known is not None and event.prev != known.hex():
            yield "chain", f"it follows {event.prev!a}, the event before it has the hash {known.hex()}"
        if known is None and event.prev and self._from_start:
            yield "chain", f"it follows {event.prev!a}, and no event of its reactor is before it"

    def _check_archived(self, event: Archived, stream_sequence: int) -> Iterator[Broken]:
        before = self.archived.through_sequence if self.archived is not None else 0
        if not before < event.through_sequence < stream_sequence:
            yield "archive", f"`archived` through {event.through_sequence} follows one through {before}"

    @staticmethod
    def _check_counted(event: Counted, stream_sequence: int) -> Iterator[Broken]:
        if not event.archive_through <= event.through_sequence < stream_sequence:
            what = f"`counted` through {event.through_sequence} of an archive through {event.archive_through}"
            yield "archive", f"{what} is stored at {stream_sequence}"
        if not 1 <= event.part <= event.parts:
            yield "archive", f"it is part {event.part} of {event.parts}"


def reactor_name(subject: str) -> str:
    """Return what a report calls the reactor of a stored event: `reactor <name>`."""
    return f"reactor {'.'.join(subject.split('.')[2:3])}"
