"""Options that several commands share, each with its name, its environment variable and its sentence of help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from jobledger.cli.errors import UsageError
from jobledger.cli.text import size
from jobledger.ledger import LedgerConfig
from jobledger.ledger.model.job import JobState
from jobledger.workers.supervision.supervisor import PROCESSES_MAX

_SERVER = "Server"

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="JOBLEDGER_URL",
        show_envvar=True,
        metavar="URL",
        help="Server to use; several, separated by commas, for a cluster.",
        rich_help_panel=_SERVER,
    ),
]
OptionalUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="JOBLEDGER_URL",
        metavar="URL",
        help="Use this server, which runs already, instead of an embedded one.",
        rich_help_panel=_SERVER,
    ),
]
Environment = Annotated[
    str,
    typer.Option(
        "--environment",
        envvar="JOBLEDGER_ENVIRONMENT",
        metavar="NAME",
        help="Prefix of streams and subjects, so that several environments share a server.",
        rich_help_panel=_SERVER,
    ),
]
LedgerBytesMax = Annotated[
    int | None,
    typer.Option(
        "--ledger-bytes-max",
        envvar="JOBLEDGER_LEDGER_BYTES_MAX",
        metavar="BYTES",
        help="Size at which a ledger that is made by this command counts as full. "
        f"(default: {size(LedgerConfig().ledger_bytes_max)})",
        rich_help_panel=_SERVER,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Answer in JSON: one object, or one a line for lists.")
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
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        envvar="JOBLEDGER_QUEUES",
        metavar="QUEUE[=WEIGHT]",
        help="Queue to serve, asked so often beside others (1 to 100); repeat it, or separate several by commas. "
        "(default: those that the tasks name)",
    ),
]
Queue = Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Only this queue.")]
Concurrency = Annotated[
    int,
    typer.Option(
        "--concurrency",
        envvar="JOBLEDGER_CONCURRENCY",
        metavar="N",
        help="Attempts that may run at once, threads included.",
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        envvar="JOBLEDGER_GRACE_S",
        metavar="SECONDS",
        help="How long running attempts may go on after a stop was asked for.",
    ),
]
Pool = Annotated[
    int | None,
    typer.Option(
        "--pool",
        min=1,
        envvar="JOBLEDGER_POOL",
        metavar="N",
        help='Processes for tasks with run_in="process", per worker. (default: one per CPU)',
    ),
]
PoolMemory = Annotated[
    int | None,
    typer.Option(
        "--pool-memory",
        min=64,
        envvar="JOBLEDGER_POOL_MEMORY",
        metavar="MIB",
        help="Address space of each of them, in MiB. (default: no limit)",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        max=PROCESSES_MAX,
        envvar="JOBLEDGER_PROCESSES",
        metavar="N",
        help="Supervise so many worker processes: a dead one is replaced. (default: this process alone)",
    ),
]
Traces = Annotated[
    bool,
    typer.Option(
        "--traces",
        metavar="",
        envvar="JOBLEDGER_TRACES",
        help="Record a span for each attempt, by the OpenTelemetry that is set up in this process.",
    ),
]
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
Port = Annotated[
    int,
    typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0 takes a free one."),
]
OptionalDirectory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="Where the embedded server keeps its store between runs; .jobledger when not given.",
    ),
]
OptionalPort = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        metavar="PORT",
        help="Port to listen on, 4222 when not given; 0 takes a free one.",
    ),
]
Durability = Annotated[
    Literal["power", "process"],
    typer.Option(
        "--durability",
        help="What an acknowledged event survives: a power cut, or (faster) only the death of a process.",
    ),
]
Reload = Annotated[
    bool,
    typer.Option(
        "--reload",
        metavar="",
        help="For development: start anew, in good order, when a source file changes.",
    ),
]
UntilEof = Annotated[
    bool,
    typer.Option(
        "--until-eof",
        metavar="",
        help="Stop at once when stdin ends: for a parent that must leave nobody behind.",
    ),
]
_METRICS = "Metrics"
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        envvar="JOBLEDGER_METRICS_PORT",
        metavar="PORT",
        help="Serve /metrics and /healthz there; 0 takes a free port; with --processes the first of so many. "
        "(default: off)",
        rich_help_panel=_METRICS,
    ),
]
MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host",
        envvar="JOBLEDGER_METRICS_HOST",
        metavar="HOST",
        help="Address to serve them on; beyond this machine only with a token.",
        rich_help_panel=_METRICS,
    ),
]
MetricsTokenFile = Annotated[
    Path | None,
    typer.Option(
        "--metrics-token-file",
        envvar="JOBLEDGER_METRICS_TOKEN_FILE",
        metavar="FILE",
        help="File with the token that every request must carry (Authorization: Bearer).",
        rich_help_panel=_METRICS,
    ),
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
State = Annotated[JobState | None, typer.Option("--state", help="Only jobs in this state.")]


def split(values: list[str] | None) -> list[str]:
    """Return the words of options that may be repeated, separated by commas, or both."""
    return [word.strip() for value in values or [] for word in value.split(",") if word.strip()]


def weighted(values: list[str] | None) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the queues of --queue, each once and in order, and the weights of those that were given one.

    Raises: UsageError for a weight that is no number, or a queue with two of them.
    """
    weights: dict[str, int] = {}
    queues: dict[str, None] = {}
    for word in split(values):
        queue, given, text = word.partition("=")
        queues[queue] = None
        if not given:
            continue
        if not (text.isascii() and text.isdecimal() and len(text) <= len("100")):
            raise UsageError(
                f"--queue {word[:80]!r}: the weight must be a whole number from 1 to 100, as in email=3"
            )
        if weights.setdefault(queue, int(text)) != int(text):
            raise UsageError(f"--queue gives {queue[:80]!r} two weights: {weights[queue]} and {int(text)}")
    return tuple(queues), weights
