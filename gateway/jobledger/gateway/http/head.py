"""The head of a request: its headers by name, and its id; also the headers that are added to its answer.

Each of these is made once and kept in the scope.

An id protects nothing, so it needs no random bytes of the system, which would cost a call for each request.
"""

from __future__ import annotations

import os
import random
from typing import Final

from starlette.types import Scope

from jobledger.ledger.model.subjects import is_token

REQUEST_ID: Final = "x-request-id"
_HEADERS: Final = "jobledger.headers"
_ID: Final = "jobledger.request_id"
_ADDED: Final = "jobledger.added"
_drawn: Final = random.Random()  # noqa: S311 - for ids, not for secrets
os.register_at_fork(after_in_child=_drawn.seed)


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers by their names in lower case; values of a repeated header are joined by commas."""
    known: dict[str, str] | None = scope.get(_HEADERS)
    if known is not None:
        return known
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        found[key] = f"{found[key]}{'; ' if key == 'cookie' else ', '}{text}" if key in found else text
    scope[_HEADERS] = found
    return found


def request_id_of(scope: Scope) -> str:
    """Return the id of a request: the one that came with it if that is valid, else a new one."""
    known: str | None = scope.get(_ID)
    if known is None:
        given = headers_of(scope).get(REQUEST_ID)
        known = scope[_ID] = given if given and is_token(given) else f"{_drawn.getrandbits(64):016x}"
    return known


def added_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the list of headers that every answer to this request gets; add to it before the answer begins."""
    known: list[tuple[bytes, bytes]] | None = scope.get(_ADDED)
    if known is None:
        known = scope[_ADDED] = []
    return known
