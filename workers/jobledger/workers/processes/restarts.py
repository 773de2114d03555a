"""Pauses before a process that ended is started again: longer each time, and short again after a good life."""

from __future__ import annotations

import math
from typing import Final

import msgspec

_DOUBLINGS_MAX: Final = 30  # beyond it every pause is over its limit


class Restarts(msgspec.Struct, kw_only=True):
    """The ends of one thing that is to run for ever."""

    first_s: float  #: the pause after the first end; doubled for each further one
    max_s: float  #: no pause is longer
    healthy_s: float = math.inf  #: after a life this long the pauses begin at `first_s` again
    ends: int = 0  #: number of ends in a row

    def pause_s(self, lived_s: float = 0.0) -> float:
        """Count an end after `lived_s`, and return how long to wait."""
        self.ends = 1 if lived_s >= self.healthy_s else self.ends + 1
        return min(self.max_s, self.first_s * 2.0 ** min(self.ends - 1, _DOUBLINGS_MAX))

    def forget(self) -> None:
        """Begin at `first_s` again: it started well, or was to end."""
        self.ends = 0
