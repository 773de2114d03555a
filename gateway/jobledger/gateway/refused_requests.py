"""Refused requests to routes: counted, logged at a limited rate, and the newest kept in memory for people.

None of them is stored in the ledger, since anybody who can send requests could fill it.
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
    """A refused request, without its content."""

    at: Moment  #: by the gateway's clock
    route: str
    code: str  #: BAD_SIGNATURE, STALE_TIMESTAMP, or DIFFERENT_BODY for the id of a known delivery
    why: str
    client: str  #: the address that it came from


class RefusedRequests:
    """The newest refused requests of one process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.newest: deque[RefusedRequest] = deque(maxlen=KEPT_MAX)
        self._monotonic = monotonic
        self._logged: dict[str, tuple[float, int]] = {}  #: by route: last line in the log, requests since

    def add(self, route: str, code: str, why: str, *, client: str, at: datetime) -> None:
        """Keep a request. Log it unless its route was logged within a minute: then the next line tells the number."""
        self.newest.appendleft(RefusedRequest(at=at, route=route, code=code, why=why, client=client))
        now = self._monotonic()
        logged_at, since = self._logged.get(route, (now - _LOG_EVERY_S, 0))
        if now - logged_at < _LOG_EVERY_S:
            self._logged[route] = logged_at, since + 1
            return
        self._logged[route] = now, 0
        more = f", and {since:,} before it" if since else ""
        _log.warning("a request to route %s from %s was refused%s: %s", route, client or "nowhere", more, why)
