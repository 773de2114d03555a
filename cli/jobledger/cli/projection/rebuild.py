"""`jobledger projection rebuild`: make the rows again from the first event."""

from __future__ import annotations

from jobledger.audit.archive.chain import with_past
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import PROJECTION
from jobledger.ledger.model.archive_record import forgotten_past
from jobledger.projections import rebuild


@command(PROJECTION, "rebuild", takes=ROWS)
async def rebuild_projection(cli: Cli, *, archives: options.Archives = None) -> None:
    """Rebuild the projection from the first event in a new file, then swap it in."""
    output = cli.output
    async with cli.ledger() as ledger:
        path = await cli.rows(ledger).path()
        log = await with_past(ledger.log, archives) if archives else ledger.log
        with output.progress("rebuilding") as progress:
            position = await rebuild(log, path, progress=progress)
        forgotten = await forgotten_past(ledger.log) if archives else None
    if output.as_json:
        output.object(
            {
                "projection": str(path),
                "position": position.stream_sequence,
                "begins_at": position.begins_at,
                "counts_begin_at": position.counts_begin_at,
            }
        )
        return
    if forgotten is not None and position.begins_at == forgotten.through_sequence + 1:
        output.note(f"{forgotten.words}, are gone for good, and in no row")
    elif position.missing:
        output.note(position.missing)
    begins = f" from {position.begins_at:,}" if position.begins_at > 1 else ""
    output.say(f"{path} is rebuilt{begins} up to stream sequence {position.stream_sequence:,}")
