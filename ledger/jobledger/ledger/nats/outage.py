"""Logs that the server cannot be reached, the ledger is full, or a key is away: one line at once, and one a minute.

The connection and the lease of a process report here each time they find the server away; most reports write no line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from jobledger.ledger.model.errors import KeyUnavailableError, LedgerFullError, UnreachableError

logger = logging.getLogger("jobledger.connection")

_TELL_EVERY_S: Final = 60.0
#: An outage that begins within this time after the last line gets no line of its own, for connections that come and go.
_QUIET_S: Final = 5.0
#: Errors that each job would meet, and the level of the one line a minute that each kind of them gets.
_OF_EACH_JOB: Final[Mapping[type[Exception], int]] = {
    LedgerFullError: logging.ERROR,
    KeyUnavailableError: logging.WARNING,
}


class Outage:
    """The knowledge of one process about whether the server is away."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._since: float | None = None
        self._told_at = -_TELL_EVERY_S
        self._is_told = False
        self._each_told_at: dict[type[Exception], float] = {}

    def level(self, error: Exception) -> int:
        """Return the level at which to log an error: failures while the server is away need no line of their own.

        A full ledger refuses every append, and who has no master key reads no sealed value: each gets one line a minute.
        """
        for kind, level in _OF_EACH_JOB.items():
            if isinstance(error, kind):
                now = self._monotonic()
                if now - self._each_told_at.get(kind, -_TELL_EVERY_S) < _TELL_EVERY_S:
                    return logging.DEBUG
                self._each_told_at[kind] = now
                return level
        is_known = self._since is not None and isinstance(error, UnreachableError)
        return logging.DEBUG if is_known else logging.WARNING

    def note(self, why: str) -> None:
        """Report that the server cannot be reached; `why` is the end of the log line, and holds no secret."""
        now = self._monotonic()
        if self._since is None:
            self._since = now
            self._is_told = now - self._told_at >= _QUIET_S
            if self._is_told:
                self._told_at = now
                logger.warning("the server is away, trying again: %s", why)
        elif now - self._told_at >= _TELL_EVERY_S:
            self._told_at, self._is_told = now, True
            logger.warning("the server has been away for %.0f s: %s", now - self._since, why)

    def over(self, how: str = "") -> None:
        """Report that the server answers; does nothing if it was not away. `how`: the end of the log line."""
        if self._since is None:
            return
        away_s, self._since = self._monotonic() - self._since, None
        if self._is_told:
            self._told_at = self._monotonic()
            logger.warning("the server is back after %.1f s%s", away_s, how)
