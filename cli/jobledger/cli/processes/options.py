"""Options of the commands that run a server, workers or both."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from jobledger.cli.errors import UsageError
from jobledger.cli.options import split
from jobledger.cli.server_options import SERVER, no_secret
from jobledger.ledger import TaskRegistry
from jobledger.workers.supervision.supervisor import PROCESSES_MAX

logger = logging.getLogger("jobledger.workers")

OptionalUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="JOBLEDGER_URL",
        metavar="URL",
        callback=no_secret,
        help="Use this running server instead of an embedded one.",
        rich_help_panel=SERVER,
    ),
]
OptionalDirectory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="Where the embedded server keeps its store between runs. (default: .jobledger)",
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
        help="Port to listen on; 0 takes a free one. (default: 4222)",
    ),
]
Durability = Annotated[
    Literal["power", "process"],
    typer.Option(
        "--durability",
        metavar="LEVEL",
        help="What an acknowledged event survives: power (a power cut), or process (faster: only the death of a "
        "process).",
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        envvar="JOBLEDGER_QUEUES",
        metavar="QUEUE[=WEIGHT]",
        help="Queue to serve; =WEIGHT, 1 to 100, is its share relative to the other queues. Repeat it, or "
        "separate several by commas. (default: those that the tasks name)",
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
        help="Run N worker processes and restart any that die. (default: this process alone)",
    ),
]
Reload = Annotated[
    bool,
    typer.Option(
        "--reload",
        metavar="",
        help="For development: restart the worker when a source file changes.",
    ),
]
NoSchedules = Annotated[
    bool,
    typer.Option(
        "--no-schedules",
        metavar="",
        envvar="JOBLEDGER_NO_SCHEDULES",
        help="Do not declare the schedules and routes of the loaded modules.",
    ),
]
UntilIdle = Annotated[
    bool,
    typer.Option(
        "--until-idle",
        metavar="",
        help="Stop when no job of its queues is ready or runs: for cron-like hosts and tests.",
    ),
]
UntilEof = Annotated[
    bool,
    typer.Option(
        "--until-eof",
        metavar="",
        help="Stop at once when stdin ends, so that the worker exits with its parent process.",
    ),
]

_GATEWAY = "Gateway"
NoGateway = Annotated[
    bool,
    typer.Option(
        "--no-gateway",
        metavar="",
        envvar="JOBLEDGER_NO_GATEWAY",
        help="Do not start the HTTP API and the dashboard.",
        rich_help_panel=_GATEWAY,
    ),
]
NoBrowser = Annotated[
    bool,
    typer.Option(
        "--no-browser",
        metavar="",
        envvar="JOBLEDGER_NO_BROWSER",
        help="Do not open the dashboard in a browser where there is a screen.",
        rich_help_panel=_GATEWAY,
    ),
]
GatewayPort = Annotated[
    int | None,
    typer.Option(
        "--gateway-port",
        min=0,
        max=65535,
        envvar="JOBLEDGER_GATEWAY_PORT",
        metavar="PORT",
        help="Port of the gateway; 0 takes a free one. (default: 8080, else a free one)",
        rich_help_panel=_GATEWAY,
    ),
]
AccessLog = Annotated[
    bool,
    typer.Option(
        "--access-log",
        metavar="",
        envvar="JOBLEDGER_ACCESS_LOG",
        help="Log each request to the gateway.",
        rich_help_panel=_GATEWAY,
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
        help="Serve /metrics and /healthz on this port; 0 takes a free one; with --processes, the first of N ports. "
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
        help="Address to serve metrics on; one beyond this machine needs a token.",
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
    """Return the queues of --queue, each once and in order, and the weights that some of them have.

    Raises: UsageError for a weight that is no number, or a queue with two weights.
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


def warn_of_foreign(served: Sequence[str], registry: TaskRegistry) -> None:
    """Warn of queues that no task here names: they are mistyped, unless jobs are enqueued there with --queue."""
    for queue in served:
        if queue not in registry.queues:
            near = difflib.get_close_matches(queue, registry.queues, n=1)
            meant = (
                f"did you mean {near[0]}?" if near else f"the tasks' queues are {', '.join(registry.queues)}"
            )
            logger.warning(
                "no task has queue %s, so only jobs that are enqueued with --queue will come: %s",
                queue,
                meant,
            )
