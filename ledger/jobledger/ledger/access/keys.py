"""Writes and reads of keys: every append is decided on the newest event of the key's chain, and conditional on it."""

from __future__ import annotations

import contextlib
from typing import Protocol

from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.key import ACCESS, AccessCommand, Key, decide
from jobledger.ledger.model.log import Log, end_of_chain, events_among
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.patience import Patience


class Client(Protocol):
    """What keys need of a ledger's client."""

    log: Log
    patience: Patience

    def stamp(self, by: str = "") -> Stamp:
        """Return who acts, and when."""
        ...


async def change_key(client: Client, key: str, command: AccessCommand, *, by: str) -> Key:
    """Record what follows from a command on a key; return the key after that.

    Raises: what `key.decide` raises, InvalidTokenError, LedgerFullError, ServerUnreachableError, after which doing the
        same again is safe: a key that was made is refused the second time, with the same id.
    """
    check_token("id of a key", key)
    log = client.log

    async def attempt() -> Key:
        view = ACCESS.view(*await end_of_chain(log, ACCESS.chain(log.names, key)))
        event = decide(key, view.state, command, client.stamp(by))
        sequence = await log.append(ACCESS.link(log.names, [event], view))
        return ACCESS.evolve(view.state, event, sequence)

    return await client.patience.read(lambda: retry_raced(attempt))


async def find_key(log: Log, key: str) -> tuple[Key | None, list[Message]]:
    """Return a key as its chain says now, and the messages of that chain, the oldest first; None where it has none."""
    check_token("id of a key", key)
    said: list[Message] = []
    state: Key | None = None
    async with contextlib.aclosing(log.read_messages(subject=ACCESS.chain(log.names, key))) as batches:
        async for batch in batches:
            for message in events_among(batch):
                state = ACCESS.evolve(state, ACCESS.decode(message), message.stream_sequence)
                said.append(message)
    return state, said


async def all_keys(log: Log) -> dict[str, Key]:
    """Return every key that the ledger knows, by its id, as of the moment of the call; ended ones too."""
    found: dict[str, Key] = {}
    async with contextlib.aclosing(log.read_messages(subject=ACCESS.everything(log.names))) as batches:
        async for batch in batches:
            take(found, batch)
    return found


def take(found: dict[str, Key], batch: list[Message]) -> None:
    """Add the keys that a batch of events tells of to `found`."""
    for message in events_among(batch):
        event = ACCESS.decode(message)
        found[event.key] = ACCESS.evolve(found.get(event.key), event, message.stream_sequence)
