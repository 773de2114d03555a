"""`jobledger tables query`: a question in SQL over the tables of a run; it only reads."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.admin.tables.query import query_tables
from jobledger.cli import answers, options
from jobledger.cli.answers import show_answer
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import TABLES
from jobledger.cli.tables.show import Run

_Query = Annotated[
    str,
    typer.Argument(
        metavar="SQL", help="One SELECT; a table is named by its step's key, or by the table's name."
    ),
]


@command(TABLES, "query", takes=ROWS)
async def query(
    cli: Cli,
    *,
    run: Run,
    query: _Query,
    queue: options.Queue = None,
    shown: answers.Format = "table",
    limit: answers.Limit = answers.ROWS,
    timeout: answers.Timeout = answers.TIMEOUT_S,
) -> None:
    """Ask the tables of a run a question in SQL. It reads their rows in a locked process, and changes nothing."""
    async with cli.ledger() as ledger:
        found = await query_tables(
            ledger, cli.rows(ledger), run, query, queue=queue, rows_max=limit, limit_s=timeout
        )
    show_answer(cli.output, found, shown)
