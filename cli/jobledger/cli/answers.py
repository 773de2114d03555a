"""The answers to questions in SQL: printing their rows, and the options that limit them."""

from __future__ import annotations

import csv
import sys
from typing import Annotated, Final, Literal

import typer

from jobledger.cli.output import Output
from jobledger.cli.text import plain
from jobledger.cli.times import seconds
from jobledger.projections.queries.sql import SqlAnswer

ROWS: Final = 1_000
_ROWS_MAX: Final = 1_000_000
TIMEOUT_S: Final = 30.0

Format = Annotated[
    Literal["table", "json", "csv"],
    typer.Option(
        "--format", metavar="WHAT", help="How rows are printed: table, json (an object a line), csv."
    ),
]
Limit = Annotated[
    int, typer.Option("--limit", min=1, max=_ROWS_MAX, metavar="N", help="At most this many rows.")
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SPAN", parser=seconds(), help="How long the SQL may take."),
]


def show_answer(output: Output, found: SqlAnswer, shown: str) -> None:
    """Print the rows in the form of `shown`, or as JSON with --json; say if there are more."""
    if output.as_json:
        shown = "json"
    if shown == "json":
        for row in found.rows:
            output.object(dict(zip(found.columns, row, strict=True)))
    elif shown == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(found.columns)
        writer.writerows(found.rows)
    elif not found.rows:
        output.say("no row")
    else:
        columns = [plain(each).rstrip(">!~") for each in found.columns]
        output.table(
            columns, [["" if each is None else plain(str(each)) for each in row] for row in found.rows]
        )
    if found.has_more:
        output.note(f"the first {len(found.rows):,} rows; more with --limit")
