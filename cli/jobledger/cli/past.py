"""`--at` and `--sequence`: the rows as of a past moment, or of the present if neither was given."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from jobledger.admin.past import AsOf, moment_words
from jobledger.admin.past import viewed as rows_viewed
from jobledger.admin.rows import View
from jobledger.cli.command import Cli
from jobledger.cli.errors import UsageError
from jobledger.cli.times import time_of
from jobledger.ledger.model.times import time_text

if TYPE_CHECKING:
    from jobledger.ledger.client import Ledger


def asked(at: str | None, sequence: int | None) -> AsOf | None:
    """Read both options; None when neither was given. Raises: UsageError."""
    if at is not None and sequence is not None:
        raise UsageError("--at and --sequence both name a moment: give one of them")
    if at is None and sequence is None:
        return None
    return AsOf(at=time_of("--at", at), stream_sequence=sequence)


def option_words(past: AsOf) -> str:
    """Return the option as words of a command line."""
    return f"--sequence {past.stream_sequence}" if past.at is None else f"--at {time_text(past.at)}"


@contextlib.asynccontextmanager
async def viewed(cli: Cli, past: AsOf | None) -> AsyncGenerator[View, None]:
    """Connect, and open the rows as of the past moment; without one, bring the projection up to date."""
    async with cli.ledger() as ledger, viewed_of(cli, ledger, past) as view:
        yield view


@contextlib.asynccontextmanager
async def viewed_of(cli: Cli, ledger: Ledger, past: AsOf | None) -> AsyncGenerator[View, None]:
    """Open the rows of a ledger; see `viewed`."""
    async with rows_viewed(cli.rows(ledger), past) as (view, then):
        if then is not None:
            cli.output.note(moment_words(then))
        if view.begins_at > 1:
            cli.output.note(
                f"rows begin at stream sequence {view.begins_at}: earlier events are in the archive, and "
                "`jobledger projection rebuild --archive DIR` adds them"
            )
        yield view


def rows_begin(view: View) -> dict[str, int]:
    """Return a further field of --json rows, `rows_begin_at`, if the rows do not begin with the ledger."""
    return {} if view.begins_at == 1 else {"rows_begin_at": view.begins_at}
