"""Options on how a job is queued and tried, for the commands that make jobs.

Each is declared here once; a command chooses with `order=` which of them it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import typer

from jobledger.cli.pairs import pairs
from jobledger.cli.times import seconds
from jobledger.ledger.options import MAX_ATTEMPTS_LIMIT, ORDER_FIELDS, TIMEOUT_S_LIMIT, LabelFields
from jobledger.ledger.outcome import DELAY_S_LIMIT

#: The options of a job, by the fields that they fill, in the order of `enqueue --help`.
ORDER: Final[Mapping[str, Any]] = {
    "queue": Annotated[
        str | None,
        typer.Option("--queue", metavar="QUEUE", help="Queue to put a job in. (default: the task's)"),
    ],
    "priority": Annotated[
        Literal["high", "normal", "low"] | None,
        typer.Option("--priority", metavar="LEVEL", help="high, normal or low. (default: the task's)"),
    ],
    "id": Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Id of the job; enqueueing it again adds no second job. (default: a new one)",
        ),
    ],
    "on_other_input": Annotated[
        Literal["error", "keep"] | None,
        typer.Option(
            "--on-other-input",
            metavar="WHAT",
            help="If the id has another input: error (exit 4), or keep the job as it is. (default: error)",
        ),
    ],
    "max_attempts": Annotated[
        int | None,
        typer.Option(
            "--max-attempts",
            metavar="N",
            min=1,
            max=MAX_ATTEMPTS_LIMIT,
            help="Attempts a job may have. (default: the task's)",
        ),
    ],
    "timeout_s": Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SPAN",
            parser=seconds(0.001, TIMEOUT_S_LIMIT),
            help="Limit of one attempt. (default: the task's)",
        ),
    ],
    "delay_s": Annotated[
        float | None,
        typer.Option(
            "--delay",
            metavar="SPAN",
            parser=seconds(maximum=DELAY_S_LIMIT),
            help="Wait this long before the job may run.",
        ),
    ],
    "run_at": Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Wait until this time (UTC) before the job may run."),
    ],
    "tenant": Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Whom a job belongs to.")],
    "owner": Annotated[
        str | None,
        typer.Option("--owner", metavar="KIND:ID", help="Whose data a job holds: its values are sealed."),
    ],
    "correlation": Annotated[
        str | None,
        typer.Option("--correlation", metavar="WORD", help="First cause a job belongs to: a batch, a run."),
    ],
    "metadata": Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="KEY=VALUE", help="A pair of words about a job; repeat it for more."
        ),
    ],
    "limits": Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="LIMIT",
            help="A limit a job waits for, beside the task's: name or name:key; repeat it for more.",
        ),
    ],
}
#: Options of jobs that another object names and begins.
LATER: Final[Mapping[str, Any]] = {
    name: kind for name, kind in ORDER.items() if name in {"queue", "owner", *ORDER_FIELDS}
}
#: Options of a run whose graph says how its jobs are queued and tried.
OF_RUN: Final[Mapping[str, Any]] = {
    name: ORDER[name] for name in (*LabelFields.__struct_fields__, "on_other_input", "owner")
}
Typed = dict[str, Any]  #: typed values of such options


def chosen(order: Typed) -> dict[str, Any]:
    """Return the typed values as values of the fields. Raises: UsageError."""
    found = dict(order)
    found["metadata"] = pairs(found["metadata"], "--metadata") if found["metadata"] else None
    if "limits" in found:
        found["limits"] = tuple(found["limits"] or ())
    return found
