"""When keys were used last: noted in memory at each request, and stored once a minute a key at the most."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Final

from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.nats.books.key_uses import KeyUse, ensure_uses, write_use
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.inbox import ReplyTimeoutError

_STORE_EVERY_S: Final = 5.0
_APART_S: Final = 60.0
_log = logging.getLogger("jobledger.gateway.keys")


class Uses:
    """What one gateway knows of the use of keys."""

    def __init__(self, ledger: Ledger) -> None:
        """Nothing is stored before `run`."""
        self._ledger = ledger
        self._used: dict[str, tuple[datetime, str]] = {}  #: not stored yet, by key
        self._stored: dict[str, float] = {}  #: when it was stored last, by the monotonic clock
        self._is_made = False

    def note(self, key: str, client: str) -> None:
        """Note that a key was used now; for each request, so it costs next to nothing."""
        stored = self._stored.get(key)
        if stored is None or self._ledger.clock.monotonic() - stored >= _APART_S:
            self._used[key] = self._ledger.clock.now(), client

    async def run(self) -> None:
        """Store what was noted, for ever. Nothing depends on it: a use that cannot be stored is tried again."""
        while True:
            await asyncio.sleep(_STORE_EVERY_S)
            try:
                await self.store()
            except (LedgerError, ConnectionLostError, ReplyTimeoutError) as error:
                _log.debug("the last use of keys could not be stored: %s", error)

    async def store(self) -> None:
        """Store what was noted since. Raises: LedgerError, ReplyTimeoutError, ConnectionLostError."""
        if not self._used:
            return
        ledger = self._ledger
        if not self._is_made:
            await ensure_uses(ledger.inbox, ledger.names, ledger.config.replicas)
            self._is_made = True
        for key in list(self._used):
            at, client = self._used[key]
            await write_use(ledger.inbox, ledger.names, KeyUse(key=key, at=at, client=client))
            self._stored[key] = ledger.clock.monotonic()
            self._used.pop(key, None)
