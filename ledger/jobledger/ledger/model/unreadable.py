"""A person's acknowledgement of a message in the ledger that is no event: `Acknowledged`, in a chain of its own. Pure.

Every user who may publish to the stream can add such a message, and nothing removes it. An operator who looked into it
accepts it, once; from then on a check lists it, and no longer calls the ledger unsound for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobledger.ledger.model.aggregate import Aggregate, ArchiveBound, Broken
from jobledger.ledger.model.codec import Unreadable
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope, Whole
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.times import shown_time

_SHOWN_MAX = 300


class Acknowledged(Envelope, frozen=True, kw_only=True, tag="acknowledged", gc=False):
    """An operator accepts that a message of the ledger is no event. It stays where it is, and stays set aside."""

    sequence: Whole  #: stream sequence of the message
    sha256: str  #: hex; of the message's bytes
    stored_as: str  #: the message's subject, cut at 300 characters
    why: str  #: why readers set it aside, cut at 300 characters
    reason: str  #: why the operator accepts it


def evolve(_before: Acknowledged | None, event: Acknowledged, _stream_sequence: int) -> Acknowledged:
    """Return the acknowledgement itself: each message has at most one."""
    return event


def acknowledge(message: Unreadable, before: Acknowledged | None, reason: str, stamp: Stamp) -> Acknowledged:
    """Return the event that accepts a message.

    Raises: RefusedError if the message was accepted before.
    """
    if before is not None:
        raise RefusedError(
            f"stream sequence {before.sequence} was acknowledged by {before.by} at {shown_time(before.at)}: "
            f"{before.reason}"
        )
    return Acknowledged(
        at=stamp.at,
        by=stamp.by,
        trace=stamp.trace,
        sequence=message.stream_sequence,
        sha256=message.hash,
        stored_as=message.subject[:_SHOWN_MAX],
        why=message.why[:_SHOWN_MAX],
        reason=reason,
    )


def _words(event: Acknowledged) -> str:
    return f"by {event.by}: {event.reason}"


def _check(before: Acknowledged | None, event: Acknowledged, stream_sequence: int) -> Iterator[Broken]:
    if before is not None:
        yield "transition", f"stream sequence {event.sequence} was acknowledged before"
    if event.sequence >= stream_sequence:
        yield "transition", f"it accepts stream sequence {event.sequence}, which comes after it"


def _keeps(_event: Acknowledged, _stream_sequence: int) -> ArchiveBound | None:
    return None  # it may go with the message that it is about


UNREADABLE: Aggregate[Acknowledged, Acknowledged] = Aggregate(
    "unreadable",
    ("sequence",),
    Acknowledged,
    state=Acknowledged,
    evolve=evolve,
    words=_words,
    check=_check,
    keeps=_keeps,
)
