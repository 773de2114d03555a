"""Exports: a range of the ledger as files that can be checked, kept and read without a server.

An export is a folder with `manifest.json` and files `events-<first>-<last>.jsonl` (or `.parquet`); docs/exports.md
describes it for who reads it with other tools. What belongs together is in modules of its own; others import
it from here.
"""

from typing import TYPE_CHECKING

from jobledger.ledger.on_demand import on_demand

if TYPE_CHECKING:
    from jobledger.audit.export.check import verify_export
    from jobledger.audit.export.log import ExportLog, JoinedLog
    from jobledger.audit.export.manifest import (
        ExportedFile,
        FileFormat,
        Manifest,
        Previous,
        Selection,
        manifest_sha256,
        previous_of,
        read_manifest,
    )
    from jobledger.audit.export.reader import check_files, read_export
    from jobledger.audit.export.restore import import_export, restorable
    from jobledger.audit.export.writer import write_export
else:  # the same as a table
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "check": ("verify_export",),
            "log": ("ExportLog", "JoinedLog"),
            "manifest": (
                "ExportedFile",
                "FileFormat",
                "Manifest",
                "Previous",
                "Selection",
                "manifest_sha256",
                "previous_of",
                "read_manifest",
            ),
            "reader": ("check_files", "read_export"),
            "restore": ("import_export", "restorable"),
            "writer": ("write_export",),
        },
    )

__all__ = [
    "ExportLog",
    "ExportedFile",
    "FileFormat",
    "JoinedLog",
    "Manifest",
    "Previous",
    "Selection",
    "check_files",
    "import_export",
    "manifest_sha256",
    "previous_of",
    "read_export",
    "read_manifest",
    "restorable",
    "verify_export",
    "write_export",
]
