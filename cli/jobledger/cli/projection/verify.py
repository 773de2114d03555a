"""`jobledger projection verify`: compare the rows with a projection that is rebuilt for this."""

from __future__ import annotations

from jobledger.audit.archive.chain import with_past
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import ProjectionDiffersError
from jobledger.cli.groups import PROJECTION
from jobledger.projections import Projector, verify


@command(PROJECTION, "verify", takes=ROWS)
async def verify_projection(cli: Cli, *, archives: options.Archives = None) -> None:
    """Prove that the projection equals a rebuilt one, row for row; else name the first difference."""
    output = cli.output
    async with cli.ledger() as ledger:
        path = await cli.rows(ledger).path()
        log = await with_past(ledger.log, archives) if archives else ledger.log
        with Projector(log, path) as projector, output.progress("reading the ledger") as progress:
            await projector.catch_up(progress=progress)
        with output.progress("rebuilding") as progress, output.progress("comparing") as comparing:
            position, found = await verify(log, path, progress=progress, comparing=comparing)
    sequence = position.stream_sequence
    if output.as_json:
        equal = found is None
        output.object({"projection": str(path), "position": sequence, "equal": equal, "difference": found})
    if found is not None:
        more = f"; {found.rows:,} rows differ" if found.rows > 1 else ""
        raise ProjectionDiffersError(f"the projection differs from a rebuilt one: {found.sentence}{more}")
    if not output.as_json:
        output.say(f"{path} equals a rebuilt one, row for row, up to stream sequence {sequence:,}")
