"""Diagrams of the docs, drawn from text: `docs/diagrams/*.txt` become SVG files of the same names with `make docs`.

A text has a title, rows of boxes and arrows between them:

    title What the picture shows, for people who do not see it
    queued: any worker may take it | running: a worker holds the claim
    queued -> running   claimed

Cells of a row stand below each other; an empty one keeps its place, a row of one box is as wide as all. What follows a colon
is a smaller second line; `*` there means a box without a frame. Words two blanks behind an arrow stand on it; `<->` has two heads.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

_BOX: Final = (184, 56)  #: pixels
_STEP: Final = (272, 122)
_MARGIN: Final = 12
_TITLE: Final = "title "
_BARE: Final = "*"
_ARROW: Final = re.compile(r"(.+?) (<?->) (.+?)(?:\s{2,}(.+))?$")
_LETTER: Final = 6.6  #: pixels of a letter in a box, about
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1c2330}.name{font-weight:600}.small,.on{font-size:11.5px}.small{fill:#566074}"
    ".page{fill:#fff}.box{fill:#f3f5fa;stroke:#b9c1d1}.line{stroke:#3452d9;fill:none;stroke-width:1.4}.head{fill:#3452d9}"
    ".on{fill:#34405a;stroke:#fff;stroke-width:5;paint-order:stroke}"
    "@media(prefers-color-scheme:dark){text{fill:#e8ebf2}.small{fill:#a4adbf}.page{fill:#12151c}.box{fill:#1d222c;stroke:#475064}"
    ".line{stroke:#8ea2ff}.head{fill:#8ea2ff}.on{fill:#c9d0de;stroke:#12151c}}"
)


class _Box(NamedTuple):
    """A box, and where its middle is."""

    name: str
    words: str
    x: float
    y: float
    width: float

    def border(self, dx: float, dy: float) -> tuple[float, float]:
        """Return where a line that leaves the middle in this direction crosses the frame."""
        reach = min(self.width / 2 / abs(dx) if dx else 1e9, _BOX[1] / 2 / abs(dy) if dy else 1e9)
        return self.x + dx * reach, self.y + dy * reach


def diagram(text: str) -> str:
    """Return the drawing of a text as SVG. Raises: ValueError for an arrow of a box that is not there."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    title = next(line.removeprefix(_TITLE) for line in lines if line.startswith(_TITLE))
    arrows = [found for line in lines if (found := _ARROW.fullmatch(line.rstrip()))]
    rows = [
        line.split("|")
        for line in lines
        if not line.startswith(_TITLE) and not _ARROW.fullmatch(line.rstrip())
    ]
    columns = max(map(len, rows))
    width = (columns - 1) * _STEP[0] + _BOX[0] + 2 * _MARGIN
    height = (len(rows) - 1) * _STEP[1] + _BOX[1] + 2 * _MARGIN
    boxes = {box.name: box for place, row in enumerate(rows) for box in _boxes(row, place, width)}
    drawn: list[str] = []
    for found in arrows:
        one, kind, other, words = found.groups()
        if one not in boxes or other not in boxes:
            raise ValueError(f"{found.group()!r}: there is no such box")
        drawn.append(_arrow(boxes[one], boxes[other], words or "", both=kind == "<->"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{width:g}" height="{height:g}" rx="10"/>',
            *drawn,
            *map(_drawn, boxes.values()),
            "</svg>\n",
        ]
    )


def _boxes(row: Sequence[str], place: int, whole: float) -> list[_Box]:
    y = _MARGIN + _BOX[1] / 2 + place * _STEP[1]
    if len(row) == 1:
        name, _, words = (each.strip() for each in row[0].partition(":"))
        return [_Box(name, words, whole / 2, y, whole - 2 * _MARGIN)]
    found: list[_Box] = []
    for column, cell in enumerate(row):
        name, _, words = (each.strip() for each in cell.partition(":"))
        if name:
            width = len(name) * _LETTER + 24 if words == _BARE else _BOX[0]
            found.append(_Box(name, words, _MARGIN + _BOX[0] / 2 + column * _STEP[0], y, width))
    return found


def _drawn(box: _Box) -> str:
    frame = f'<rect class="box" x="{box.x - box.width / 2:g}" y="{box.y - _BOX[1] / 2:g}" width="{box.width:g}" height="{_BOX[1]}" rx="8"/>'
    words = [] if box.words == _BARE else textwrap.wrap(box.words, int(box.width / _LETTER))
    top = box.y + 4.5 - 7.5 * len(words)
    texts = [f'<text class="name" x="{box.x:g}" y="{top:g}" text-anchor="middle">{escape(box.name)}</text>']
    texts += [
        f'<text class="small" x="{box.x:g}" y="{top + 15 * line:g}" text-anchor="middle">{escape(each)}</text>'
        for line, each in enumerate(words, 1)
    ]
    return ("" if box.words == _BARE else frame) + "".join(texts)


def _arrow(one: _Box, other: _Box, words: str, *, both: bool) -> str:
    """Draw a straight arrow from frame to frame; a box that is as wide as the picture is met right below or above the other."""
    if one.width > _BOX[0]:
        one = one._replace(x=other.x, width=_BOX[0])
    if other.width > _BOX[0]:
        other = other._replace(x=one.x, width=_BOX[0])
    length = math.dist((one.x, one.y), (other.x, other.y))
    dx, dy = (other.x - one.x) / length, (other.y - one.y) / length
    (x1, y1), (x2, y2) = one.border(dx, dy), other.border(-dx, -dy)
    part = 0.3 if dx and dy else 0.5  # arrows that cross do so in their middle
    x, y = x1 + (x2 - x1) * part, y1 + (y2 - y1) * part + (4 if dy else -7)
    said = (
        f'<text class="on" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(words)}</text>'
        if words
        else ""
    )
    heads = _head(x2, y2, dx, dy) + (_head(x1, y1, -dx, -dy) if both else "")
    return f'<path class="line" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>{heads}{said}'


def _head(x: float, y: float, dx: float, dy: float) -> str:
    left, right = ((x - 9 * dx + side * dy, y - 9 * dy - side * dx) for side in (4, -4))
    return f'<path class="head" d="M{x:.1f} {y:.1f}L{left[0]:.1f} {left[1]:.1f}L{right[0]:.1f} {right[1]:.1f}Z"/>'
