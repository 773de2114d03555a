"""Writes and reads of keys: every append is decided on the newest event of the key's chain, and conditional on it."""

from __future__ import annotations

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.key import ACCESS, AccessCommand, Key, decide
from jobledger.ledger.model.log import Log, events_among
from jobledger.ledger.model.named_chain import newest
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.named_values import Writer, change


async def change_key(client: Writer, key: str, command: AccessCommand, *, by: str) -> Key:
    """Record what follows from a command on a key; return the key after that.

    Raises: what `key.decide` raises, InvalidTokenError, LedgerFullError, ServerUnreachableError, after which doing the
        same again is safe: a key that was made is refused the second time, with the same id.
    """
    check_token("id of a key", key)
    done = await change(client, ACCESS, key, lambda before, stamp: decide(key, before, command, stamp), by=by)
    return done.state


async def find_key(log: Log, key: str) -> Key | None:
    """Return a key as its chain says now; None where it has none. Raises: InvalidTokenError, UnreachableError."""
    check_token("id of a key", key)
    return (await newest(log, ACCESS, key)).get(key)


async def all_keys(log: Log) -> dict[str, Key]:
    """Return every key that the ledger knows, by its id, as of the moment of the call; ended ones too."""
    return await newest(log, ACCESS)


def take(found: dict[str, Key], batch: list[Message]) -> None:
    """Add the keys that a batch of events tells of to `found`."""
    for message in events_among(batch):
        event = ACCESS.decode(message)
        found[event.key] = ACCESS.evolve(found.get(event.key), event, message.stream_sequence)
