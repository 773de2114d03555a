"""`jobledger audit acknowledge`: accept that a message of the ledger is no event."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.admin.unreadable import acknowledge_message
from jobledger.cli.command import Cli, command
from jobledger.cli.groups import AUDIT
from jobledger.cli.session import operator
from jobledger.cli.text import plain
from jobledger.ledger.model.times import time_text

Sequence = Annotated[
    int, typer.Argument(metavar="SEQUENCE", min=1, help="Stream sequence, as `audit verify` names it.")
]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why it is accepted; kept in the ledger.")
]


@command(AUDIT, "acknowledge")
async def acknowledge(cli: Cli, *, sequence: Sequence, reason: Reason) -> None:
    """Accept a message that is no event, after looking into it: `audit verify` then lists it and calls the rest sound."""
    async with cli.ledger() as ledger:
        accepted = await acknowledge_message(ledger, sequence, reason=reason, by=operator())
    event = accepted.event
    if cli.output.as_json:
        cli.output.object(
            {
                "stream_sequence": accepted.stream_sequence,
                "sequence": event.sequence,
                "subject": event.stored_as,
                "sha256": event.sha256,
                "why": event.why,
                "reason": event.reason,
                "by": event.by,
                "at": time_text(event.at),
            }
        )
    else:
        cli.output.say(f"stream sequence {event.sequence} is acknowledged by {plain(event.by)}")
        cli.output.note(plain(event.why))
