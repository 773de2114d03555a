"""Options on how a job is queued and tried, for the commands that make jobs: `enqueue` and `schedules add`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from jobledger.cli.times import seconds
from jobledger.ledger.options import MAX_ATTEMPTS_LIMIT, TIMEOUT_S_LIMIT

Queue = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="Queue to put a job in. (default: the task's)")
]
Priority = Annotated[
    Literal["high", "normal", "low"] | None,
    typer.Option("--priority", metavar="LEVEL", help="high, normal or low. (default: the task's)"),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        "--max-attempts",
        metavar="N",
        min=1,
        max=MAX_ATTEMPTS_LIMIT,
        help="Attempts a job may have. (default: the task's)",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SPAN",
        parser=seconds(0.001, TIMEOUT_S_LIMIT),
        help="Limit of one attempt. (default: the task's)",
    ),
]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Whom a job belongs to.")]
Correlation = Annotated[
    str | None,
    typer.Option("--correlation", metavar="WORD", help="First cause a job belongs to: a batch, a run."),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="A pair of words about a job; repeat it for more."),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="LIMIT",
        help="A limit a job waits for, beside the task's: name or name:key; repeat it for more.",
    ),
]
