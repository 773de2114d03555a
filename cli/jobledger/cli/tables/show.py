"""`jobledger tables list` and `show`: the tables that runs made, and until when their rows are kept."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
import typer

from jobledger.admin.amounts import duration, size
from jobledger.admin.tables.files import TABLES_MAX, is_stored, one_table, tables_of
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import TABLES
from jobledger.cli.text import Cell, moment, plain, shortened
from jobledger.projections.tables.run_tables import TableRow

_LIMIT: Final = 50

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or a prefix that only one job has.")]
Step = Annotated[
    str, typer.Argument(metavar="STEP", help="Key of the step that made it, or the table's name.")
]
_OptionalRun = Annotated[
    str | None, typer.Argument(metavar="RUN", help="Only the tables of this run: its id, or a prefix of it.")
]
_Limit = Annotated[
    int,
    typer.Option("--limit", min=1, max=TABLES_MAX, metavar="N", help="At most this many, the newest first."),
]


@command(TABLES, "list", takes=ROWS)
async def list_all(
    cli: Cli, *, run: _OptionalRun = None, queue: options.Queue = None, limit: _Limit = _LIMIT
) -> None:
    """List the tables of runs, those made last first: rows, size, and until when the rows are kept."""
    output = cli.output
    async with cli.ledger() as ledger:
        found = await tables_of(cli.rows(ledger), run, queue, limit=limit)
    if output.as_json:
        for each in found.tables:
            output.object(table_object(each))
    elif not found.tables:
        output.say("no run has made a table" if run is None else f"run {run} has made no table")
    else:
        output.table(
            ("run", "step", "rows>", "size>", "kept for!"), [_cells(each, found.now) for each in found.tables]
        )
        if len(found.tables) == limit:
            output.note(f"the newest {limit:,}; more with --limit")


def _cells(table: TableRow, now: datetime) -> tuple[Cell, ...]:
    return (
        shortened(table.job_id, 64),
        shortened(table.step, 64),
        f"{table.rows:,}",
        size(table.bytes),
        kept_for(table, now),
    )


def kept_for(table: TableRow, now: datetime) -> str:
    """Return how long a table's rows are still kept, by the recorded expiry."""
    if table.expires_at is None:
        return "ever"
    left_s = (datetime.fromisoformat(table.expires_at) - now).total_seconds()
    return duration(left_s) if left_s > 0 else "expired"


def table_object(table: TableRow) -> dict[str, Any]:
    """Return a table for --json."""
    return msgspec.structs.asdict(table)


@command(TABLES, "show", takes=ROWS)
async def show(cli: Cli, *, run: Run, step: Step, queue: options.Queue = None) -> None:
    """Show a table of a run: its columns, its digest, and whether its rows are still there."""
    output = cli.output
    async with cli.ledger() as ledger:
        table = await one_table(cli.rows(ledger), run, step, queue)
        stored, now = await is_stored(ledger, table), ledger.clock.now()
    if output.as_json:
        output.object({**table_object(table), "stored": stored})
        return
    until = None if table.expires_at is None else datetime.fromisoformat(table.expires_at)
    made = None if table.made_at is None else datetime.fromisoformat(table.made_at)
    output.say(f"table {plain(table.name)} of run {table.queue}/{table.job_id}", style="bold")
    output.facts(
        [
            ("step", shortened(table.step, 64)),
            ("rows", f"{table.rows:,}"),
            ("size", size(table.bytes)),
            ("sha256", table.sha256),
            ("file", plain(table.file)),
            ("made", None if made is None else moment(made, now)),
            ("kept until", "somebody removes it" if until is None else moment(until, now)),
            ("stored", "yes" if stored else "no"),
        ]
    )
    output.table(("column", "type"), [(shortened(name, 60), kind) for name, kind in table.columns.items()])
    if not stored:
        output.note(f"`jobledger jobs rerun {table.job_id} --from {table.step}` makes it again")
