"""The archive: the ledger's oldest events, moved into a folder of exports that each name the one before.

`archiver` moves them with its `deps`, `plan` finds out what a run would move, `chain` reads the folder and what the
ledger records of it, `witness` compares the two in a check, `redactor` takes values out of it. Source: ADR 011, ADR 070.
"""

from typing import TYPE_CHECKING

from jobledger.ledger.on_demand import on_demand

if TYPE_CHECKING:
    from jobledger.audit.archive.archiver import Archiver, Done
    from jobledger.audit.archive.chain import open_archive
    from jobledger.audit.archive.deps import ArchiveDeps, OnProgress, Step, archive_deps
    from jobledger.audit.archive.plan import ArchivePlan
else:  # the same as a table
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "archiver": ("Archiver", "Done"),
            "chain": ("open_archive",),
            "deps": ("ArchiveDeps", "OnProgress", "Step", "archive_deps"),
            "plan": ("ArchivePlan",),
        },
    )

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
