"""Options of the commands that run a server, workers or both."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from jobledger.cli.errors import UsageError
from jobledger.cli.options import SERVER, split
from jobledger.workers.supervision.supervisor import PROCESSES_MAX

OptionalUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="JOBLEDGER_URL",
        metavar="URL",
        help="Use this server, which runs already, instead of an embedded one.",
        rich_help_panel=SERVER,
    ),
]
OptionalDirectory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="Where the embedded server keeps its store between runs; .jobledger when not given.",
    ),
]
Port = Annotated[
    int,
    typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0 takes a free one."),
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
Traces = Annotated[
    bool,
    typer.Option(
        "--traces",
        metavar="",
        envvar="JOBLEDGER_TRACES",
        help="Record a span for each attempt, by the OpenTelemetry that is set up in this process.",
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
