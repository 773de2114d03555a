"""The locks that are held, as their newest events say."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.lock import LOCK
from jobledger.ledger.model.log import end_of_chain, events_among
from jobledger.ledger.model.subjects import LockRef, check_token


class LockShown(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that somebody took and did not give back."""

    scope: str
    lock: str
    holder: str  #: `<host>-<pid>-<random>`; its process may be gone, and then the lock is free
    is_alive: bool  #: whether that process has a living lease
    fencing_number: int  #: stream sequence of the event that it was taken by
    since: datetime  #: by the server's clock


class LockState(msgspec.Struct, frozen=True, kw_only=True):
    """A lock, held or free."""

    scope: str
    lock: str
    held: bool  #: somebody took it and has not given it back
    holder: str  #: `<host>-<pid>-<random>`; "" if it is free
    is_alive: bool  #: whether the holder's process has a living lease; without one the lock is free for whoever asks
    fencing_number: int  #: stream sequence of the event by which it was taken last; 0: nobody ever took it
    since: datetime | None  #: when it was taken or given back, by the server's clock


async def lock_state(ledger: Ledger, scope: str, lock_id: str) -> LockState:
    """Return one lock as its newest event has it.

    Raises: InvalidTokenError, CorruptLedgerError, UnreachableError.
    """
    ref = LockRef(scope=check_token("scope", scope), lock_id=check_token("lock", lock_id))
    newest = await end_of_chain(ledger.log, LOCK.chain(ledger.names, ref.scope, ref.lock_id))
    event = newest.event
    lock = None if event is None else LOCK.evolve(None, LOCK.decode(event), event.stream_sequence)
    holder = "" if lock is None else lock.holder
    return LockState(
        scope=ref.scope,
        lock=ref.lock_id,
        held=lock is not None and lock.is_held,
        holder=holder,
        is_alive=bool(holder) and await ledger.leases.find(holder) is not None,
        fencing_number=0 if lock is None else lock.fencing_number,
        since=None if event is None else event.stored_at,
    )


async def list_locks(ledger: Ledger, *, limit: int) -> list[LockShown]:
    """Return the locks that were not given back, the last taken first; reads all events of locks.

    Raises: CorruptLedgerError, UnreachableError.
    """
    held: dict[tuple[str, ...], LockShown] = {}
    batches = ledger.log.read_messages(subject=LOCK.everything(ledger.names))
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in events_among(batch):
                key = LOCK.key_in(message.subject)
                lock = LOCK.evolve(None, LOCK.decode(message), message.stream_sequence)
                held.pop(key, None)  # moves the key to the end, so that those taken last stand last
                if lock.is_held:
                    held[key] = LockShown(
                        scope=key[0],
                        lock=key[1],
                        holder=lock.holder,
                        is_alive=False,
                        fencing_number=lock.fencing_number,
                        since=message.stored_at,
                    )
    newest = list(reversed(held.values()))[:limit]
    found = await asyncio.gather(*(ledger.leases.find(each.holder) for each in newest))
    return [
        msgspec.structs.replace(each, is_alive=info is not None)
        for each, info in zip(newest, found, strict=True)
    ]
