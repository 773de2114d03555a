"""`jobledger ledger resize`: change how many bytes the ledger may hold."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.admin.amounts import read_size, size
from jobledger.admin.ledger_size import resize_ledger
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import LEDGER

_Size = Annotated[str, typer.Argument(metavar="SIZE", help="What it may hold, such as 8GiB or 500MiB.")]


@command(LEDGER, "resize")
async def resize(cli: Cli, *, wanted: _Size) -> None:
    """Let the ledger hold up to SIZE, more or less than now; work goes on meanwhile, and no event is deleted.

    If the ledger is full, give it room, then move older events into an archive with `audit archive`.
    """
    bytes_max = read_size(wanted)
    if bytes_max is None:
        raise UsageError(f"SIZE {wanted[:60]!r} is no size such as 8GiB, 500MiB or 65536")
    async with cli.ledger() as ledger:
        found = await resize_ledger(ledger, bytes_max)
    if cli.output.as_json:
        cli.output.object(found)
        return
    before = "any size" if found.bytes_max_before is None else size(found.bytes_max_before)
    cli.output.say(
        f"the ledger holds {size(found.stored_bytes)} and may hold {size(found.bytes_max)} (before: {before})",
        style="bold green",
    )
