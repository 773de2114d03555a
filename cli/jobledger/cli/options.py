"""Options that several commands share, each with its name, its environment variable and its sentence of help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from jobledger.admin.amounts import size
from jobledger.ledger import LedgerConfig
from jobledger.ledger.model.job import JobState

SERVER: Final = "Server"  #: a panel of --help

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="JOBLEDGER_URL",
        show_envvar=True,
        metavar="URL",
        help="Server to use; several, separated by commas, for a cluster.",
        rich_help_panel=SERVER,
    ),
]
Environment = Annotated[
    str,
    typer.Option(
        "--environment",
        envvar="JOBLEDGER_ENVIRONMENT",
        metavar="NAME",
        help="Prefix of streams and subjects, so that several environments share a server.",
        rich_help_panel=SERVER,
    ),
]
LedgerBytesMax = Annotated[
    int | None,
    typer.Option(
        "--ledger-bytes-max",
        envvar="JOBLEDGER_LEDGER_BYTES_MAX",
        metavar="BYTES",
        help="Size limit of a ledger that this command creates. "
        f"(default: {size(LedgerConfig().ledger_bytes_max)})",
        rich_help_panel=SERVER,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Answer in JSON: one object, or one per line for lists.")
]
App = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        envvar="JOBLEDGER_APP",
        metavar="MODULE",
        help="Module (or .py file) that holds the tasks; repeat it, or separate several by commas.",
    ),
]
Queue = Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Only this queue.")]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most this many.")]
ProjectionFile = Annotated[
    Path | None,
    typer.Option(
        "--projection",
        envvar="JOBLEDGER_PROJECTION",
        metavar="PATH",
        help="SQLite file of the projection. (default: one per ledger in your data folder)",
    ),
]
Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Where the embedded server keeps its store between runs.")
]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="As it was at this past time (UTC), by the clock of the server."
    ),
]
Sequence = Annotated[
    int | None,
    typer.Option(
        "--sequence",
        metavar="N",
        help="As it was after the event at this stream sequence; 0 is before the first.",
    ),
]
Archives = Annotated[
    list[Path] | None,
    typer.Option(
        "--archive",
        metavar="DIR",
        help="Folder of the archive that holds the ledger's beginning; or its exports, the oldest first.",
    ),
]
State = Annotated[JobState | None, typer.Option("--state", help="Only jobs in this state.")]


def split(values: list[str] | None) -> list[str]:
    """Return the words of options that may be repeated, separated by commas, or both."""
    return [word.strip() for value in values or [] for word in value.split(",") if word.strip()]
