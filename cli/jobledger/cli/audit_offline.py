"""`jobledger audit verify PATH`: check an export, without a server."""

from __future__ import annotations

from pathlib import Path

from jobledger.cli.errors import LedgerNotSoundError
from jobledger.cli.output import Output
from jobledger.ledger.audit_report import Report
from jobledger.ledger.errors import CorruptLedgerError
from jobledger.ledger.export import verify_export


def verify_path(output: Output, path: Path, before: Report | None) -> Report:
    """Check the export in a folder, or of a manifest, and return what was found.

    Raises: LedgerNotSoundError when not even its manifest can be read; what `verify_export` raises but for that.
    """
    with output.progress("checking the export") as progress:
        try:
            return verify_export(path, before=before, on_progress=progress)
        except CorruptLedgerError as error:
            raise LedgerNotSoundError(f"the export is not sound: {error}") from error
