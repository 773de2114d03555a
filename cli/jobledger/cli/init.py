"""`jobledger init`: the ledger and buckets of an environment, made before anything writes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from jobledger.admin.amounts import size
from jobledger.admin.environment import ReadyEnvironment, prepare
from jobledger.admin.keys import ensure_first_key
from jobledger.cli.command import CREATES, WAITS, Cli, command
from jobledger.cli.groups import TOP
from jobledger.cli.session import opened, operator
from jobledger.ledger.model.errors import LedgerNotFoundError


@command(TOP, "init", takes=("url", "environment", CREATES, WAITS, "as_json"))
async def init(
    cli: Cli,
    *,
    first_key_file: Annotated[
        Path | None,
        typer.Option(
            "--first-key-file",
            metavar="FILE",
            envvar="JOBLEDGER_FIRST_KEY_FILE",
            help="A key for the gateway, which may do everything: valid from here on if the ledger has no key. A file that "
            "is missing is made, with a new key.",
        ),
    ] = None,
) -> None:
    """Make the ledger and the buckets of an environment where they are missing, and say what to do next.

    Existing streams and buckets stay as they are. Processes that connect later need no right to make streams.
    """
    created = not await _is_there(cli)
    async with opened(cli.target) as ledger:
        prepared = await prepare(ledger)
        key = (
            None if first_key_file is None else await ensure_first_key(ledger, first_key_file, by=operator())
        )
    if cli.output.as_json:
        cli.output.object(prepared, created=created, first_key=None if key is None else key.key)
        return
    _tell(cli, prepared, created=created)
    if key is not None:
        cli.output.note(
            f"key {key.key} is valid from now on and may do everything: it stands in {first_key_file}"
        )


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
