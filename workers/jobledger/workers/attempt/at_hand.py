"""Deliveries that are at hand before a slot is free for them: if jobs are short, a slot never waits for the next job.

The claim of the next job is then sent together with the outcome that freed its slot, in one group if the server
fsyncs. A delivery at hand waits no longer than a few short jobs take; after that another worker gets it. Source: ADR
071.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable
from typing import Final

from jobledger.ledger.nats.pull import Delivery

#: Code that runs for less than this, on average, leaves a delivery at hand waiting for about as long.
_SHORT_S: Final = 0.02
#: A delivery that was at hand for this time goes back: jobs have become longer, or the server is slow. An fsync of a
#: slow disk takes a tenth of it.
_AT_HAND_S_MAX: Final = 0.25
#: The assumed run time of a job before the first one, and after a delivery went back: about sixty short jobs bring the
#: average below `_SHORT_S`.
_LONG_S: Final = 1.0
_WEIGHT: Final = 1 / 16  # weight of the newest job in the average


class AtHand:
    """The deliveries of one worker that wait for a slot, at most as many as it has slots. Used on the loop only."""

    def __init__(self, loop: AbstractEventLoop, slots: int, give_back: Callable[[Delivery], None]) -> None:
        """`give_back` returns a delivery for another worker."""
        self._loop = loop
        self._slots = slots
        self._give_back = give_back
        self.waiting: deque[tuple[Delivery, float]] = (
            deque()
        )  #: each with its time of arrival, the oldest first
        self._run_s = _LONG_S  # how long code runs, on average
        self._looking: TimerHandle | None = None

    @property
    def room(self) -> int:
        """The number of further deliveries to ask for: none if jobs are long, since another worker could run them."""
        return self._slots - len(self.waiting) if self._run_s < _SHORT_S else 0

    def ran(self, seconds: float) -> None:
        """Add the run time of a job's code to the average."""
        self._run_s += (seconds - self._run_s) * _WEIGHT

    def add(self, delivery: Delivery) -> bool:
        """Keep a delivery for the next free slot; return False if there is no room for it."""
        if self._run_s >= _SHORT_S or len(self.waiting) >= self._slots:
            return False
        self.waiting.append((delivery, self._loop.time()))
        if self._looking is None:
            self._looking = self._loop.call_later(_AT_HAND_S_MAX, self._look)
        return True

    def give_back(self) -> None:
        """Give all back: the worker takes no more jobs."""
        while self.waiting:
            self._give_back(self.waiting.popleft()[0])

    def _look(self) -> None:
        self._looking = None
        now = self._loop.time()
        while self.waiting and self.waiting[0][1] + _AT_HAND_S_MAX <= now:
            self._run_s = _LONG_S
            self._give_back(self.waiting.popleft()[0])
        if self.waiting:
            self._looking = self._loop.call_later(self.waiting[0][1] + _AT_HAND_S_MAX - now, self._look)
