"""The waterfall of a job: a lane for each attempt, what waits thin, what runs thick, long waits folded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from markupsafe import Markup, escape

from jobledger.gateway.pages.charts.folding import FoldedTime, folded_time
from jobledger.gateway.pages.charts.marks import Said, number, title

_ROW: Final = 26
_TOP: Final = 16
_BELOW: Final = 34
LANES_MAX: Final = 12
_TICKS: Final = 4
_NEAR: Final = 9.0  #: percent: texts that are closer than this would lie on each other
_EDGE: Final = 97.0


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """How long a job was in one state."""

    begin: datetime
    end: datetime
    lane: int  #: the attempt that runs, or that is waited for; from 1
    runs: bool
    style: str  #: a class that carries the colour
    words: str
    after: bool = False  #: later than the moment shown


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One event."""

    at: datetime
    style: str
    words: str
    after: bool = False


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """What a waterfall shows."""

    bars: Sequence[Bar]
    marks: Sequence[Mark]  #: at least one
    cut: datetime | None = None  #: the moment shown, where that is in the past
    end: datetime  #: of the line of time


def waterfall(drawn: Drawn, *, label: str, said: Said) -> Markup:
    """Return the picture: the newest twelve lanes, with the events below them."""
    # Time is folded between the ends of bars alone: a note in the middle of a wait does not make two waits of it.
    ends = [moment for bar in drawn.bars for moment in (bar.begin, bar.end)]
    time = folded_time(
        [drawn.marks[0].at, drawn.end, *ends],
        [(bar.begin, bar.end) for bar in drawn.bars if bar.runs],
    )
    last = max((bar.lane for bar in drawn.bars), default=1)
    first = max(1, last - LANES_MAX + 1)
    height = _TOP + _ROW * (last - first + 1)
    inside = [_grid(time, height, said)]
    inside += [_bar(time, bar, first) for bar in drawn.bars if bar.lane >= first]
    inside.append(_marks(time, drawn.marks, height + 6))
    if drawn.cut is not None:
        x = number(time.x(drawn.cut))
        inside.append(f'<line class="cut" x1="{x}%" x2="{x}%" y1="0" y2="{height + 12}"/>')
    lanes = "".join(
        f'<text class="lane" x="100%" dx="-10" y="{_TOP + _ROW * (lane - first) + 17}" text-anchor="end">attempt {lane}</text>'
        for lane in range(first, last + 1)
    )
    total = height + _BELOW
    return Markup(  # noqa: S704 - every text in it was escaped where it was put in
        f'<div class="waterfall"><svg class="gutter" height="{total}" aria-hidden="true">{lanes}</svg>'
        f'<svg class="plot" height="{total}" role="img" aria-label="{escape(label)}">{"".join(inside)}</svg></div>'
    )


def _bar(time: FoldedTime, bar: Bar, first: int) -> str:
    x1, x2 = time.x(bar.begin), time.x(bar.end)
    y, high = (4, 18) if bar.runs else (10, 6)
    style = f"bar {bar.style}{'' if bar.runs else ' waits'}{' after' if bar.after else ''}"
    return (
        f'<rect class="{style}" rx="{3 if bar.runs else 2}" x="{number(min(x1, 99.6))}%" '
        f'y="{_TOP + _ROW * (bar.lane - first) + y}" width="{number(max(x2 - x1, 0.4 if bar.runs else 0.15))}%" '
        f'height="{high}">{title(bar.words)}</rect>'
    )


def _grid(time: FoldedTime, height: int, said: Said) -> str:
    """Return the lines of elapsed time with their texts, and the folds."""
    parts: list[str] = []
    taken: list[float] = []
    for piece in time.pieces:
        if piece.folded:
            middle = number(piece.x + piece.width / 2)
            parts.append(
                f'<rect class="fold" x="{number(piece.x)}%" width="{number(piece.width)}%" y="2" height="{height}">'
                f"{title(f'{said(piece.seconds)} folded')}</rect>"
                f'<text class="tick" x="{middle}%" y="11" text-anchor="middle">{escape(said(piece.seconds))}</text>'
            )
            taken.append(piece.x + piece.width / 2)
    for tick in range(_TICKS + 1):
        x = 100 * tick / _TICKS
        elapsed = time.elapsed(x)
        if elapsed is None:
            continue
        anchor = "start" if not tick else "end" if tick == _TICKS else "middle"
        text = f"+{said(elapsed)}" if tick else "0"
        parts.append(
            f'<line class="grid" x1="{number(x)}%" x2="{number(x)}%" y1="14" y2="{height}"/>'
            f'<text class="tick" x="{number(x)}%" y="{height + 28}" text-anchor="{anchor}">{escape(text)}</text>'
        )
    return "".join(parts)


def _marks(time: FoldedTime, marks: Sequence[Mark], y: int) -> str:
    """Return a dot for each event; of those that would lie on each other, the last one."""
    places = {round(time.x(mark.at) * 4): mark for mark in marks}
    return "".join(
        f'<circle class="dot {mark.style}{" after" if mark.after else ""}" cx="{number(place / 4)}%" cy="{y}" r="3">'
        f"{title(mark.words)}</circle>"
        for place, mark in places.items()
    )
