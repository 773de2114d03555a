"""Ledgers in memory and on a server whose clients take locks, and the power to end their leases."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from tests.support import limits
from tests.support.jetstream import api
from tests.support.memory_locks import MemoryHints, MemoryLeases

from jobledger.ledger.connection import connect
from jobledger.ledger.locks import Locks
from jobledger.ledger.model.clock import SYSTEM_CLOCK
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.identity import new_identity
from jobledger.ledger.model.lock import LOCK, LockEvent
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import LockRef

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

LIMIT_S = limits.LIMIT_S
LEASE_S = 12.0  # renewed every four, so that a process that stands still for a moment keeps it
REF = LockRef(scope="account", lock_id="42")


class World:
    """One ledger, as many clients as a test wants, and the power to end their leases."""

    def __init__(self, log: Log, connect_one: Callable[[], AbstractAsyncContextManager[Locks]]) -> None:
        self.log = log
        self.client = connect_one
        self.end_lease: Callable[[Locks], object] = _nothing

    async def events(self) -> list[LockEvent]:
        subject = LOCK.chain(self.log.names, REF.scope, REF.lock_id)
        batches = self.log.read_messages(subject=subject)
        return [LOCK.decode(message) async for batch in batches for message in batch]

    async def types(self) -> list[str]:
        return [str(event.__struct_config__.tag) for event in await self.events()]


def _nothing(_: Locks) -> None:
    return None


def identity_of(locks: Locks) -> str:
    assert locks._keeper is not None
    return locks._keeper.identity


@contextlib.asynccontextmanager
async def memory_world(
    log: Log | None = None, leases: MemoryLeases | None = None
) -> AsyncGenerator[World, None]:
    log, leases, hints = log or MemoryLog(), leases or MemoryLeases(LEASE_S), MemoryHints()

    @contextlib.asynccontextmanager
    async def client() -> AsyncGenerator[Locks, None]:
        def stamp(by: str) -> Stamp:
            return Stamp(at=SYSTEM_CLOCK.now(), by=by or new_identity())

        locks = Locks(log, leases, hints, SYSTEM_CLOCK, stamp)
        try:
            yield locks
        finally:
            await locks.close()

    world = World(log, client)
    world.end_lease = lambda locks: leases.expire(identity_of(locks))
    yield world


@contextlib.asynccontextmanager
async def server_world(server: EmbeddedServer) -> AsyncGenerator[World, None]:
    options: dict[str, Any] = {
        "environment": f"t_{secrets.token_hex(6)}",
        "lease_s": LEASE_S,
        "ledger_bytes_max": 1 << 24,
    }

    @contextlib.asynccontextmanager
    async def client() -> AsyncGenerator[Locks, None]:
        async with connect(server.url, **options) as ledger:
            yield ledger.locks

    async with connect(server.url, **options) as ledger:
        world = World(ledger.log, client)
        bucket = ledger.names.workers_bucket

        async def end(locks: Locks) -> None:
            filter_subject = {"filter": f"$KV.{bucket}.{identity_of(locks)}"}
            answer = await api(ledger.inbox, f"STREAM.PURGE.KV_{bucket}", filter_subject)
            assert answer["success"]

        world.end_lease = end
        yield world


@contextlib.asynccontextmanager
async def held_elsewhere(locks: Locks, **options: float) -> AsyncGenerator[asyncio.Event, None]:
    """Hold the lock in a task of its own until the block ends or the event is set."""
    inside, leave = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with locks.hold("account", "42", **options):
            inside.set()
            await leave.wait()

    holding = asyncio.create_task(hold())
    try:
        async with asyncio.timeout(LIMIT_S):
            await inside.wait()
            yield leave
            leave.set()
            await holding
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
