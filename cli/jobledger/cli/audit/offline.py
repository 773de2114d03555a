"""`jobledger audit verify EXPORT`: check an export, without a server."""

from __future__ import annotations

from pathlib import Path

from jobledger.audit.export import ExportLog, verify_export
from jobledger.audit.verify import CheckOptions, Report
from jobledger.cli.audit.seal_options import SealsAsked
from jobledger.cli.errors import LedgerNotSoundError
from jobledger.cli.output import Output
from jobledger.ledger.model.errors import CorruptLedgerError


async def verify_offline(
    output: Output, path: Path, options: CheckOptions, before: Report | None, seals: SealsAsked
) -> tuple[Report, str]:
    """Check the export in a folder, or of a manifest; return what was found, and of which environment it is.

    Raises: LedgerNotSoundError when not even its manifest can be read; else as `verify_export`.
    """
    try:
        export = ExportLog(path)
        manifest = export.manifest
        # A seal covers every event of its range, so a selection of events has no seal to check.
        found = seals.witnesses(export, manifest.first_sequence, None, before=before, is_part=True)
        witnesses = [each async for each in found] if manifest.complete or seals.kept else []
        with output.progress("checking the export") as progress:
            report = await verify_export(
                path, options=options, before=before, witnesses=witnesses, on_progress=progress
            )
            return report, manifest.environment
    except CorruptLedgerError as error:
        raise LedgerNotSoundError(f"the export is not sound: {error}") from error
