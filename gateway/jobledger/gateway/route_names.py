"""One gateway process's copy of all route names: a request to a name that nobody set costs no read of the ledger."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from jobledger.ledger import Ledger
from jobledger.ledger.model.hooks.route import ROUTE
from jobledger.ledger.model.subjects import check_token

#: For how long after a read of the ledger an unknown name causes no other read.
FRESH_S: Final = 0.5


class RouteNames:
    """All route names ever set, as far as this process has read; only the ledger says whether one is still set."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._reached = 0  # the stream sequence of the newest event of a route that was read
        self._looked_at = float("-inf")  # when the last look began that came to its end
        self._looking: asyncio.Task[None] | None = None

    def add(self, name: str) -> None:
        """Know a name that was set here just now."""
        self._names.add(name)

    async def has(self, ledger: Ledger, name: str) -> bool:
        """Return whether a route of this name was ever set; one set in the last half second may be missing.

        Anybody can send requests to unknown names, so in that time all of them together cause one read of the ledger.

        Raises: InvalidTokenError, UnreachableError.
        """
        check_token("route", name)
        since = ledger.clock.monotonic() - FRESH_S
        while name not in self._names and self._looked_at < since:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(ledger))
            await asyncio.shield(self._looking)  # a caller that is cancelled does not end it for others
        return name in self._names

    async def _look(self, ledger: Ledger) -> None:
        began = ledger.clock.monotonic()
        await ledger.patience.read(lambda: self._read_on(ledger))
        self._looked_at = began

    async def _read_on(self, ledger: Ledger) -> None:
        log, every = ledger.log, ROUTE.everything(ledger.log.names)
        if await log.newest_sequence(every) <= self._reached:
            return
        batches = log.read_messages(from_sequence=self._reached + 1, subject=every)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                self._names.update(each.subject.split(".")[2] for each in batch)
                self._reached = batch[-1].stream_sequence
