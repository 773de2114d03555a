"""Figures over time: bars on top of each other, lines, the band between two lines, and notes of acts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from markupsafe import Markup, escape

from jobledger.gateway.pages.charts.marks import (
    TOP,
    Said,
    Series,
    TimeAxis,
    framed,
    grid,
    gutter,
    number,
    scale_of,
    time_texts,
    title,
)

_GAP: Final = 0.14  #: share of a span's width between two bars
_WIDE: Final = 1000  #: units across the drawing of lines, which is stretched to the width of the chart
_MANY: Final = 12  #: a chart with more bars than this may cut off a few
_BEYOND: Final = 3.0  #: bars above this many times the usual height are cut off
_LOW: Final = 130  #: a chart up to this height in pixels has few lines
_SPARK_HEIGHT: Final = 20
_LATE: Final = 0.8  #: beyond this share of the width a text stands to the left of its place


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A text above a chart, at its moment."""

    at: datetime
    words: str
    style: str = ""


def plot(
    axis: TimeAxis,
    *,
    label: str,
    said: Said,
    stack: Sequence[Series] = (),
    lines: Sequence[Series] = (),
    band: bool = False,
    notes: Sequence[Note] = (),
    height: int = 140,
) -> Markup:
    """Return one chart. `band`: fill the area between the first two lines.

    A mark carries its span as `data-from` and `data-to`, by which the script changes the time shown.
    """
    sums = [sum(each.values[index] or 0 for each in stack) for index in range(axis.count)]
    known = [value for each in lines for value in each.values if value is not None]
    highest = max([*sums, *known], default=0)
    shown = _shown(sums) if stack else highest
    scale = scale_of(shown, 4 if height > _LOW else 2, whole=bool(stack))
    inside = [grid(scale, height)]
    inside += [_bars(axis, stack, index, height, scale.top) for index in range(axis.count) if sums[index]]
    if lines:
        paths = _band(lines[0], lines[1], axis.count, height, scale.top) if band else ""
        paths += "".join(_line(each, axis.count, height, scale.top) for each in lines)
        inside.append(
            f'<svg x="0" y="{TOP}" width="100%" height="{height}" viewBox="0 0 {_WIDE} {height}" '
            f'preserveAspectRatio="none" overflow="visible">{paths}</svg>'
        )
    inside.append(time_texts(axis, height))
    inside += [_hit(axis, (*stack, *lines), index, height, said) for index in range(axis.count)]
    inside += [_note(axis, each, height) for each in notes if axis.begin <= each.at <= axis.at(axis.count)]
    name = f"{label}; highest {said(highest)}" if highest else f"{label}; nothing to show"
    return framed("".join(inside), gutter(scale, height, said), height=height, label=name)


def _shown(sums: Sequence[float]) -> float:
    """Return the height up to which bars are drawn: a few far higher ones are cut off, with the value as text."""
    order = sorted(each for each in sums if each)
    usual = order[int(len(order) * 0.94)] if len(order) > _MANY else 0
    highest = order[-1] if order else 0
    return 1.6 * usual if usual and highest > _BEYOND * usual else highest


def _bars(axis: TimeAxis, stack: Sequence[Series], index: int, height: int, top: float) -> str:
    x, width = 100 * (index + _GAP / 2) / axis.count, 100 * (1 - _GAP) / axis.count
    place, found, y = f'x="{number(x)}%" width="{number(width)}%"', "", float(TOP + height)
    for each in stack:
        high = (each.values[index] or 0) * height / top
        if high:
            drawn = min(high, y - TOP)
            y -= drawn
            found += (
                f'<rect class="{each.style}" {place} y="{number(y)}" height="{number(drawn)}"/>'
                if drawn > 0
                else ""
            )
    whole = sum(each.values[index] or 0 for each in stack)
    if whole > top:
        middle = number(100 * (index + 0.5) / axis.count)
        found += f'<rect class="torn" {place} y="{TOP + 9}" height="4"/><text class="tick strong" x="{middle}%" dx="11" y="{TOP + 11}">{whole:,.0f}</text>'
    return found


def _places(
    values: Sequence[float | None], count: int, height: float, top: float
) -> list[tuple[float, float] | None]:
    return [
        None if value is None else (_WIDE * (index + 0.5) / count, height * (1 - min(value, top) / top))
        for index, value in enumerate(values)
    ]


def _line(series: Series, count: int, height: float, top: float) -> str:
    path = _path(_places(series.values, count, height, top), count)
    return f'<path class="line {series.style}" d="{path}" vector-effect="non-scaling-stroke"/>'


def _path(places: Sequence[tuple[float, float] | None], count: int) -> str:
    parts, before = "", None
    for index, place in enumerate(places):
        after = places[index + 1] if index + 1 < len(places) else None
        if place is not None and before is None and after is None:  # a single point: draw a short line
            parts += f"M{number(place[0] - _WIDE / 2 / count)} {number(place[1])}h{number(_WIDE / count)}"
        elif place is not None:
            parts += f"{'M' if before is None else 'L'}{number(place[0])} {number(place[1])}"
        before = place
    return parts


def _band(low: Series, high: Series, count: int, height: float, top: float) -> str:
    """Return the area between two lines, each unbroken part by itself."""
    below, above = (_places(each.values, count, height, top) for each in (low, high))
    parts = ""
    under: list[tuple[float, float]] = []
    over: list[tuple[float, float]] = []
    for one, other in [*zip(below, above, strict=True), (None, None)]:
        if one is not None and other is not None:
            under.append(one)
            over.append(other)
        elif under:
            parts += "M" + "L".join(f"{number(x)} {number(y)}" for x, y in [*over, *reversed(under)]) + "Z"
            under, over = [], []
    return f'<path class="band {high.style}" d="{parts}"/>' if parts else ""


def _hit(axis: TimeAxis, series: Sequence[Series], index: int, height: int, said: Said) -> str:
    begin, end = axis.at(index), axis.at(index) + timedelta(seconds=axis.step_s)
    known = [f"{each.name} {said(value)}" for each in series if (value := each.values[index])]
    words = f"{begin:%Y-%m-%d %H:%M} to {end:%H:%M}"
    return (
        f'<rect class="hit" x="{number(100 * index / axis.count)}%" width="{number(100 / axis.count)}%" y="{TOP}" '
        f'height="{height}" data-from="{begin:%Y-%m-%dT%H:%M:%SZ}" data-to="{end:%Y-%m-%dT%H:%M:%SZ}">'
        f"{title(words, *(known or ['nothing']))}</rect>"
    )


def _note(axis: TimeAxis, note: Note, height: int) -> str:
    x = number(100 * (note.at - axis.begin).total_seconds() / (axis.count * axis.step_s))
    return (
        f'<g class="note {note.style}"><line x1="{x}%" x2="{x}%" y1="{TOP}" y2="{TOP + height}"/>'
        f'<circle cx="{x}%" cy="{TOP}" r="4.500"/>{title(f"{note.at:%H:%M:%S}", note.words)}</g>'
    )


def spark(values: Sequence[float], *, style: str, bars: bool = False) -> Markup:
    """Return a small chart without axes; its place is beside its newest number."""
    top, count = max(values, default=0) or 1, max(1, len(values))
    if bars:
        inside = "".join(
            f'<rect class="{style}" x="{number(100 * index / count)}%" width="{number(80 / count)}%" '
            f'y="{number(_SPARK_HEIGHT - max(2, _SPARK_HEIGHT * value / top))}" height="{number(max(2, _SPARK_HEIGHT * value / top))}"/>'
            for index, value in enumerate(values)
            if value
        )
        base = f'<line class="grid" x1="0" x2="100%" y1="{_SPARK_HEIGHT - 0.5}" y2="{_SPARK_HEIGHT - 0.5}"/>'
        return Markup(f'<svg class="spark" aria-hidden="true">{base}{inside}</svg>')  # noqa: S704 - numbers
    path = _path(_places(values, count, _SPARK_HEIGHT - 4, top), count)
    return Markup(  # noqa: S704 - numbers, and a class of ours
        f'<svg class="spark" viewBox="0 0 {_WIDE} {_SPARK_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<g transform="translate(0 2)"><path class="line {style}" d="{path}" vector-effect="non-scaling-stroke"/></g></svg>'
    )


def share(parts: Sequence[tuple[str, str, float]], *, label: str, whole: float = 0) -> Markup:
    """Return one line divided into parts: class, name and number of each, as shares of `whole` or of their sum."""
    whole = max(whole, sum(each for _, _, each in parts)) or 1
    inside, at = "", 0.0
    for style, name, value in parts:
        if value:
            width = 100 * value / whole
            inside += (
                f'<rect class="{style}" x="{number(at)}%" width="{number(max(width - 0.4, 0.4))}%" height="8">'
                f"{title(f'{name} {value:,.0f}')}</rect>"
            )
            at += width
    return Markup(  # noqa: S704 - the names were escaped
        f'<svg class="share" height="8" role="img" aria-label="{escape(label)}">{inside}</svg>'
    )


def histogram(
    counts: Sequence[tuple[str, int]],
    *,
    label: str,
    marked: Sequence[tuple[float, str]] = (),
    height: int = 90,
) -> Markup:
    """Return bars beside each other, each with its name; `marked`: texts at places from 0 to the number of bars."""
    top, count = max((each for _, each in counts), default=0) or 1, max(1, len(counts))
    every = max(1, round(count / 7))
    low = TOP + 13 * len(marked) + height  # the bottom of the bars; the texts are above them
    inside = ""
    for index, (name, value) in enumerate(counts):
        x, high = number(100 * (index + 0.06) / count), max(1.5, height * value / top) if value else 0
        inside += (
            f'<rect class="k0" x="{x}%" width="{number(88 / count)}%" y="{number(low - high)}" height="{number(high)}"/>'
            f'<rect class="hit" x="{number(100 * index / count)}%" width="{number(100 / count)}%" y="{low - height}" height="{height}">{title(f"{name}: {value:,}")}</rect>'
        )
        if index % every == 0:
            inside += f'<text class="tick" x="{x}%" y="{low + 14}">{escape(name)}</text>'
    for index, (place, words) in enumerate(marked):
        x, y = number(100 * place / count), TOP + 9 + 13 * index  # below each other: places may be equal
        side = 'dx="-4" text-anchor="end"' if place > _LATE * count else 'dx="4"'
        inside += f'<line class="cut" x1="{x}%" x2="{x}%" y1="{y - 9}" y2="{low}"/><text class="tick strong" x="{x}%" {side} y="{y}">{escape(words)}</text>'
    inside += f'<line class="grid" x1="0" x2="100%" y1="{low}" y2="{low}"/>'
    return Markup(  # noqa: S704 - the names were escaped
        f'<svg class="plot" height="{low + 18}" role="img" aria-label="{escape(label)}">{inside}</svg>'
    )
