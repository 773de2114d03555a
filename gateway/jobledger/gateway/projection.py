"""A projection without a child process: brought up to date by this process at each read."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from jobledger.admin.past import AsOf
from jobledger.admin.rows import Rows, View


class OwnProjection:
    """Rows that are brought up to the ledger's head at each read; for tests."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @contextlib.asynccontextmanager
    async def opened(self, past: AsOf | None = None, *, min_sequence: int = 0) -> AsyncGenerator[View, None]:
        """Open the rows; see `Projection.opened`. They are never behind, so nothing is waited for."""
        del min_sequence
        ledger = self._rows.ledger
        then = None if past is None else await past.moment(ledger.log, ledger.clock)
        async with self._rows.opened(then) as view:
            yield view
