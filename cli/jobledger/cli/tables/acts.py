"""`jobledger tables export` and `remove`: write a table's rows to a file, and remove rows before their time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobledger.admin.amounts import size
from jobledger.admin.tables.files import export_table, one_table, tables_of
from jobledger.cli import options
from jobledger.cli.bulk import Plan, Yes, ask
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import TABLES
from jobledger.cli.tables.show import Run, Step, table_object
from jobledger.ledger.tables.stores import open_store

_File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The Parquet file to write; it must not exist yet.")
]
_OptionalStep = Annotated[
    str | None,
    typer.Argument(
        metavar="STEP", help="Key of one step, or the name of its table. (default: all of the run)"
    ),
]


@command(TABLES, "export", takes=ROWS)
async def export(cli: Cli, *, run: Run, step: Step, file: _File, queue: options.Queue = None) -> None:
    """Write the rows of a table into a Parquet file, checked against its digest."""
    async with cli.ledger() as ledger:
        table = await one_table(cli.rows(ledger), run, step, queue)
        await export_table(ledger, table, file)
    if cli.output.as_json:
        cli.output.object({**table_object(table), "path": str(file)})
    else:
        cli.output.say(f"{table.rows:,} rows, {size(table.bytes)}, in {file}")


@command(TABLES, "remove", takes=ROWS)
async def remove(
    cli: Cli,
    *,
    run: Run,
    step: _OptionalStep = None,
    queue: options.Queue = None,
    plan: Plan = False,
    yes: Yes = False,
) -> None:
    """Remove the rows of a run's tables before their time; the description of the tables stays in the ledger."""
    output = cli.output
    async with cli.ledger() as ledger:
        rows = cli.rows(ledger)
        if step is None:
            found = (await tables_of(rows, run, queue)).tables
        else:
            found = [await one_table(rows, run, step, queue)]
        store = open_store(ledger)
        there = [table for table in found if await store.has(table.record)]
        if there and not (plan or yes or step):
            total = size(sum(table.bytes for table in there))
            tables = "1 table" if len(there) == 1 else f"{len(there):,} tables"
            await ask(output, f"remove the rows of {tables} of run {there[0].job_id}, {total}?")
        for table in () if plan else there:
            await store.remove(table.record)
    for table in there if output.as_json else ():
        output.object({**table_object(table), "result": "planned" if plan else "done"})
    if not there:
        output.say(
            f"no table of run {run} has rows that are stored" if step is None else "its rows are not stored"
        )
    for table in there:
        done = "would be removed; nothing was changed" if plan else "removed"
        output.say(f"{table.step}: {table.rows:,} rows, {size(table.bytes)} {done}")
    if there and not plan:
        output.note(f"`jobledger jobs rerun {there[0].job_id} --from STEP` makes them again")
