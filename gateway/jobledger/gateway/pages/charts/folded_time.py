"""A line of time in which long waits are folded, so that one night does not squeeze a job's attempts to nothing. Pure."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

#: A wait is folded if it is longer than this many times the sum of all other spans that are not folded.
_TIMES: Final = 4
_FOLD: Final = 7.0  #: percent of the width that a folded wait gets
_FOLDS_MAX: Final = 8


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The time between two moments at which something began or ended."""

    begin: datetime
    end: datetime
    x: float  #: where it begins, in percent of the width
    width: float
    folded: bool

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.begin).total_seconds()


class FoldedTime(msgspec.Struct, frozen=True, kw_only=True):
    """A line of time, from 0 to 100 percent."""

    pieces: tuple[Piece, ...]

    def x(self, moment: datetime) -> float:
        """Return where a moment lies; outside of the line, at its nearest end."""
        index = max(0, bisect.bisect_right(self.pieces, moment, key=lambda piece: piece.begin) - 1)
        piece = self.pieces[index]
        passed = min(piece.seconds, max(0.0, (moment - piece.begin).total_seconds()))
        return piece.x + (piece.width * passed / piece.seconds if piece.seconds else 0.0)

    def elapsed(self, x: float) -> float | None:
        """Return how many seconds after the beginning a place lies; None within a fold."""
        piece = next((each for each in self.pieces if each.x <= x <= each.x + each.width), self.pieces[-1])
        if piece.folded:
            return None
        share = (x - piece.x) / piece.width if piece.width else 0.0
        return (piece.begin - self.pieces[0].begin).total_seconds() + piece.seconds * min(1.0, share)


def folded_time(moments: Sequence[datetime], active: Sequence[tuple[datetime, datetime]]) -> FoldedTime:
    """Return the line from the first to the last of `moments`, at least one; nothing in `active` is folded."""
    ends = sorted(set(moments))
    if len(ends) == 1:
        ends.append(ends[0])
    spans = list(itertools.pairwise(ends))
    seconds = [(end - begin).total_seconds() for begin, end in spans]
    waits = [not any(a < end and b > begin for a, b in active) for begin, end in spans]
    folds = _folds(seconds, waits)
    room = 100.0 - _FOLD * len(folds)
    drawn = sum(each for index, each in enumerate(seconds) if index not in folds)
    pieces: list[Piece] = []
    x = 0.0
    for index, (begin, end) in enumerate(spans):
        wide = _FOLD if index in folds else room * seconds[index] / drawn if drawn else room / len(spans)
        pieces.append(Piece(begin=begin, end=end, x=x, width=wide, folded=index in folds))
        x += wide
    return FoldedTime(pieces=tuple(pieces))


def _folds(seconds: Sequence[float], waits: Sequence[bool]) -> frozenset[int]:
    """Return the spans to fold: the longest wait again and again, while it outweighs the rest `_TIMES` times."""
    left = sum(seconds)
    found: set[int] = set()
    for index in sorted((i for i, wait in enumerate(waits) if wait), key=lambda i: -seconds[i])[:_FOLDS_MAX]:
        rest = left - seconds[index]
        if rest <= 0 or seconds[index] <= _TIMES * rest:
            break
        found.add(index)
        left = rest
    return frozenset(found)
