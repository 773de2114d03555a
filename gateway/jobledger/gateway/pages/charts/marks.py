"""Parts that all charts share: numbers and texts of SVG, scales with round numbers, and the axis of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from markupsafe import Markup, escape

#: A function that returns the text of a value on an axis or in a title.
Said = Callable[[float], str]

TICK_HEIGHT: Final = 18  #: pixels below a plot, for the texts of its axis of time
TOP: Final = 8  #: pixels above a plot, for half a line of its topmost text
_ROUND: Final = (1, 2, 2.5, 5, 10)
_NEARLY: Final = 1 - 1e-9
_TICKS_MAX: Final = 6
_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080, 43200, 129600)
_DAY_MINUTES: Final = 1440


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One row of values over the spans of an axis."""

    name: str
    values: Sequence[float | None]  #: None where nothing is known
    style: str  #: a class that carries the colour


class TimeAxis(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of equal length, one after the other."""

    begin: datetime
    step_s: int
    count: int  #: at least 1

    def at(self, index: int) -> datetime:
        """Return when a span begins."""
        return self.begin + timedelta(seconds=index * self.step_s)

    def index(self, moment: datetime) -> int:
        """Return the span that a moment lies in; outside of the axis, the nearest one."""
        found = int((moment - self.begin).total_seconds() // self.step_s)
        return min(self.count - 1, max(0, found))

    def ticks(self) -> list[tuple[int, str]]:
        """Return the spans to label, with their labels: round times, at most six."""
        minutes = self.count * self.step_s / 60
        every = next((each for each in _MINUTES if minutes / each <= _TICKS_MAX), _MINUTES[-1])
        form = "%H:%M" if every < _DAY_MINUTES else "%b %d"
        begins = ((index, self.at(index).astimezone(UTC)) for index in range(self.count))
        return [
            (index, begin.strftime(form))
            for index, begin in begins
            if begin.timestamp() % (60 * every) < self.step_s
        ]


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """An axis of values: round steps from zero to its top."""

    step: float
    parts: int

    @property
    def top(self) -> float:
        """The value at its end, at least the highest value shown."""
        return self.step * self.parts


def scale_of(highest: float, parts: int, *, whole: bool) -> Scale:
    """Return an axis with about `parts` parts; `whole`: the values are counts, so the steps are whole numbers."""
    if highest <= 0 or not math.isfinite(highest):
        return Scale(step=1.0, parts=1)
    wish = highest / parts
    power = 10.0 ** math.floor(math.log10(wish))
    step = next(factor * power for factor in _ROUND if factor * power >= wish * _NEARLY)
    if whole:
        step = max(1.0, math.ceil(step))
    return Scale(step=step, parts=max(1, math.ceil(highest / step * _NEARLY)))


def number(value: float) -> str:
    """Return a coordinate with as many digits as a screen shows."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def title(*parts: str) -> str:
    """Return the `<title>` of a mark."""
    return f"<title>{escape(chr(10).join(parts))}</title>"


def gutter(scale: Scale, height: int, said: Said) -> str:
    """Return the values beside a plot, from its top to zero, as an SVG of a fixed width."""
    texts = [
        f'<text class="tick" x="100%" dx="-8" y="{number(y + 4)}" text-anchor="end">{escape(said(value))}</text>'
        for y, value in _places(scale, height)
    ]
    return (
        f'<svg class="gutter" height="{TOP + height + TICK_HEIGHT}" aria-hidden="true">{"".join(texts)}</svg>'
    )


def grid(scale: Scale, height: int) -> str:
    """Return the lines behind a plot."""
    return "".join(
        f'<line class="grid" x1="0" x2="100%" y1="{number(y)}" y2="{number(y)}"/>'
        for y, _ in _places(scale, height)
    )


def _places(scale: Scale, height: int) -> list[tuple[float, float]]:
    """Return the lines of an axis: pixels from the top, and the value of each."""
    return [
        (TOP + height * (1 - part / scale.parts), scale.step * part) for part in range(scale.parts, -1, -1)
    ]


def time_texts(axis: TimeAxis, height: int) -> str:
    """Return the texts below a plot."""
    y = TOP + height + TICK_HEIGHT - 4
    return "".join(
        f'<text class="tick" x="{number(100 * index / axis.count)}%" y="{y}">{text}</text>'
        for index, text in axis.ticks()
        if index / axis.count < 0.94  # noqa: PLR2004 - a text there would be cut off
    )


def framed(inside: str, beside: str, *, height: int, label: str, style: str = "chart") -> Markup:
    """Return a whole chart: the values beside it, and the plot with its name for screen readers."""
    total = TOP + height + TICK_HEIGHT
    return Markup(  # noqa: S704 - every text in it was escaped where it was put in
        f'<div class="{style}">{beside}<svg class="plot" height="{total}" role="img" aria-label="{escape(label)}">'
        f"{inside}</svg></div>"
    )
