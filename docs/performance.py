"""The figures of docs/performance.md: tables and charts of the run in benchmarks/peers/figures.json, for `make docs`."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from peers import report  # noqa: E402 - it lies beside the programs that it sums up
from peers.systems import OURS, SETTINGS, SYSTEMS  # noqa: E402

_FIGURES: Final = ROOT / "benchmarks" / "peers" / "figures.json"
_WIDTH: Final = 760  #: pixels
_LEFT: Final = 150
_BAR: Final = 15
_ROW: Final = 24
_HEAD: Final = 54
_COLUMNS: Final = 110  #: of prose
_STYLE: Final = (
    "text{font:12.5px system-ui,sans-serif;fill:#1c2330}.title{font-weight:600;font-size:14px}.small{font-size:11.5px;fill:#566074}"
    ".page{fill:#fff}.ours{fill:#3452d9}.other{fill:#9fb0d6}.second{fill:#d98634}.spread{stroke:#1c2330;stroke-width:1.4}"
    "@media(prefers-color-scheme:dark){text{fill:#e8ebf2}.small{fill:#a4adbf}.page{fill:#12151c}.ours{fill:#8ea2ff}"
    ".other{fill:#4a5878}.second{fill:#b8752f}.spread{stroke:#e8ebf2}}"
)


class _Bar(NamedTuple):
    """A bar: what it stands for, its parts, and how far what was measured spreads."""

    name: str
    parts: tuple[float, ...]
    least: float
    most: float
    is_ours: bool


class _Chart(NamedTuple):
    """What a chart shows: one figure of all systems, or two on top of each other."""

    title: str
    figures: tuple[str, ...]  #: `{usual}` is the drain with the usual concurrency of a system
    legend: str


#: By the end of the name of its file.
CHARTS: Final[Mapping[str, _Chart]] = {
    "bulk": _Chart("Bulk enqueue, jobs a second", ("bulk/s",), "line: least to most of the rounds"),
    "single": _Chart("Enqueue one by one, jobs a second", ("single/s",), "line: least to most of the rounds"),
    "drain": _Chart(
        "Drain by one worker, jobs a second", ("{usual}/s",), "line: least to most of the rounds"
    ),
    "cpu": _Chart(
        "CPU of a drained job, microseconds",
        ("{usual} worker us", "{usual} server us"),
        "worker, and in orange its server",
    ),
}


def figures() -> dict[str, Any]:
    """Return the run that is kept."""
    found: dict[str, Any] = json.loads(_FIGURES.read_text(encoding="utf-8"))
    return found


def charts(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the charts as SVG, by the end of their files' names."""
    return {name: _drawn(chart, run) for name, chart in CHARTS.items()}


def about(run: Mapping[str, Any]) -> str:
    """Return where, when and with what a run was made."""
    machine = run["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    count, minutes = len(run["rounds"]), run["took s"] / 60
    where = f"{run['date']}, {machine['cores']} cores of {machine['processor']}, {machine['system']}"
    lines = [
        f"{where}; load before the run {machine['load']:g}; {count} round{'s' * (count > 1)} in {minutes:.0f} minutes.",
        f"{versions}.",
    ]
    lines += [f"{SYSTEMS[name].title} is left out: {why}." for name, why in run["missing"].items()]
    lines += [f"{what}: {why}." for what, why in run["failed"].items()]
    notes = [f"{each.title}: {each.about}." for each in SYSTEMS.values() if each.about]
    return "".join(f"- {_filled(line)}\n" for line in (*lines, *notes))


def tables(run: Mapping[str, Any], begins: Sequence[str]) -> str:
    """Return the tables whose titles begin so, in Markdown; what is less than 1 of a ratio is bold."""
    chosen = [table for table in report.tables(run) if table.title.startswith(tuple(begins))]
    return "\n".join(_table(table) for table in chosen)


def _table(table: report.Table) -> str:
    is_ratio = table.title.startswith("jobledger's")
    rows = [
        [_marked(cell) if is_ratio and place else cell for place, cell in enumerate(row)]
        for row in table.rows
    ]
    lines = [table.heads, ["---", *["--:"] * (len(table.heads) - 1)], *rows]
    return f"**{table.title}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _marked(ratio: str) -> str:
    is_less = re.fullmatch(r"0\.\d+", ratio)
    return f"**{ratio}**" if is_less else ratio


def _filled(text: str) -> str:
    filled = textwrap.fill(text, _COLUMNS - 2, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\n", "\n  ")


def _bars(chart: _Chart, run: Mapping[str, Any], setting: str) -> Iterator[_Bar]:
    for name, system in SYSTEMS.items():
        names = [each.format(usual=report.usual(name)) for each in chart.figures]
        medians = [report.median(run, name, setting, each) for each in names]
        found = report.values(run, name, setting, names[0])
        if all(medians):
            parts = tuple(each or 0.0 for each in medians)
            yield _Bar(system.title, parts, min(found), max(found), name == OURS)


def _drawn(chart: _Chart, run: Mapping[str, Any]) -> str:
    """Draw both settings below each other, on one scale."""
    bars = {setting: list(_bars(chart, run, setting)) for setting in SETTINGS}
    most = max((max(sum(bar.parts), bar.most) for each in bars.values() for bar in each), default=1.0)
    scale = (_WIDTH - _LEFT - 80) / most
    drawn: list[str] = []
    y = _HEAD
    for setting, each in bars.items():
        drawn.append(f'<text class="small" x="12" y="{y + 12}">{setting}</text>')
        y += 20
        for bar in each:
            drawn += _bar(bar, y, scale, has_spread=len(chart.figures) == 1)
            y += _ROW
        y += 8
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" role="img">',
            f"<title>{escape(chart.title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{y}" rx="10"/>',
            f'<text class="title" x="12" y="24">{escape(chart.title)}</text>',
            f'<text class="small" x="12" y="42">{escape(chart.legend)}</text>',
            *drawn,
            "</svg>\n",
        ]
    )


def _bar(bar: _Bar, y: int, scale: float, *, has_spread: bool) -> Iterator[str]:
    yield f'<text x="12" y="{y + _BAR - 3}">{escape(bar.name)}</text>'
    x = float(_LEFT)
    for place, part in enumerate(bar.parts):
        kind = "second" if place else "ours" if bar.is_ours else "other"
        yield f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{max(1.0, part * scale):.1f}" height="{_BAR}"/>'
        x += part * scale
    end = x
    if has_spread and bar.most > bar.least:
        low, end = _LEFT + bar.least * scale, max(x, _LEFT + bar.most * scale)
        yield f'<path class="spread" d="M{low:.1f} {y + _BAR / 2}H{_LEFT + bar.most * scale:.1f}"/>'
    yield f'<text class="small" x="{end + 6:.1f}" y="{y + _BAR - 3}">{sum(bar.parts):,.0f}</text>'
