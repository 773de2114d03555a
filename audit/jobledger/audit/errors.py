"""What can go wrong with exports, archives and checks.

CorruptLedgerError
└── ExportDamagedError
LedgerError
└── ScratchSpaceError         no room for temporary files: make some, nothing was changed
RefusedError
├── ArchiveAbsentError
├── ArchiveIncompleteError
├── ArchiveRefusedError
├── ExportExistsError
└── NotAnExportError
"""

from __future__ import annotations

from pathlib import Path

from jobledger.ledger.model.errors import CorruptLedgerError, LedgerError, RefusedError


class ScratchSpaceError(LedgerError):
    """The folder for temporary files has no more room for records that a command has to store there."""


class ExportExistsError(RefusedError):
    """The place for an export holds something else, or another process writes there now; nothing was changed."""


class NotAnExportError(RefusedError):
    """A folder is no export of the ledger, or one that this version cannot read or use for this."""


class ExportDamagedError(CorruptLedgerError):
    """A file of an export is missing, or is not what its manifest says; another copy may be whole."""

    def __init__(
        self,
        file: Path,
        problem: str,
        *,
        line: int = 0,
        stream_sequence: int = 0,
        next_sequence: int = 0,
    ) -> None:
        self.file = file
        self.line = line  #: counted from 1 (a row, in Parquet); 0 for the file as a whole
        self.problem = problem  #: the fault, without its place
        place = f", line {line:,}" if line else ""
        about = f" (stream sequence {stream_sequence})" if stream_sequence else ""
        super().__init__(
            f"{file}{place}{about}: {problem}; use another copy of this export, or make it again",
            stream_sequence=stream_sequence,
            next_sequence=next_sequence,
        )


class ArchiveAbsentError(RefusedError):
    """The archive of the ledger is not where it should be: mount its disk, or say where it is now. Nothing was moved."""


class ArchiveIncompleteError(RefusedError):
    """The folder of an archive lacks an export that the ledger or a later export names."""


class ArchiveRefusedError(RefusedError):
    """An archive run does not go on, because something would be lost by it; nothing was taken away."""
