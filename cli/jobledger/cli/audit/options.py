"""Options of `jobledger audit`: those that several of its commands share, and those of commands with many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from jobledger.cli.errors import UsageError
from jobledger.cli.times import seconds
from jobledger.ledger.model.retention import is_uri

_SEQUENCE_MAX: Final = 2**63 - 1

First = Annotated[
    int | None,
    typer.Option("--from", min=1, max=_SEQUENCE_MAX, metavar="SEQ", help="Stream sequence to begin at."),
]
Last = Annotated[
    int | None,
    typer.Option(
        "--to", min=1, max=_SEQUENCE_MAX, metavar="SEQ", help="Stream sequence to end at. (default: the head)"
    ),
]


def _export_path(text: str) -> Path:
    """Return the path of an export. Raises: UsageError for a URI: files that were fetched before would be checked."""
    if is_uri(text):
        raise UsageError(
            f"{text} is a URI, and an export alone is checked in a folder: copy it from there first"
        )
    return Path(text)


ExportPath = Annotated[
    Path | None,
    typer.Argument(
        metavar="EXPORT",
        parser=_export_path,
        help="Folder or manifest of an export to check instead, without a server.",
    ),
]
Against = Annotated[
    Path | None,
    typer.Option("--against", metavar="FILE", help="Earlier report, which the ledger must continue."),
]
KeptReport = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write the report to this file, as JSON.")
]
Sign = Annotated[
    Path | None,
    typer.Option(
        "--sign",
        metavar="FILE",
        help="Sign the file of --report with this private key, as `audit keygen` makes it.",
    ),
]
Record = Annotated[
    bool,
    typer.Option(
        "--record",
        metavar="",
        help="Record in the ledger that it was checked, and with which result: metrics and `doctor` tell its age.",
    ),
]
WithProjection = Annotated[
    bool,
    typer.Option("--with-projection", metavar="", help="Compare the projection with the events as well."),
]
WithPayloads = Annotated[
    bool,
    typer.Option(
        "--with-payloads",
        metavar="",
        help="Read every large input and result, and compare each with the hash in its event.",
    ),
]
TimerGrace = Annotated[
    float,
    typer.Option(
        "--timer-grace",
        parser=seconds(),
        metavar="SPAN",
        help="How late a timer may be before it is a violation.",
    ),
]
Memory = Annotated[
    int,
    typer.Option("--memory", min=1, metavar="MIB", help="Memory for job records; the rest goes to disk."),
]
WithoutPayloads = Annotated[
    bool,
    typer.Option(
        "--without-payloads",
        metavar="",
        help="Do not copy large inputs and results out of the object store.",
    ),
]
