"""Every aggregate that this version knows, and how a message of any of them is read.

Another one is declared in a module of its own and added to `AGGREGATES`: nothing else lists them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from jobledger.ledger.model import codec
from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.errors import UnknownEventError
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.lifecycle import words
from jobledger.ledger.model.lock import LOCK
from jobledger.ledger.model.reactor import REACTOR
from jobledger.ledger.model.subjects import Names, aggregate_of


class _Jobs(Aggregate[JobEvent, Job]):
    """Jobs: as every aggregate, with the subjects and bytes worked out as fast as can be, since every job needs them."""

    # The functions themselves: a method that calls one is a call more, three times an append.
    chain_of = staticmethod(Names.chain_of)  # type: ignore[assignment]
    subject = staticmethod(Names.event)  # type: ignore[assignment]
    encode = staticmethod(codec.encode)  # pyright: ignore[reportAssignmentType]


JOB: Final = _Jobs("job", ("queue", "job"), JobEvent, state=Job, evolve=evolve, words=words)

#: By name, the second word of a ledger subject.
AGGREGATES: Final[dict[str, Aggregate[Any, Any]]] = {each.name: each for each in (JOB, LOCK, REACTOR)}


def aggregate_for(event: Envelope) -> Aggregate[Any, Any]:
    """Return the aggregate that a fact belongs to."""
    kind = type(event)
    return next(each for each in AGGREGATES.values() if kind in each.types.values())


def read_message(subject: str, data: bytes, stream_sequence: int, stored_at: datetime) -> Message:
    """Return what is stored under `subject`: `StoredEvent` for a job's event, a plain `Message` for another aggregate's.

    Raises: UnknownEventError for an aggregate or type of a newer version, MalformedEventError for anything else.
    """
    aggregate = aggregate_of(subject)
    if aggregate == "job":
        event = codec.decode(data, stream_sequence=stream_sequence)
        return StoredEvent(
            event=event, data=data, stream_sequence=stream_sequence, stored_at=stored_at, subject=subject
        )
    if aggregate in AGGREGATES:
        return Message(data=data, stream_sequence=stream_sequence, stored_at=stored_at, subject=subject)
    message = (
        f"{subject[:200]!r} at stream sequence {stream_sequence} is about something that this version does not "
        "know: read this ledger with a newer jobledger"
    )
    raise UnknownEventError(message, stream_sequence=stream_sequence, next_sequence=stream_sequence + 1)
