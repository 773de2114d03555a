"""Parts of a gateway in the test's own process: access without a gate, and a projection without a child process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from starlette.requests import HTTPConnection

from jobledger.admin.past import AsOf
from jobledger.admin.rows import Rows, View
from jobledger.gateway.access.gate import Gate
from jobledger.gateway.access.identity import local_principal
from jobledger.ledger.model.rights.authority import Principal


class LocalAccess:
    """Takes everybody for the account that this process runs under; nothing else is checked."""

    gate: Gate | None = None

    def __init__(self) -> None:
        """Find the account."""
        self._principal = local_principal()

    def principal(self, connection: HTTPConnection) -> Principal:
        """Return who asks."""
        del connection
        return self._principal

    def form_token(self, connection: HTTPConnection) -> str:
        """Return the token that each form of a page must hold: the same for all, as nothing is checked here."""
        del connection
        return "local"

    def can_log_out(self, connection: HTTPConnection) -> bool:
        """Return that nobody logged in."""
        del connection
        return False


class OwnProjection:
    """Rows that are brought up to the ledger's head at each read."""

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
