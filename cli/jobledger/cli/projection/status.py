"""`jobledger projection status`: the position of the rows, and how far they are behind the ledger."""

from __future__ import annotations

from datetime import datetime

from jobledger.admin.amounts import duration, size
from jobledger.admin.projection import ProjectionStatus, projection_status
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import PROJECTION
from jobledger.cli.output import Output
from jobledger.cli.text import age


@command(PROJECTION, "status", takes=ROWS)
async def status(cli: Cli) -> None:
    """Show how far the projection has read, and how far that is behind the ledger."""
    async with cli.ledger() as ledger:
        found, problem = await projection_status(ledger, await cli.rows(ledger).path())
        now = ledger.clock.now()
    if cli.output.as_json:
        cli.output.object(found)
    else:
        _show(cli.output, found, now)
    if problem is not None:
        raise problem


def _show(output: Output, found: ProjectionStatus, now: datetime) -> None:
    if found.missing:
        output.note(found.missing)
    when = age(datetime.fromisoformat(found.updated_at), now) if found.updated_at else "never"
    lag = "unknown: the projection cannot continue in this ledger"
    if found.lag_events is not None and found.lag_s is not None:
        lag = f"{found.lag_events:,} events" + (f", {duration(found.lag_s)}" if found.lag_events else "")
    output.facts(
        [
            ("file", found.projection),
            ("position", f"{found.position:,} of {found.head:,}"),
            ("begins at", f"{found.begins_at:,}"),
            ("counts begin at", f"{found.counts_begin_at:,}" if found.missing else None),
            ("lag", lag),
            ("updated", when),
            ("schema", str(found.schema_version or "none yet")),
            ("size", size(found.size_bytes)),
        ]
    )
