"""The check whether the authority with which an act began still holds, and what it allows now."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from jobledger.ledger.access.keys import find_key
from jobledger.ledger.model.errors import AccessDeniedError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.rights.authority import Principal, principal_of
from jobledger.ledger.model.rights.grants import Permission, Scope

_OF_KEY: Final = "key:"
_OF_PERSON: Final = "user:"


async def authority_of(
    log: Log, by: str, now: datetime, *, allowed: Collection[Permission], scope: Scope
) -> Principal | None:
    """Return the authority of whoever an event names in `by`, as it is now; None for an operator.

    A key is looked up. What a person may do is known only where they log in, so `allowed` and `scope` say what it was
    when they asked.

    Raises: AccessDeniedError for a key that was revoked or has expired; UnreachableError.
    """
    if by.startswith(_OF_PERSON):
        return principal_of(by, frozenset(allowed), scope)
    if not by.startswith(_OF_KEY):
        return None
    key_id = by.rpartition("/")[2]
    key = await find_key(log, key_id)
    standing = "unknown" if key is None else key.standing(now)
    if key is None or standing not in {"live", "used"}:
        raise AccessDeniedError(f"{by} may do nothing any more: the key is {standing}")
    return principal_of(by, key.allowed, key.scope, key_id)
