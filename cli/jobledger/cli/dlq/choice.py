"""The options that choose the dead letters of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, get_args

import typer

from jobledger.admin.dead_letters import DeadLetterChoice
from jobledger.cli.errors import UsageError
from jobledger.cli.times import parse_span, time_of
from jobledger.ledger.model.events import DeadReason
from jobledger.ledger.model.subjects import check_token
from jobledger.projections import SaidFilter

Task = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only dead letters of this task.")]
Reason = Annotated[
    DeadReason | None,
    typer.Option(
        "--dead-reason",
        metavar="REASON",
        help=f"Only dead letters with this reason: {', '.join(get_args(DeadReason))}.",
    ),
]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint", metavar="HEX", help="Only dead letters with this fingerprint, or a prefix of it."
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only those that died at this time (UTC) or later."),
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="SPAN", help="Only those that died longer ago than this: 90s, 30m, 12h, 7d."
    ),
]


def choose(
    *,
    ids: Sequence[str] = (),
    search: str = "",
    queue: str | None,
    task: str | None,
    reason: DeadReason | None,
    fingerprint: str | None,
    since: str | None,
    older_than: str | None,
    said: SaidFilter,
    everything: bool = False,
) -> DeadLetterChoice:
    """Check the options before any request to a server.

    Raises: UsageError, InvalidTokenError.
    """
    for field, value in (("queue", queue), ("task name", task)):
        if value is not None:
            check_token(field, value)
    if fingerprint is not None and re.fullmatch(r"[0-9a-f]{1,12}", fingerprint) is None:
        raise UsageError(
            f"--fingerprint {fingerprint[:60]!r} is not one: up to 12 hex digits, as `dlq list` shows them"
        )
    return DeadLetterChoice(
        ids=tuple(dict.fromkeys(ids)),
        search=search,
        queue=queue,
        task=task,
        reason=reason,
        fingerprint=fingerprint,
        since=time_of("--since", since),
        older_than=parse_span("--older-than", older_than) if older_than is not None else None,
        said=said,
        everything=everything,
    )
