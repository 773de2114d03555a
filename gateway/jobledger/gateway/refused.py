"""Requests to routes that were refused: counted, logged at a bearable rate, and the newest kept in memory for a person.

None of them reaches the ledger: whoever can send requests could fill it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.model.envelope import Moment

KEPT_MAX: Final = 200
_LOG_EVERY_S: Final = 60.0
_log: Final = logging.getLogger("jobledger.gateway")


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was refused, without anything that it said."""

    at: Moment  #: by the gateway's clock
    route: str
    code: str  #: BAD_SIGNATURE, STALE_TIMESTAMP, or DIFFERENT_BODY of a delivery's id that came with another body
    why: str
    client: str  #: the address that it came from


class RefusedRequests:
    """The newest of one process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.newest: deque[RefusedRequest] = deque(maxlen=KEPT_MAX)
        self._monotonic = monotonic
        self._logged: dict[str, tuple[float, int]] = {}  #: when a route was logged, and how many came since

    def add(self, route: str, code: str, why: str, *, client: str, at: datetime) -> None:
        """Keep one, and log it unless its route was logged within a minute: then the next line says how many there were."""
        self.newest.appendleft(RefusedRequest(at=at, route=route, code=code, why=why, client=client))
        now = self._monotonic()
        logged_at, since = self._logged.get(route, (now - _LOG_EVERY_S, 0))
        if now - logged_at < _LOG_EVERY_S:
            self._logged[route] = logged_at, since + 1
            return
        self._logged[route] = now, 0
        more = f", and {since:,} before it" if since else ""
        _log.warning("a request to route %s from %s was refused%s: %s", route, client or "nowhere", more, why)
