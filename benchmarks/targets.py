"""The table of targets: its lines, what each may be at the most or at the least, and whether a figure meets that."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Final, NamedTuple


class Spread(NamedTuple):
    """What was measured of one line."""

    median: float
    low: float  #: the lower quartile
    high: float  #: the upper quartile
    times: int

    @classmethod
    def of(cls, found: list[float]) -> Spread:
        """Sum up what was measured."""
        low, median, high = statistics.quantiles(found, n=4, method="inclusive") if found[1:] else found * 3
        return cls(median, low, high, len(found))


class Row(NamedTuple):
    """A line of the table."""

    what: str
    unit: str
    most: float | None = None  #: the target: at most this much
    least: float | None = None  #: or at least this much
    or_noise: bool = (
        False  #: it is met as well where the figure is smaller than the distance of the quartiles
    )
    digits: int = 1

    @property
    def target(self) -> str:
        """The target as it is shown; "" without one."""
        if self.most is not None:
            return f"<= {self.most:,g} {self.unit}"
        return "" if self.least is None else f">= {self.least:,g} {self.unit}"

    def verdict(self, found: Spread) -> str:
        """Return whether a figure meets the target; "" without one."""
        if self.most is None and self.least is None:
            return ""
        shown = round(found.median, self.digits)  # what a reader compares
        if (self.most is None or shown <= self.most) and (self.least is None or shown >= self.least):
            return "met"
        if self.or_noise and abs(found.median) < found.high - found.low:
            return "met: less than the spread"
        return "MISSED"


#: By part, in the order of the table, and by the name of the figure.
ROWS: Final[Mapping[str, Mapping[str, Row]]] = {
    "against": {
        "against": Row("jobs without limits: drain, above {commit}", "%", least=-2, or_noise=True),
        "against cpu": Row("  worker's CPU a job", "%"),
    },
    "drain": {
        "drain": Row("jobs without limits: drain beside the reactor", "%", least=-2, or_noise=True),
        "drain/s": Row("  without one", "jobs/s", digits=0),
    },
    "latency": {
        "p50": Row("limited job with room: start, above plain, p50", "ms", most=1.5, digits=2),
        "p99": Row("  p99", "ms", most=4, digits=2),
    },
    "limited": {
        "limited/s": Row("{three:,} held, 1,000 keys, 3 limits, global 100", "jobs/s", least=6_000, digits=0),
        "reactor": Row("  reactor's CPU a job", "us", most=75),
        "server": Row("  server's CPU a job", "us", most=110),
    },
    "fsynced": {
        "limited/s": Row("  every append fsynced", "jobs/s", least=2_500, digits=0),
        "plain/s": Row("  the same jobs without limits", "jobs/s", digits=0),
        "of plain": Row("  with limits, of that", "%", digits=0),
    },
    "restart": {
        "restart": Row("restart with {held:,} held: first grant", "s", most=3, digits=2),
        "memory": Row("  reactor's memory", "MB", digits=0),
    },
    "big": {
        "big restart": Row("restart with {big:,} held: first grant", "s", digits=2),
        "big memory": Row("  reactor's memory", "MB", most=150, digits=0),
        "big ledger": Row("restart with 100 held of {events:,} events", "s", most=1, digits=2),
        "big ledger, first": Row("  without a snapshot", "s", digits=2),
    },
    "takeover": {
        "killed": Row("one of two hosts killed: next grant", "s", most=2, digits=2),
        "both killed": Row("both killed at once: next grant, above the lease", "s", most=2, digits=2),
    },
    "ticks": {
        "ticks_per_s": Row("{schedules} schedules that tick each second", "ticks/s", digits=0),
        "server_percent": Row("  server, of a core", "%", most=3, digits=2),
        "late_p99_ms": Row("  late, p99", "ms", most=50),
    },
    "unique": {
        "unique, key free": Row("unique enqueue, key free", "ms", most=0.3, digits=3),
        "plain": Row("  plain enqueue", "ms", digits=3),
    },
    "pause": {
        "paused": Row("queue paused: until the last job was started", "ms", most=50),
        "resumed": Row("queue resumed: until the first job was started", "ms", most=50),
    },
}
