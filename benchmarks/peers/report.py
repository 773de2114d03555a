"""Tables of one run, for a terminal of 80 columns and for docs/performance.md. Standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from peers.systems import OURS, SETTINGS, SYSTEMS, Setting

Run = Mapping[str, Any]  #: as bench_peers.py writes it

_NONE: Final = "-"


class Table(NamedTuple):
    """A table: the first cell of each row is the name of a system."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(run: Run) -> list[Table]:
    """Return all tables that have figures."""
    found = [_ratios(run), _beside(run, "bullmq")]
    for setting in SETTINGS:
        found += [_sent(run, "bulk", "Bulk enqueue", setting), _sent(run, "single", "One by one", setting)]
        found += [_drains(run, setting), _cpu(run, setting)]
    found += [_latency(run, setting) for setting in SETTINGS]
    found += [_bytes(run, setting) for setting in SETTINGS]
    found += [_rest(run), *_series(run, "growth", "Growth"), *_series(run, "payloads", "Payloads")]
    return [table for table in found if table.rows]


def text_of(table: Table) -> str:
    """Return a table for a terminal."""
    lines = (table.heads, *table.rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.heads))]
    shown = [
        "  ".join(
            f"{cell:>{width}}" if place else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join([table.title, *shown])


def values(run: Run, name: str, setting: str, figure: str) -> list[float]:
    """Return a figure of each round that has it."""
    found = (each.get(name, {}).get(setting, {}).get(figure) for each in run["rounds"])
    return [value for value in found if value is not None]


def median(run: Run, name: str, setting: str, figure: str) -> float | None:
    """Return the median of a figure; None where it was not measured."""
    found = values(run, name, setting, figure)
    return statistics.median(found) if found else None


def times_ours(run: Run, name: str, setting: str, figure: str) -> list[float]:
    """Return, for each round, how many times the figure of a system jobledger has."""
    pairs = (
        tuple(each.get(one, {}).get(setting, {}).get(figure) for one in (OURS, name))
        for each in run["rounds"]
    )
    return [ours / theirs for ours, theirs in pairs if ours and theirs]


def usual(name: str) -> str:
    """Return the name of the drain with a system's usual concurrency."""
    return f"drain {SYSTEMS[name].concurrency}"


def _systems(setting: Setting, run: Run) -> Iterable[str]:
    return (name for name in SYSTEMS if any(setting in each.get(name, {}) for each in run["rounds"]))


def amount(value: float | None, digits: int = 0) -> str:
    """Return a figure as it is shown."""
    return _NONE if value is None else f"{value:,.{digits}f}"


def spread(found: Sequence[float], digits: int = 0) -> str:
    """Return the least and the most of what was measured."""
    return f"{min(found):,.{digits}f}-{max(found):,.{digits}f}" if found[1:] else _NONE


def _ratios(run: Run) -> Table:
    """How many times as fast as each of the others jobledger is."""
    heads = ("system", "bulk", "single", "drain", "two", "d. bulk", "single", "drain", "two")
    rows: list[tuple[str, ...]] = []
    for name in SYSTEMS:
        cells: list[str] = []
        for setting in SETTINGS:
            for figure in ("bulk/s", "single/s", "", "two workers/s"):
                found = (
                    _drain_ratio(run, name, setting) if not figure else times_ours(run, name, setting, figure)
                )
                cells.append(amount(statistics.median(found) if found else None, 2))
        if name != OURS and set(cells) != {_NONE}:
            rows.append((SYSTEMS[name].title, *cells))
    return Table("jobledger's rate as a multiple of each other's (d.: durable)", heads, rows)


def _beside(run: Run, name: str) -> Table:
    """How many times as fast as one of the others jobledger is, with the spread of the rounds."""
    measures = {
        "bulk/s": "bulk enqueue",
        "single/s": "one by one",
        **{f"drain {each}/s": f"drain, {each} at once" for each in SYSTEMS[OURS].concurrencies},
        "two workers/s": "two workers",
    }
    rows: list[tuple[str, ...]] = []
    for figure, words in measures.items():
        cells: list[str] = []
        for setting in SETTINGS:
            found = times_ours(run, name, setting, figure)
            cells += [amount(statistics.median(found) if found else None, 2), spread(found, 2)]
        if set(cells) != {_NONE}:
            rows.append((words, *cells))
    heads = ("", "plain", "least-most", "durable", "least-most")
    return Table(f"jobledger's rate as a multiple of {SYSTEMS[name].title}'s", heads, rows)


def _drain_ratio(run: Run, name: str, setting: str) -> list[float]:
    pairs = (
        tuple(each.get(one, {}).get(setting, {}).get(f"{usual(one)}/s") for one in (OURS, name))
        for each in run["rounds"]
    )
    return [ours / theirs for ours, theirs in pairs if ours and theirs]


def _sent(run: Run, figure: str, title: str, setting: Setting) -> Table:
    heads = ("system", "jobs/s", "least-most", "client us", "server us")
    rows: list[tuple[str, ...]] = []
    for name in _systems(setting, run):
        cpu = (amount(median(run, name, setting, f"{figure} {each} us")) for each in ("client", "server"))
        found = values(run, name, setting, f"{figure}/s")
        rows.append(
            (SYSTEMS[name].title, amount(median(run, name, setting, f"{figure}/s")), spread(found), *cpu)
        )
    return Table(f"{title}, {setting}", heads, rows)


def _drains(run: Run, setting: Setting) -> Table:
    heads = ("system", "10", "100", "400", "own", "least-most", "2 workers")
    rows: list[tuple[str, ...]] = []
    for name in _systems(setting, run):
        has_own = SYSTEMS[name].concurrency != 100
        at = [amount(median(run, name, setting, f"drain {each}/s")) for each in (10, 100, 400)]
        own = amount(median(run, name, setting, f"{usual(name)}/s")) if has_own else _NONE
        found = spread(values(run, name, setting, f"{usual(name)}/s"))
        rows.append(
            (SYSTEMS[name].title, *at, own, found, amount(median(run, name, setting, "two workers/s")))
        )
    return Table(f"Drain by concurrency, jobs/s, {setting}", heads, rows)


def _cpu(run: Run, setting: Setting) -> Table:
    heads = ("system", "worker us", "server us", "2 workers", "server us")
    rows: list[tuple[str, ...]] = []
    for name in _systems(setting, run):
        parts = (f"{usual(name)} worker us", f"{usual(name)} server us")
        both = (*parts, "two workers worker us", "two workers server us")
        rows.append((SYSTEMS[name].title, *(amount(median(run, name, setting, each)) for each in both)))
    return Table(f"CPU of a drained job, {setting}", heads, rows)


def _latency(run: Run, setting: Setting) -> Table:
    heads = ("system", "rest p50", "p99", "half load/s", "p50", "p99")
    rows: list[tuple[str, ...]] = []
    for name in _systems(setting, run):
        rest, half = (
            [median(run, name, setting, f"{what} {p} ms") for p in ("p50", "p99")]
            for what in ("rest", "half")
        )
        if rest[0] is not None:
            sent = amount(median(run, name, setting, "half sent/s"))
            cells = (*(amount(each, 2) for each in rest), sent, *(amount(each, 2) for each in half))
            rows.append((SYSTEMS[name].title, *cells))
    return Table(f"From enqueue to start, ms, {setting}", heads, rows)


def _bytes(run: Run, setting: Setting) -> Table:
    heads = ("system", "waiting, memory", "done, memory", "done, disk")
    figures = ("waiting memory B", "done memory B", "disk B")
    rows = [
        (SYSTEMS[name].title, *(amount(median(run, name, setting, each)) for each in figures))
        for name in _systems(setting, run)
    ]
    return Table(f"Bytes a job on the server, {setting}", heads, rows)


def _rest(run: Run) -> Table:
    heads = ("system", "worker %", "server %", "worker MiB", "server MiB", "recovery s")
    figures: tuple[tuple[str, Callable[[float | None], str]], ...] = (
        *((each, lambda value: amount(value, 2)) for each in ("idle worker %", "idle server %")),
        *((each, amount) for each in ("worker MiB", "server MiB")),
        ("recovery s", lambda value: _recovered(value, run.get("patience s", 0.0))),
    )
    rows = [
        (SYSTEMS[name].title, *(show(run["rest"][name].get(each)) for each, show in figures))
        for name in SYSTEMS
        if name in run["rest"]
    ]
    return Table("At rest, and until the job of a killed worker starts again", heads, rows)


def _recovered(value: float | None, limit_s: float) -> str:
    return amount(value, 1) if value is None or value >= 0 else f"not in {limit_s:.0f}"


def _series(run: Run, part: str, title: str) -> Iterable[Table]:
    """A table for each system whose figures were taken at several sizes."""
    for name, steps in run[part].items():
        heads = tuple(dict.fromkeys(each for figures in steps.values() for each in figures))
        short = tuple(each.replace("waiting memory B", "memory B") for each in heads if "client" not in each)
        rows = [
            (step, *(amount(figures.get(each)) for each in heads if "client" not in each))
            for step, figures in steps.items()
        ]
        yield Table(
            f"{title}, {SYSTEMS[name].title}", ("beside" if part == "growth" else "input", *short), rows
        )
