"""The archive: the ledger's oldest events, moved into a folder of exports that each name the one before.

`archiver` moves them with its `tools`, `survey` finds out what a run would move, `chain` reads the folder and what the
ledger says of it, `witness` holds the one to the other in a check. Source: ADR 011.
"""

from jobledger.audit.archive.archiver import Archiver, Done, Plan
from jobledger.audit.archive.chain import open_archive
from jobledger.audit.archive.tools import OnProgress, Step, Tools, tools_of

__all__ = [
    "Archiver",
    "Done",
    "OnProgress",
    "Plan",
    "Step",
    "Tools",
    "open_archive",
    "tools_of",
]
