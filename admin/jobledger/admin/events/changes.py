"""What happened to something that people set: a key, a limit, a route, a webhook or a watch."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, Final, TypeVar

import msgspec

from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.log import Log, events_among

S = TypeVar("S")
_CHANGES_MAX: Final = 20  #: the most changes that are shown of one value


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One event of its chain."""

    stream_sequence: int
    at: Moment  #: by the server's clock
    event: str  #: its type, such as `set` or `removed`
    by: str  #: the process or person
    words: str  #: its content in words


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


async def state_and_changes(
    log: Log, of: Aggregate[Any, S], name: str, *, missing: LedgerError
) -> tuple[S, tuple[Change, ...]]:
    """Return what is set under a name, or was when it was removed, and its changes, at most twenty, the newest first.

    Raises: `missing` where nothing ever was, CorruptLedgerError, UnreachableError.
    """
    state: S | None = None
    said: deque[Message] = deque(maxlen=_CHANGES_MAX)
    async with contextlib.aclosing(log.read_messages(subject=of.chain(log.names, name))) as batches:
        async for batch in batches:
            for message in events_among(batch):
                state = of.evolve(state, of.decode(message), message.stream_sequence)
                said.append(message)
    if state is None:
        raise missing
    return state, tuple(change_of(of, message) for message in reversed(said))
