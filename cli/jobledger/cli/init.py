"""`jobledger init`: the ledger and buckets of an environment, made before anything writes to it."""

from __future__ import annotations

import msgspec

from jobledger.admin.amounts import size
from jobledger.admin.environment import ReadyEnvironment, prepare
from jobledger.cli.command import CREATES, Cli, command
from jobledger.cli.groups import TOP
from jobledger.cli.session import opened
from jobledger.ledger.model.errors import LedgerNotFoundError


@command(TOP, "init", takes=("url", "environment", CREATES, "as_json"))
async def init(cli: Cli) -> None:
    """Make the ledger and the buckets of an environment where they are missing, and say what to do next.

    What is there already stays as it is. Whoever connects later needs no right to make streams.
    """
    created = not await _is_there(cli)
    async with opened(cli.target) as ledger:
        prepared = await prepare(ledger)
    if cli.output.as_json:
        cli.output.object(prepared, created=created)
    else:
        _tell(cli, prepared, created=created)


async def _is_there(cli: Cli) -> bool:
    try:
        async with opened(msgspec.structs.replace(cli.target, create=False)):
            return True
    except LedgerNotFoundError:
        return False


def _tell(cli: Cli, prepared: ReadyEnvironment, *, created: bool) -> None:
    environment = f" of environment {prepared.environment}" if prepared.environment else ""
    made = "is made" if created else "was there already"
    cli.output.say(f"the ledger{environment} {made} at {prepared.url}", style="bold green")
    where = "".join(f" {word}" for word in cli.place_words())
    cli.output.facts(
        [
            ("holds", f"{size(prepared.ledger_bytes_max)} at the most; full, it refuses new events"),
            ("events", f"{prepared.last_sequence:,}"),
            (
                "copies",
                f"{prepared.replicas}, each on a server of its own" if prepared.replicas > 1 else None,
            ),
            ("next", f"jobledger worker --app MODULE{where}"),
            ("", f"jobledger gateway --app MODULE{where}"),
            ("", f"jobledger enqueue TASK key=value --wait{where}"),
            ("", f"jobledger doctor{where}"),
        ]
    )
