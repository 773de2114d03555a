"""`jobledger audit restore`: an export's events, byte for byte, into an empty ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from jobledger.audit.export import Manifest, import_export, read_manifest, restorable
from jobledger.cli.command import CREATES, Cli, command
from jobledger.cli.groups import AUDIT
from jobledger.cli.options import archive_folder
from jobledger.cli.output import Output
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.retention import is_uri
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.pauses import note_living
from jobledger.ledger.nats.payloads import Stores


def _export_folder(text: str) -> Path:
    """Return the folder of an export, also for one of an archive that lies behind a URI. Raises: as `archive_folder`."""
    if not is_uri(text):
        return Path(text)
    place, mark, how = text.partition("?")
    archive, _, name = place.rstrip("/").rpartition("/")
    return archive_folder(f"{archive}{mark}{how}") / name


@command(AUDIT, "restore", takes=("url", "environment", CREATES, "as_json"))
async def restore(
    cli: Cli,
    *,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            parser=_export_folder,
            help="The export, as `audit export` wrote it; or its URI in an archive, such as s3://bucket/ledger/EXPORT.",
        ),
    ],
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, metavar="SEQ", help="The last event to bring back. (default: all)"),
    ] = None,
) -> None:
    """Bring an export back into an empty ledger, byte for byte, at the same sequences; an interrupted restore resumes."""
    output = cli.output
    restorable(folder, Names(cli.target.environment))  # a bad export is refused before a ledger is made
    async with cli.ledger() as ledger:
        with output.progress("restoring") as progress:
            payloads = Stores(ledger.inputs, ledger.results)
            lanes = set[tuple[str, Priority]]()
            count = await import_export(
                folder, ledger.log, through=to, payloads=payloads, lanes=lanes, on_progress=progress
            )
        with output.progress("looking for jobs that wait") as progress:
            await note_living(
                ledger.inbox, ledger.log, lanes, replicas=ledger.config.replicas, on_progress=progress
            )
        head = (await ledger.log.head()).last_sequence
    if output.as_json:
        output.object({"appended": count, "head": head})
    else:
        output.say(f"{count:,} events were brought back; the ledger ends at {head:,}")
        _tell_payloads(output, read_manifest(folder))
        output.note("prove it with `jobledger audit verify`")


def _tell_payloads(output: Output, manifest: Manifest) -> None:
    payloads = manifest.payloads
    if isinstance(payloads, msgspec.UnsetType) or not payloads.count:
        return
    lacking = payloads.count - payloads.stored
    if lacking:
        output.note(
            f"{lacking:,} large inputs or results are not in the export: their jobs cannot be run again"
        )
