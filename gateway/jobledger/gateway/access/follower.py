"""The ledger's keys as a gateway reads them: each change in order; a check a second proves that none is missing.

The same check reads which sessions somebody ended.

A reader without messages may be up to date or cut off. So the gateway asks once a second for the newest
sequence of all keys, which the stream's leader answers, and compares it with what it has read. Source: ADR 033.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from jobledger.gateway.access.ring import KeyRing
from jobledger.gateway.access.sessions import Sessions
from jobledger.ledger import Ledger
from jobledger.ledger.access.keys import all_keys
from jobledger.ledger.model.errors import LedgerError, ServerUnreachableError
from jobledger.ledger.model.key import ACCESS
from jobledger.ledger.nats.books.ended_sessions import read_ended
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.inbox import ReplyTimeoutError

_PROVE_EVERY_S: Final = 1.0
_AGAIN_S: Final = 0.5
#: A reader that has not read what the leader has for this long is started again.
_BEHIND_S_MAX: Final = 3.0

_log = logging.getLogger("jobledger.gateway.keys")


class KeyFollower:
    """The follower that keeps a ring equal to the ledger's keys while `run` runs."""

    def __init__(self, ledger: Ledger, ring: KeyRing, sessions: Sessions) -> None:
        """Read nothing before `run`."""
        self._ledger = ledger
        self._ring = ring
        self._sessions = sessions
        self._ended_reached = 0  # the sequence of the newest end of a session that was read
        self._told = ""  # the last error in the log, so that it is logged once
        self._moved = asyncio.Event()  # set when the ring changes
        ring.on_change(self._moved.set)
        self.begun = asyncio.Event()  #: set when the keys were read for the first time

    async def run(self) -> None:
        """Follow for ever; log what goes wrong, and try again."""
        while True:
            try:
                await self._follow()
            except (LedgerError, ConnectionLostError, ReplyTimeoutError, TimeoutError) as error:
                self._tell(str(error) or "the server gives no answer")
            await asyncio.sleep(_AGAIN_S)

    def _tell(self, why: str) -> None:
        if why != self._told:
            self._told = why
            _log.warning("the keys in the ledger could not be read, and will be tried again: %s", why)

    async def _follow(self) -> None:
        log = self._ledger.log
        began, head = self._ledger.clock.monotonic(), await log.head()
        self._ring.replace(await all_keys(log), head.last_sequence)
        await self._read_ended()
        self._ring.prove(began)
        self._told = ""
        self.begun.set()
        parts = [
            asyncio.ensure_future(self._read(head.last_sequence + 1)),
            asyncio.ensure_future(self._prove()),
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            await done.pop()  # each ends only with an error
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _read(self, first: int) -> None:
        log = self._ledger.log
        subject = ACCESS.everything(log.names)
        batches = log.read_messages(from_sequence=first, subject=subject, follow=True)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                self._ring.take(batch)
        raise ServerUnreachableError("the reader of keys ended")

    async def _read_ended(self) -> None:
        """Read which sessions ended since. Raises: LedgerError, ReplyTimeoutError, ConnectionLostError."""
        ledger, after = self._ledger, self._ended_reached
        ids, self._ended_reached = await read_ended(ledger.connection, ledger.inbox, ledger.names, after)
        if ids:
            self._sessions.end(ids)

    async def _prove(self) -> None:
        """Compare with the stream's leader, once a second. Raises: TimeoutError if the reader does not catch up."""
        log, clock = self._ledger.log, self._ledger.clock
        while True:
            asked_at = clock.monotonic()
            async with asyncio.timeout(_BEHIND_S_MAX):
                newest = await log.newest_sequence(ACCESS.everything(log.names))
                while newest > self._ring.reached:
                    self._moved.clear()
                    await self._moved.wait()
                await self._read_ended()
            self._ring.prove(asked_at)
            await asyncio.sleep(_PROVE_EVERY_S)
