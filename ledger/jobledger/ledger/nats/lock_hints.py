"""Hints about locks: "look now" and "somebody waits". Core NATS messages that may be lost; nothing depends on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, Protocol

from jobledger.ledger.model.subjects import LockRef, Names
from jobledger.ledger.nats.connection import Connection, ConnectionLostError

#: `free`: it was given back, look now; `wanted`: somebody waits, so pause before taking it again.
Hint = Literal["free", "wanted"]

_SUBSCRIBE_TIMEOUT_S: Final = 2.0


class LockWatch:
    """The hints on one lock since the last look at it."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.wanted = False

    def hear(self, hint: bytes) -> None:
        """Note a hint; ignore any other message."""
        if hint == b"free":
            self.free.set()
        elif hint == b"wanted":
            self.wanted = True


class LockHints(Protocol):
    """The means by which locks wake each other."""

    def watch(self, ref: LockRef) -> AbstractAsyncContextManager[LockWatch]:
        """Listen for hints about one lock, for the length of the block; own hints are heard, too."""
        ...

    def tell(self, ref: LockRef, hint: Hint) -> None:
        """Give a hint to everybody who watches; lost without a trace when nobody does."""
        ...


class NatsLockHints:
    """Hints over core NATS, one subscription per lock that this process wants or holds."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names

    @contextlib.asynccontextmanager
    async def watch(self, ref: LockRef) -> AsyncGenerator[LockWatch, None]:
        """Subscribe; see `LockHints.watch`. Without a subscription the watcher only looks by itself."""
        self._connection.require_here()
        watch = LockWatch()

        def on_hint(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
            watch.hear(data)

        subscription = None
        with contextlib.suppress(Exception):  # the next append or read raises a better error
            async with asyncio.timeout(_SUBSCRIBE_TIMEOUT_S):
                subscription = await self._connection.listen(self._names.lock_hint(ref), on_hint)
        try:
            yield watch
        finally:
            if subscription is not None:
                await self._connection.unlisten(subscription)

    def tell(self, ref: LockRef, hint: Hint) -> None:
        """Publish; see `LockHints.tell`."""
        with contextlib.suppress(ConnectionLostError):
            self._connection.send(self._names.lock_hint(ref), "", b"", hint.encode())
