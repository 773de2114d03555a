"""Stacked bars over time, and the strip under a slider."""

from __future__ import annotations

import math
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

_GAP: Final = 0.16  #: of a span's width, between two bars
_STRIP_HEIGHT: Final = 30
_PARTS: Final = 4
_LOW: Final = 130  #: pixels, up to which a chart has few lines


def bars(axis: TimeAxis, series: Sequence[Series], *, label: str, said: Said, height: int = 180) -> Markup:
    """Return bars of several series on top of each other; a mark carries the end of its span as `data-at`."""
    sums = [sum(each.values[index] or 0 for each in series) for index in range(axis.count)]
    scale = scale_of(max(sums, default=0), _PARTS if height > _LOW else 2, whole=True)
    marks = "".join(
        _bar(axis, series, index, height, scale.top) for index in range(axis.count) if sums[index]
    )
    hits = "".join(_hit(axis, series, index, height, said) for index in range(axis.count))
    inside = grid(scale, height) + marks + time_texts(axis, height) + hits
    highest = f"highest {said(max(sums, default=0))}"
    return framed(inside, gutter(scale, height, said), height=height, label=f"{label}; {highest}")


def _bar(axis: TimeAxis, series: Sequence[Series], index: int, height: int, top: float) -> str:
    x, width = 100 * (index + _GAP / 2) / axis.count, 100 * (1 - _GAP) / axis.count
    place = f'x="{number(x)}%" width="{number(width)}%"'
    rectangles: list[str] = []
    y = float(TOP + height)
    for each in series:
        high = (each.values[index] or 0) * height / top
        if high:
            y -= high
            rectangles.append(f'<rect class="{each.style}" {place} y="{number(y)}" height="{number(high)}"/>')
    return "".join(rectangles)


def _hit(axis: TimeAxis, series: Sequence[Series], index: int, height: int, said: Said) -> str:
    begin = axis.at(index)
    known = [f"{each.name} {said(value)}" for each in series if (value := each.values[index])]
    end = begin + timedelta(seconds=axis.step_s)
    return (
        f'<rect class="hit" x="{number(100 * index / axis.count)}%" width="{number(100 / axis.count)}%" '
        f'y="{TOP}" height="{height}" data-at="{_instant(end)}">'
        f"{title(_span(begin, end), *(known or ['nothing']))}</rect>"
    )


def _span(begin: datetime, end: datetime) -> str:
    return f"{begin:%Y-%m-%d %H:%M} to {end:%H:%M}"


def _instant(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one span of the strip."""

    completed: int = 0
    failed: int = 0  #: attempts
    dead: int = 0


def strip(spans: Sequence[Happened]) -> Markup:
    """Return the life of a ledger in a line: what was completed, where attempts failed, and where jobs died.

    Heights go by the square root, so that quiet times are seen beside busy ones.
    """
    top = math.sqrt(max((max(each.completed, each.failed) for each in spans), default=0) or 1)
    count = max(1, len(spans))
    inside: list[str] = []
    for index, each in enumerate(spans):
        place = f'x="{number(100 * index / count)}%" width="{number(86 / count)}%"'
        for style, value in (("did", each.completed), ("failing", each.failed)):
            high = 24 * math.sqrt(value) / top
            if value:
                inside.append(
                    f'<rect class="{style}" {place} y="{number(_STRIP_HEIGHT - max(2, high))}" height="{number(max(2, high))}"/>'
                )
        if each.dead:
            inside.append(f'<rect class="died" {place} y="0" height="4"/>')
    return Markup(  # noqa: S704 - numbers
        f'<svg class="strip" height="{_STRIP_HEIGHT}" aria-hidden="true">{"".join(inside)}</svg>'
    )


def share(parts: Sequence[tuple[str, str, int]], *, label: str) -> Markup:
    """Return one line that is divided among parts: class, name and number of each."""
    whole = sum(each for _, _, each in parts) or 1
    inside: list[str] = []
    at = 0.0
    for style, name, value in parts:
        if value:
            width = 100 * value / whole
            inside.append(
                f'<rect class="{style}" x="{number(at)}%" width="{number(max(width - 0.4, 0.4))}%" height="8">'
                f"{title(f'{name} {value:,}')}</rect>"
            )
            at += width
    return Markup(  # noqa: S704 - the names were escaped
        f'<svg class="share" height="8" role="img" aria-label="{escape(label)}">{"".join(inside)}</svg>'
    )
