"""Lines over time, and sparklines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

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

_WIDE: Final = 1000  #: units across a line's own picture, which is stretched to the width of its place
_PARTS: Final = 2
_SPARK_HEIGHT: Final = 22


def lines(axis: TimeAxis, series: Sequence[Series], *, label: str, said: Said, height: int = 120) -> Markup:
    """Return a line for each series; where nothing is known it has a gap."""
    known = [value for each in series for value in each.values if value is not None]
    scale = scale_of(max(known, default=0), _PARTS, whole=False)
    paths = "".join(
        f'<path class="line {each.style}" d="{_path(each.values, axis.count, height, scale.top)}" '
        f'vector-effect="non-scaling-stroke">{title(each.name)}</path>'
        for each in series
    )
    picture = (
        f'<svg x="0" y="{TOP}" width="100%" height="{height}" viewBox="0 0 {_WIDE} {height}" '
        f'preserveAspectRatio="none" overflow="visible">{paths}</svg>'
    )
    hits = "".join(_hit(axis, series, index, height, said) for index in range(axis.count))
    inside = grid(scale, height) + picture + time_texts(axis, height) + hits
    highest = f"highest {said(max(known))}" if known else "nothing to show"
    return framed(inside, gutter(scale, height, said), height=height, label=f"{label}; {highest}")


def _path(values: Sequence[float | None], count: int, height: float, top: float) -> str:
    parts: list[str] = []
    before: float | None = None
    for index, value in enumerate(values):
        if value is not None:
            x, y = _WIDE * (index + 0.5) / count, height * (1 - min(value, top) / top)
            after = values[index + 1] if index + 1 < len(values) else None
            # Nobody would see a point, so this is a line across the span.
            if before is None and after is None:
                parts.append(f"M{number(x - _WIDE / 2 / count)} {number(y)}h{number(_WIDE / count)}")
            else:
                parts.append(f"{'M' if before is None else 'L'}{number(x)} {number(y)}")
        before = value
    return "".join(parts)


def _hit(axis: TimeAxis, series: Sequence[Series], index: int, height: int, said: Said) -> str:
    known = [f"{each.name} {said(value)}" for each in series if (value := each.values[index]) is not None]
    return (
        f'<rect class="hit" x="{number(100 * index / axis.count)}%" width="{number(100 / axis.count)}%" '
        f'y="{TOP}" height="{height}">{title(f"{axis.at(index):%Y-%m-%d %H:%M}", *(known or ["nothing"]))}</rect>'
    )


def spark(values: Sequence[float], *, style: str) -> Markup:
    """Return a small line without axes; beside it stands the number that it leads to."""
    top = max(values, default=0) or 1
    path = _path(list(values), max(1, len(values)), _SPARK_HEIGHT - 4, top)
    return Markup(  # noqa: S704 - numbers, and a class of ours
        f'<svg class="spark" viewBox="0 0 {_WIDE} {_SPARK_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<g transform="translate(0 2)"><path class="line {style}" d="{path}" vector-effect="non-scaling-stroke"/></g></svg>'
    )
