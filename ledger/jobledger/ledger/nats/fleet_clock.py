"""One time for all processes of a fleet: the server's, carried on by this machine's monotonic clock.

A machine whose clock is minutes ahead would start delayed jobs early, end waits at once and stop schedules for the
whole fleet. So no process decides by its own wall clock: it asks the server for its time when it connects and every
few seconds after that, and counts on from there by its monotonic clock. Source: ADR 044.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from typing import Final

from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.times import server_time
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.streams import find_stream

logger = logging.getLogger("jobledger.clock")

#: Time between two comparisons. A clock drifts by milliseconds in it; a clock that is set is noticed after it.
COMPARE_EVERY_S: Final = 10.0
#: A larger difference between a machine's clock and the server's is reported in the machine's log and lease, in
#: `doctor` and a metric.
APART_S_MAX: Final = 5.0
#: An answer that took longer is too imprecise to correct a known offset.
ANSWER_S_MAX: Final = 2.0
#: Looked up once: every event of every job is stamped.
_fromtimestamp: Final = datetime.fromtimestamp


class FleetClock:
    """The server's time, as far as this process knows it; before the first comparison the machine's own."""

    def __init__(self, machine: Clock = SYSTEM_CLOCK) -> None:
        self._machine = machine
        self.monotonic = machine.monotonic  #: the machine's monotonic seconds
        self._offset_s = machine.now().timestamp() - machine.monotonic()
        self._is_known = False
        self.is_told = False  #: whether any answer came soon enough to know the server's time
        self._apart_since: datetime | None = None

    def now(self) -> datetime:
        """Return the server's time, aware, UTC, with microseconds."""
        return _fromtimestamp(self._offset_s + self.monotonic(), UTC)

    @property
    def apart_s(self) -> float:
        """How far the machine's own clock is ahead of the server's, in seconds; below 0: behind it."""
        return (self._machine.now() - self.now()).total_seconds()

    def compared(self, server: datetime, sent: float, received: float) -> None:
        """Correct the offset by a time of the server's clock, read between two moments of `monotonic`.

        An offset that the answer does not contradict stays, at first the machine's own: so time does not jitter with
        the answers' delays, and on the server's machine it is exactly that machine's time.
        """
        earliest, latest = server.timestamp() - received, server.timestamp() - sent
        self.is_told = self.is_told or received - sent <= ANSWER_S_MAX
        agrees = earliest <= self._offset_s <= latest
        if agrees or (self._is_known and received - sent > ANSWER_S_MAX):
            self._is_known = True
            return
        self._offset_s = (earliest + latest) / 2
        self._is_known = True

    async def compare(self, inbox: Inbox, stream: str) -> None:
        """Ask the server for its time, with the state of a stream.

        Raises: LedgerError, JetStreamDisabledError, UnreachableError, ConnectionLostError.
        """
        sent = self.monotonic()
        answer = await find_stream(inbox, stream)
        if answer is not None and answer.ts:
            self.compared(server_time(answer.ts), sent, self.monotonic())
            self.look()

    async def keep(self, inbox: Inbox, stream: str) -> None:
        """Compare now and then, until cancelled; without an answer the next comparison counts."""
        while True:
            await asyncio.sleep(COMPARE_EVERY_S)
            with contextlib.suppress(LedgerError, ConnectionLostError):
                await self.compare(inbox, stream)

    def look(self) -> datetime | None:
        """Check, and return since when this machine's clock differs too much; log it when that begins."""
        apart_s = self.apart_s
        if abs(apart_s) <= APART_S_MAX:
            self._apart_since = None
        elif self._apart_since is None:
            self._apart_since = self.now()
            logger.warning(
                "this machine's clock is %.1f s %s the server's: this process goes by the server's time; synchronise the "
                "machine's clock, with NTP for instance",
                abs(apart_s),
                "ahead of" if apart_s > 0 else "behind",
            )
        return self._apart_since


def apart_s(clock: Clock) -> float:
    """Return how far the machine's own clock is ahead of the server's, in seconds; 0 for a clock that a test owns."""
    return clock.apart_s if isinstance(clock, FleetClock) else 0.0


def apart_since(clock: Clock) -> datetime | None:
    """Return since when the clock is too far apart, by the server's time; None: it is not, or a test owns the clock."""
    return clock.look() if isinstance(clock, FleetClock) else None
