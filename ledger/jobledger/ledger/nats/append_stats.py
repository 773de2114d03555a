"""Counts of a process's own appends, if wanted; turned off, they cost one comparison per append.

Recorded on the event loop, read from any thread: a reader may see a histogram that is only half updated, but never a
lower count than before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

#: Seconds; from a local server without fsync to the limit at which an append counts as unanswered.
LATENCY_BOUNDS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
#: Messages; the writer groups up to 500.
GROUP_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)


class Histogram:
    """Observations by upper bound, with their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  #: one more than bounds, for values above the last
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation; a value equal to a bound belongs to it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class AppendMeter:
    """The outcomes of one process's appends to the ledger; see `JetStreamLog.meter`."""

    def __init__(self) -> None:
        self.latency_s = Histogram(LATENCY_BOUNDS_S)  #: from the call to an accepted answer
        self.group_messages = Histogram(GROUP_BOUNDS)  #: messages of each group commit that was sent
        self.conflicts = 0  #: appends refused because their chain had a newer event: a lost race
        self.failures = 0  #: appends that ended in any other error
