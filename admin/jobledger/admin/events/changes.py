"""What happened to something that people set: a key, a limit, a route, a webhook or a watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.envelope import Moment

S = TypeVar("S")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One event of its chain."""

    stream_sequence: int
    at: Moment  #: by the server's clock
    event: str  #: its type, as `set` or `removed`
    by: str  #: the process or person
    words: str  #: what it says


def change_of(aggregate: Aggregate[Any, Any], message: Message) -> Change:
    """Return an event of the aggregate in words."""
    event = aggregate.decode(message)
    return Change(
        stream_sequence=message.stream_sequence,
        at=message.stored_at,
        event=aggregate.type_of(event),
        by=event.by,
        words=aggregate.words(event),
    )


def newest_and_changes(
    aggregate: Aggregate[Any, S], messages: Sequence[Message], *, most: int
) -> tuple[S, tuple[Change, ...]]:
    """Return the state that the newest of some messages gives, and up to `most` of them as changes, the newest first.

    `aggregate`: one whose newest event gives its whole state. `messages`: of one chain, at least one, the oldest first.
    """
    newest = messages[-1]
    state = aggregate.evolve(None, aggregate.decode(newest), newest.stream_sequence)
    return state, tuple(change_of(aggregate, message) for message in reversed(messages[-most:]))
