"""The archive: the ledger's oldest events, moved into a folder of exports that each name the one before.

`archiver` moves them with its `deps`, `plan` finds out what a run would move, `chain` reads the folder and what the
ledger says of it, `witness` holds the one to the other in a check. Source: ADR 011.
"""

from jobledger.audit.archive.archiver import Archiver, Done
from jobledger.audit.archive.chain import open_archive
from jobledger.audit.archive.deps import ArchiveDeps, OnProgress, Step, archive_deps
from jobledger.audit.archive.plan import ArchivePlan

__all__ = [
    "ArchiveDeps",
    "ArchivePlan",
    "Archiver",
    "Done",
    "OnProgress",
    "Step",
    "archive_deps",
    "open_archive",
]
