"""Options that several commands share, each with its name, its environment variable and its sentence of help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from jobledger.admin.amounts import size
from jobledger.cli.server_options import SERVER
from jobledger.cli.times import seconds
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.model.job import JobState
from jobledger.ledger.variables import variable


class Setting(NamedTuple):
    """The option and the variable that set one field of a configuration."""

    option: Any  #: the type of the command's parameter, whose default is None
    flag: str
    variable: str
    told: str  #: its help, one sentence
    default: str  #: its default in words
    value: Callable[[Any], Any]  #: (typed value) -> value of the field
    text: Callable[[Any], str]  #: (value of the field) -> text of the variable


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Options that several commands have: a parameter of such a type stands for one option for each field."""


def setting(flag: str, metavar: str, told: str, panel: str | None = None) -> Any:
    """Return an option whose variable has its name: `--https-cert` is JOBLEDGER_HTTPS_CERT. `told`: its sentence of help."""
    name = flag.removeprefix("--").replace("-", "_")
    return typer.Option(flag, envvar=variable(name), metavar=metavar, help=told, rich_help_panel=panel)


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
#: Option of commands that make a ledger, and of processes that run jobs.
REPLICAS: Final = Setting(
    option=Annotated[
        int | None,
        typer.Option(
            "--replicas",
            envvar="JOBLEDGER_REPLICAS",
            metavar="N",
            help="Copies of each stream of a ledger that this command creates, each on a server of its own: 1, 3 or 5. "
            "(default: 3 on a cluster, else 1)",
            rich_help_panel=SERVER,
        ),
    ],
    flag="--replicas",
    variable="JOBLEDGER_REPLICAS",
    told="Copies of each stream of a ledger that it creates: 1, 3 or 5.",
    default="3 on a cluster, else 1",
    value=int,
    text=str,
)
WaitForServer = Annotated[
    float,
    typer.Option(
        "--wait-for-server",
        envvar="JOBLEDGER_WAIT_FOR_SERVER_S",
        metavar="SPAN",
        parser=seconds(),
        help="How long to retry at the start while no server answers or its JetStream is not ready; 0 does not.",
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
After = Annotated[
    str | None,
    typer.Option("--after", metavar="CURSOR", help="The page that follows the one that showed this cursor."),
]
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


def archive_folder(text: str) -> Path:
    """Return the folder of an archive, also for one that lies behind a URI. Raises: as `local_folder`."""
    from jobledger.audit.archive.mirror import local_folder  # noqa: PLC0415 - few commands read an archive

    return local_folder(text)


Archives = Annotated[
    list[Path] | None,
    typer.Option(
        "--archive",
        metavar="DIR",
        parser=archive_folder,
        help="Folder or URI of the archive that holds the ledger's beginning; or its exports, the oldest first.",
    ),
]
#: The options that choose jobs, by the fields of `SaidFilter`.
SAID: Final[Mapping[str, Any]] = {
    "tenant": Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Only jobs of this tenant.")
    ],
    "correlation": Annotated[
        str | None,
        typer.Option("--correlation", metavar="WORD", help="Only jobs of this first cause: a batch, a run."),
    ],
    "metadata": Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            metavar="KEY=VALUE",
            help="Only jobs with this pair of metadata; repeat it for more.",
        ),
    ],
    "limited_by": Annotated[
        str | None,
        typer.Option(
            "--limited-by",
            metavar="LIMIT",
            help="Only jobs with this limit: name:key, or a name for any key.",
        ),
    ],
    "created_by": Annotated[
        str | None,
        typer.Option("--created-by", metavar="NAME", help="Only jobs that this person or process asked for."),
    ],
    "owner": Annotated[
        str | None,
        typer.Option("--owner", metavar="OWNER", help="Only jobs that hold this owner's data: kind:id."),
    ],
}
State = Annotated[
    JobState | None,
    typer.Option("--state", metavar="STATE", help=f"Only jobs in this state: {', '.join(JobState)}."),
]
Gateway = Annotated[
    str,
    typer.Option("--gateway", metavar="URL", envvar="JOBLEDGER_GATEWAY", help="Address of the gateway."),
]
GATEWAY: Final = "http://127.0.0.1:8080"


def split(values: list[str] | None) -> list[str]:
    """Return the words of options that may be repeated, separated by commas, or both."""
    return [word.strip() for value in values or [] for word in value.split(",") if word.strip()]
