"""Without keys: whoever sits at this machine may do everything."""

from __future__ import annotations

import getpass

from starlette.requests import HTTPConnection

from jobledger.admin.rows import safe_name
from jobledger.gateway.access.permissions import ROLES, Principal


class LocalAccess:
    """Takes everybody for the account that the gateway runs under; for a gateway that listens on loopback alone."""

    def __init__(self) -> None:
        """Find the account."""
        try:
            account = safe_name(getpass.getuser())
        except (KeyError, OSError):  # no such account in this container
            account = ""
        self._principal = Principal(name=f"local:{account or 'operator'}", permissions=ROLES["admin"])

    def principal(self, connection: HTTPConnection) -> Principal:
        """Return who asks."""
        del connection
        return self._principal
