"""The projection as a gateway reads it: another process follows the ledger, so that no request waits for a fold."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Final

from jobledger.admin.past import AsOf
from jobledger.admin.rows import Rows, View
from jobledger.gateway.process.past import PastViews
from jobledger.ledger import Ledger
from jobledger.projections import Moment, Position, Store
from jobledger.projections.agreement import refuse_archived_position

#: How long a client that reads its own writes waits for the projector.
CATCH_UP_S: Final = 5.0
_OPEN_MAX: Final = 8


class FollowedRows(Rows):
    """Rows that another process keeps up to date: `catch_up` waits until they have reached the ledger's head."""

    def __init__(self, ledger: Ledger, file: Path, past: PastViews) -> None:
        super().__init__(ledger, file)
        self._past = past

    async def catch_up(self) -> Position:
        """Wait until the rows have the ledger's present events; return the position of the rows.

        Raises: ProjectionTimeoutError; PositionArchivedError if the rows can never reach it; ProjectionError in its
            other kinds, UnreachableError.
        """
        head, path = await self.ledger.log.head(), await self.path()
        with Store.open(path) as store:
            position = store.position()
            if position.event_hash:  # a new file begins with the ledger's first event
                refuse_archived_position(path, position, head)
            return await store.wait_for(head.last_sequence, timeout_s=CATCH_UP_S)

    @contextlib.asynccontextmanager
    async def opened(self, then: Moment | None = None) -> AsyncGenerator[View, None]:
        """Open the rows; see `Rows.opened`. Raises: also ProblemError (BUSY)."""
        if then is None:
            async with super().opened() as view:
                yield view
            return
        async with self._past.opened(then.stream_sequence) as store:
            yield View(store, then.at or self.ledger.clock.now(), store.position().begins_at)


class FollowedProjection:
    """The rows of lists, as far as the projector has come; each answer contains the position."""

    def __init__(self, rows: FollowedRows, path: Path) -> None:
        self._rows = rows
        self._path = path
        self._idle: list[Store] = []

    @contextlib.asynccontextmanager
    async def opened(self, past: AsOf | None = None, *, min_sequence: int = 0) -> AsyncGenerator[View, None]:
        """Open the rows; see `Projection.opened`."""
        ledger = self._rows.ledger
        if past is not None:
            async with self._rows.opened(await past.moment(ledger.log, ledger.clock)) as view:
                yield view
            return
        with self._store() as store:
            if min_sequence:
                await store.wait_for(min_sequence, timeout_s=CATCH_UP_S)
            yield View(store, ledger.clock.now(), store.position().begins_at)

    @contextlib.contextmanager
    def _store(self) -> Generator[Store, None, None]:
        """Yield a store for one reader alone, on the present file."""
        store = self._idle.pop() if self._idle else Store.open(self._path)
        try:
            store.renew()
            yield store
        except BaseException:  # a cancelled reader may have left a query half-way: do not use its store again
            store.close()
            raise
        if len(self._idle) < _OPEN_MAX:
            self._idle.append(store)
        else:
            store.close()

    def close(self) -> None:
        """Close the files."""
        while self._idle:
            self._idle.pop().close()
