"""A table of targets on a command line: which parts are measured, and a line for each figure as soon as it is known."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from shared import run
from targets import Row, Spread

Figures = dict[str, list[float]]
Rows = Mapping[str, Mapping[str, Row]]


def parser(description: str | None, rows: Rows, *, pairs: int, rounds: int) -> argparse.ArgumentParser:
    """Return what a command line may say of any table."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--against", metavar="COMMIT", default="")
    found.add_argument("--only", metavar="PART", action="append", choices=[*rows], help=", ".join(rows))
    found.add_argument("--pairs", type=int, metavar="N", help=f"{pairs} unless given")
    found.add_argument("--rounds", type=int, metavar="N", help=f"{rounds} unless given")
    found.add_argument("--quick", action="store_true", help="next to nothing of everything")
    found.add_argument("--json", action="store_true")
    return found


def chosen(reader: argparse.ArgumentParser) -> argparse.Namespace:
    """Return what the command line says; exit with a sentence where it makes no sense."""
    options = reader.parse_args()
    if "against" in (options.only or ()) and not options.against:
        reader.error("--only against needs a commit: --against COMMIT")
    if min(1 if each is None else each for each in (options.pairs, options.rounds)) < 1:
        reader.error("--pairs and --rounds are at least 1")
    return options


def given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the sizes that the command line changes."""
    return {name: value for name in ("pairs", "rounds") if (value := getattr(options, name)) is not None}


def skipped(part: str, options: argparse.Namespace, when_asked: Collection[str]) -> bool:
    """Return whether a part was not asked for; those of `when_asked` have an option of their name."""
    if options.only:
        return part not in options.only
    return part in when_asked and not getattr(options, part)


def line(row: Row, found: Spread | None, values: Mapping[str, Any]) -> str:
    """Return a line of the table."""
    head = f"{row.what.format_map(values):<50}{row.target:>15}"
    if found is None:
        return f"{head}{'not measured':>16}"
    figure, low, high = (f"{each:,.{row.digits}f}" for each in found[:3])
    spread = f"{low} .. {high}" if found.times > 1 else "once"
    return f"{head}{figure + ' ' + row.unit:>16}{spread:>20}  {row.verdict(found)}".rstrip()


def show(
    rows: Rows,
    measured: Callable[[str], Coroutine[Any, Any, Figures]],
    *,
    is_skipped: Callable[[str], bool],
    values: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Measure part by part; print the lines of each as soon as they are known."""
    found: dict[str, dict[str, Any]] = {}
    if not as_json:
        print(f"{'':<50}{'target':>15}{'median':>16}{'middle half':>20}")
    for part, lines in rows.items():
        figures: Figures = {}
        if not is_skipped(part):
            began = time.monotonic()
            print(f"{part} ...", end="", file=sys.stderr, flush=True)
            figures = run(measured(part))
            print(f" {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        for name, row in lines.items():
            spread = Spread.of(figures[name]) if figures.get(name) else None
            if as_json:
                found[f"{part}: {name}"] = (
                    {**spread._asdict(), "unit": row.unit, "verdict": row.verdict(spread)} if spread else {}
                )
            else:
                print(line(row, spread, values), flush=True)
    if as_json:
        print(json.dumps(found, indent=2))
