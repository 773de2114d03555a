"""The names of all routes as one gateway process knows them, so that requests to names that nobody set cost the ledger nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from jobledger.ledger import Ledger
from jobledger.ledger.model.hooks.route import ROUTE
from jobledger.ledger.model.subjects import check_token

#: How long after a look a name that it did not find is not looked for.
FRESH_S: Final = 0.5


class RouteNames:
    """Every name that was ever set, as far as it was looked for. Whether the route is still set, the ledger says."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._reached = 0  # the stream sequence of the newest event of a route that was read
        self._looked_at = float("-inf")  # when the last look began that came to its end
        self._looking: asyncio.Task[None] | None = None

    def add(self, name: str) -> None:
        """Know a name that was set here just now."""
        self._names.add(name)

    async def has(self, ledger: Ledger, name: str) -> bool:
        """Return whether a route of this name was ever set, but for the last half a second.

        Whoever asks for unknown names causes one look in that time, however many they ask for: anybody can.

        Raises: InvalidTokenError, UnreachableError.
        """
        check_token("route", name)
        since = ledger.clock.monotonic() - FRESH_S
        while name not in self._names and self._looked_at < since:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(ledger))
            await asyncio.shield(self._looking)  # who gives up does not end it for the others
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
