"""`jobledger jobs show --graph`: the steps of a run as a table, as Mermaid text or as an SVG drawing."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Final, Literal

from jobledger.admin.objects.jobs import graph_shown
from jobledger.admin.run_graph import Node, RunGraph, graph_of, levels
from jobledger.cli.jobs.step_words import mark
from jobledger.cli.one_job import JobRead
from jobledger.cli.output import Output
from jobledger.cli.text import colored, shortened

Form = Literal["text", "mermaid", "svg"]
_LABEL_MAX: Final = 40
_STATUSES: Final = {
    "completed": "#d8f0d8",
    "failed": "#f6d5d5",
    "retrying": "#fbeecb",
    "started": "#d9e8f8",
    "open": "#d9e8f8",
    "waiting": "#eeeeee",
}
#: Measures of the drawing in pixels.
_CHARACTER: Final = 7.3
_BOX_HEIGHT: Final = 30
_ROW: Final = 64
_GAP: Final = 24
_EDGE: Final = 16


def show_graph(output: Output, read: JobRead, form: Form) -> None:
    """Print the steps of a run and what came after what."""
    drawn = graph_of(read.job)
    if output.as_json:
        output.object(graph_shown(read.job, read.chain))
    elif form == "mermaid":
        output.raw("\n".join(_mermaid(drawn)))
    elif form == "svg":
        output.raw("\n".join(_svg(drawn)))
    else:
        _show(output, read.job.id, drawn)
    if drawn.hidden:
        output.note(f"the first {len(drawn.nodes)} nodes are shown, and {drawn.hidden:,} are left out")


def _show(output: Output, job_id: str, drawn: RunGraph) -> None:
    if not drawn.nodes:
        output.say(f"job {job_id} has recorded no step")
        return
    rows = [
        (
            node.id,
            f"{mark(node.status)} {shortened(node.label, 80)}",
            colored(node.status),
            _after(drawn, node),
        )
        for node in drawn.nodes
    ]
    output.table(("#", "step", "status!", "after~"), rows)


def _after(drawn: RunGraph, node: Node) -> str:
    return ", ".join(drawn.before(node.id))


def _mermaid(drawn: RunGraph) -> Iterator[str]:
    yield "flowchart TD"
    for node in drawn.nodes:
        # Mermaid reads character references with a number sign in place of the ampersand.
        label = html.escape(f"{mark(node.status)} {shortened(node.label, _LABEL_MAX)}").replace("&", "#")
        yield f'  n{_name(node.id)}["{label}"]:::{node.status}'
    for first, then in drawn.edges:
        yield f"  n{_name(first)} --> n{_name(then)}"
    for status in sorted({node.status for node in drawn.nodes}):
        yield f"  classDef {status} fill:{_STATUSES[status]},stroke:#555"


def _name(node: str) -> str:
    return node.replace(".", "_")


def _svg(drawn: RunGraph) -> Iterator[str]:
    places: dict[str, tuple[float, float, float]] = {}  # left, top and width of each node's box
    rows = levels(drawn)
    for number, row in enumerate(rows):
        left = float(_EDGE)
        for node in row:
            width = (len(_text(node)) + 2) * _CHARACTER
            places[node.id] = (left, _EDGE + number * _ROW, width)
            left += width + _GAP
    wide = max((left + width for left, _, width in places.values()), default=0.0) + _EDGE
    high = 2 * _EDGE + max(0, len(rows) - 1) * _ROW + _BOX_HEIGHT
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high}" '
        f'viewBox="0 0 {wide:.0f} {high}" font-family="monospace" font-size="12">'
    )
    for first, then in drawn.edges:
        (x, y, width), (to_x, to_y, to_width) = places[first], places[then]
        yield (
            f'<line x1="{x + width / 2:.1f}" y1="{y + _BOX_HEIGHT:.1f}" x2="{to_x + to_width / 2:.1f}" '
            f'y2="{to_y:.1f}" stroke="#555"/>'
        )
    for node in drawn.nodes:
        x, y, width = places[node.id]
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BOX_HEIGHT}" rx="5" '
            f'fill="{_STATUSES[node.status]}" stroke="#555"><title>{html.escape(node.status)}</title></rect>'
        )
        middle = f'x="{x + width / 2:.1f}" y="{y + _BOX_HEIGHT / 2 + 4:.1f}" text-anchor="middle"'
        yield f"<text {middle}>{html.escape(_text(node))}</text>"
    yield "</svg>"


def _text(node: Node) -> str:
    return f"{mark(node.status)} {shortened(node.label, _LABEL_MAX)}"
