"""`jobledger sql`: a question of one's own, in SQL, over the tables and views of the projection; it only reads."""

from __future__ import annotations

import csv
import sys
from typing import Annotated, Final, Literal

import anyio.to_thread
import typer

from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import TOP
from jobledger.cli.text import plain
from jobledger.cli.times import seconds
from jobledger.projections.queries.sql import SqlAnswer, ask

_ROWS: Final = 1_000
_ROWS_MAX: Final = 1_000_000

_Query = Annotated[
    str, typer.Argument(metavar="SQL", help="One SELECT; docs/projections.md lists the tables.")
]
_Format = Annotated[
    Literal["table", "json", "csv"],
    typer.Option(
        "--format", metavar="WHAT", help="How rows are printed: table, json (an object a line), csv."
    ),
]
_Param = Annotated[
    list[str] | None,
    typer.Option(
        "--param", metavar="NAME=VALUE", help="What :NAME stands for in the SQL, as text; repeatable."
    ),
]
_Limit = Annotated[
    int, typer.Option("--limit", min=1, max=_ROWS_MAX, metavar="N", help="At most this many rows.")
]
_Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SPAN", parser=seconds(), help="How long the SQL may take."),
]


@command(TOP, "sql", takes=ROWS)
async def sql(
    cli: Cli,
    *,
    query: _Query,
    shown: _Format = "table",
    param: _Param = None,
    limit: _Limit = _ROWS,
    timeout: _Timeout = 30.0,
) -> None:
    """Ask the projection a question in SQL. It reads the rows, brought up to now, and changes nothing."""
    values = dict(_pair(each) for each in param or ())
    async with cli.ledger() as ledger, cli.rows(ledger).opened() as view:
        path = view.store.path
        found = await anyio.to_thread.run_sync(
            lambda: ask(path, query, values, rows_max=limit, limit_s=timeout)
        )
    _show(cli, found, "json" if cli.output.as_json else shown)
    if found.has_more:
        cli.output.note(f"the first {limit:,} rows; more with --limit")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--param {text!a} is no NAME=VALUE: write --param queue=mail for :queue")
    return name, value


def _show(cli: Cli, found: SqlAnswer, shown: str) -> None:
    if shown == "json":
        for row in found.rows:
            cli.output.object(dict(zip(found.columns, row, strict=True)))
    elif shown == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(found.columns)
        writer.writerows(found.rows)
    elif not found.rows:
        cli.output.say("no row")
    else:
        columns = [plain(each).rstrip(">!~") for each in found.columns]
        cli.output.table(
            columns, [["" if each is None else plain(str(each)) for each in row] for row in found.rows]
        )
