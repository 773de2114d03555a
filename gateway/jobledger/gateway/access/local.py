"""Access without a gate: every caller is the account that the gateway runs under. For tests."""

from __future__ import annotations

from starlette.requests import HTTPConnection

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
