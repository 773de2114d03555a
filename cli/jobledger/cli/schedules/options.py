"""Options of `jobledger schedules`: those that several of its commands share, and those of commands with many."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from jobledger.cli.times import seconds
from jobledger.ledger.model.schedules.definition import SPAN_S_MAX, WINDOW_S_DEFAULT
from jobledger.ledger.model.schedules.ticks import INTERVAL_S_MAX

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask.")]

Task = Annotated[str, typer.Option("--task", metavar="TASK", help="Task of its jobs.")]
Graph = Annotated[
    str, typer.Option("--graph", metavar="NAME", help="Instead of --task: a stored graph, run each time.")
]
Cron = Annotated[
    str,
    typer.Option(
        "--cron",
        metavar="EXPRESSION",
        help='Five fields: minute, hour, day of the month, month, day of the week, as in "30 2 * * mon-fri".',
    ),
]
Timezone = Annotated[
    str,
    typer.Option("--timezone", metavar="ZONE", help="Whose clocks --cron means, as in Europe/Berlin."),
]
Every = Annotated[
    float | None,
    typer.Option(
        "--every",
        metavar="SPAN",
        parser=seconds(1.0, INTERVAL_S_MAX),
        help="Instead of --cron: tick at each whole multiple of this time, counted from 1970.",
    ),
]
At = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="Instead of --cron: tick once, at this time (UTC).")
]
OnDemand = Annotated[
    bool,
    typer.Option(
        "--on-demand", metavar="", help="Instead of --cron: no ticks; `schedules trigger` makes its jobs."
    ),
]
EndsAt = Annotated[
    str | None, typer.Option("--ends-at", metavar="TIME", help="No tick after this time (UTC).")
]
Input = Annotated[
    str,
    typer.Option(
        "--input", metavar="JSON", help="Input of each job as a JSON object; - reads it from stdin."
    ),
]
Overlap = Annotated[
    Literal["skip", "allow", "buffer_one", "buffer_all", "cancel_other"],
    typer.Option(
        "--overlap",
        metavar="skip|allow|buffer_one|buffer_all|cancel_other",
        help="What happens while the job of the tick before still runs or waits: no job, one more, one that waits "
        "(at most one, or all in line), or one that ends the other.",
    ),
]
Catchup = Annotated[
    Literal["latest", "none", "all"],
    typer.Option(
        "--catchup",
        metavar="latest|none|all",
        help="Which ticks that were missed by over a minute get a job: the newest one, none, or all.",
    ),
]
Window = Annotated[
    float,
    typer.Option(
        "--window",
        metavar="SPAN",
        parser=seconds(maximum=SPAN_S_MAX),
        help=f"With --catchup all: how far back. (default: {WINDOW_S_DEFAULT} s, which is a day)",
        show_default=False,
    ),
]
Jitter = Annotated[
    float,
    typer.Option(
        "--jitter",
        metavar="SPAN",
        parser=seconds(maximum=SPAN_S_MAX),
        help="Let each tick be due up to this much later, by name and time, so that not all come at once.",
    ),
]
Replace = Annotated[
    bool,
    typer.Option("--replace", metavar="", help="Change a schedule of this name that does something else."),
]
