"""Options on how a job is queued and tried, for the commands that make jobs.

Each stands here once; a command says with `order=` which of them it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import typer

from jobledger.cli.pairs import pairs
from jobledger.cli.times import seconds
from jobledger.ledger.options import MAX_ATTEMPTS_LIMIT, ORDER_FIELDS, TIMEOUT_S_LIMIT, LabelFields
from jobledger.ledger.outcome import DELAY_S_LIMIT

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
Id = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="Id of the job; enqueueing it again adds no second job. (default: a new one)",
    ),
]
OnOtherInput = Annotated[
    Literal["error", "keep"] | None,
    typer.Option(
        "--on-other-input",
        metavar="WHAT",
        help="If the id has another input: error (exit 4), or keep the job as it is. (default: error)",
    ),
]
Delay = Annotated[
    float | None,
    typer.Option(
        "--delay",
        metavar="SPAN",
        parser=seconds(maximum=DELAY_S_LIMIT),
        help="Wait this long before the job may run.",
    ),
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Wait until this time (UTC) before the job may run."),
]
#: The options of a job, by the fields that they fill, in the order of `enqueue --help`.
ORDER: Final[Mapping[str, Any]] = {
    "queue": Queue,
    "priority": Priority,
    "id": Id,
    "on_other_input": OnOtherInput,
    "max_attempts": MaxAttempts,
    "timeout_s": Timeout,
    "delay_s": Delay,
    "run_at": At,
    "tenant": Tenant,
    "correlation": Correlation,
    "metadata": Metadata,
    "limits": Limits,
}
#: Those of jobs that something else names and begins.
LATER: Final[Mapping[str, Any]] = {
    name: kind for name, kind in ORDER.items() if name in {"queue", *ORDER_FIELDS}
}
#: Those of a run whose jobs are queued and tried as its graph says.
LABELS: Final[Mapping[str, Any]] = {name: ORDER[name] for name in LabelFields.__struct_fields__}
Typed = dict[str, Any]  #: what was typed for such options


def chosen(order: Typed) -> dict[str, Any]:
    """Return what was typed as values of the fields. Raises: UsageError."""
    found = dict(order)
    found["metadata"] = pairs(found["metadata"], "--metadata") if found["metadata"] else None
    if "limits" in found:
        found["limits"] = tuple(found["limits"] or ())
    return found
