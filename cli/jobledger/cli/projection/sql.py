"""`jobledger sql`: a question in SQL over the tables and views of the projection; it only reads."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
import typer

from jobledger.cli import answers
from jobledger.cli.answers import show_answer
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import TOP
from jobledger.projections.queries.sql import ask

_Query = Annotated[
    str, typer.Argument(metavar="SQL", help="One SELECT; docs/projections.md lists the tables.")
]
_Param = Annotated[
    list[str] | None,
    typer.Option(
        "--param", metavar="NAME=VALUE", help="What :NAME stands for in the SQL, as text; repeatable."
    ),
]


@command(TOP, "sql", takes=ROWS)
async def sql(
    cli: Cli,
    *,
    query: _Query,
    shown: answers.Format = "table",
    param: _Param = None,
    limit: answers.Limit = answers.ROWS,
    timeout: answers.Timeout = answers.TIMEOUT_S,
) -> None:
    """Ask the projection a question in SQL. It reads the rows, brought up to now, and changes nothing."""
    values = dict(_pair(each) for each in param or ())
    async with cli.ledger() as ledger, cli.rows(ledger).opened() as view:
        path = view.store.path
        found = await anyio.to_thread.run_sync(
            lambda: ask(path, query, values, rows_max=limit, limit_s=timeout)
        )
    show_answer(cli.output, found, shown)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--param {text!a} is no NAME=VALUE: write --param queue=mail for :queue")
    return name, value
