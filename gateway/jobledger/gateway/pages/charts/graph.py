"""The graph of a run: rows of boxes, each row below what comes before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from markupsafe import Markup, escape

from jobledger.gateway.pages.charts.marks import number, title

_BOX: Final = (172, 30)  #: width and height in pixels
_STEP: Final = (190, 58)
_LETTERS_MAX: Final = 24


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    id: str
    label: str
    style: str  #: a class that carries the colour of its state
    state: str  #: in words


def graph(rows: Sequence[Sequence[Box]], edges: Sequence[tuple[str, str]], *, label: str) -> Markup:
    """Return the graph; `edges` are pairs of ids: a box, and a box that follows it."""
    wide = max((len(row) for row in rows), default=1)
    width, height = wide * _STEP[0], len(rows) * _STEP[1]
    places = {
        box.id: ((wide - len(row)) / 2 * _STEP[0] + column * _STEP[0], line * _STEP[1] + 4)
        for line, row in enumerate(rows)
        for column, box in enumerate(row)
    }
    drawn = "".join(_edge(places, *edge) for edge in edges if edge[0] in places and edge[1] in places)
    boxes = "".join(_box(box, *places[box.id]) for row in rows for box in row)
    return Markup(  # noqa: S704 - the labels were escaped
        f'<svg class="graph" width="{width}" height="{height}" role="img" aria-label="{escape(label)}">{drawn}{boxes}</svg>'
    )


def _edge(places: Mapping[str, tuple[float, float]], first: str, then: str) -> str:
    (x1, y1), (x2, y2) = places[first], places[then]
    x1, y1, x2 = x1 + _BOX[0] / 2, y1 + _BOX[1], x2 + _BOX[0] / 2
    half = (y1 + y2) / 2
    curve = f"M{number(x1)} {number(y1)}C{number(x1)} {number(half)} {number(x2)} {number(half)} {number(x2)} {number(y2)}"
    return f'<path class="edge" d="{curve}"/>'


def _box(box: Box, x: float, y: float) -> str:
    label = box.label if len(box.label) <= _LETTERS_MAX else box.label[: _LETTERS_MAX - 1] + "…"
    return (
        f'<g class="node {box.style}"><rect x="{number(x)}" y="{number(y)}" width="{_BOX[0]}" height="{_BOX[1]}" rx="7"/>'
        f'<text x="{number(x + _BOX[0] / 2)}" y="{number(y + _BOX[1] / 2 + 4)}" text-anchor="middle">{escape(label)}</text>'
        f"{title(box.label, box.state)}</g>"
    )
