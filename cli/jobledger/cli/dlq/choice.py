"""The options that choose the dead letters of a command."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, get_args

import typer

from jobledger.admin.dead_letters import DeadLetterChoice
from jobledger.cli.errors import UsageError
from jobledger.cli.options import OptionGroup, Queue
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
All = Annotated[bool, typer.Option("--all", metavar="", help="All dead letters.")]


class LetterChoice(OptionGroup, frozen=True):
    """The options that choose dead letters, beside those of `CHOOSES`."""

    queue: Queue = None
    task: Task = None
    dead_reason: Reason = None
    fingerprint: Fingerprint = None
    since: Since = None
    older_than: OlderThan = None


class ActChoice(LetterChoice, frozen=True):
    """The options that choose dead letters for an act."""

    everything: All = False


def choose(
    said: SaidFilter, chosen: LetterChoice, *, ids: Iterable[str] = (), search: str = ""
) -> DeadLetterChoice:
    """Check the options before any request to a server.

    Raises: UsageError, InvalidTokenError.
    """
    for field, value in (("queue", chosen.queue), ("task name", chosen.task)):
        if value is not None:
            check_token(field, value)
    fingerprint = chosen.fingerprint
    if fingerprint is not None and re.fullmatch(r"[0-9a-f]{1,12}", fingerprint) is None:
        raise UsageError(
            f"--fingerprint {fingerprint[:60]!r} is not one: up to 12 hex digits, as `dlq list` shows them"
        )
    return DeadLetterChoice(
        ids=tuple(dict.fromkeys(ids)),
        search=search,
        queue=chosen.queue,
        task=chosen.task,
        reason=chosen.dead_reason,
        fingerprint=fingerprint,
        since=time_of("--since", chosen.since),
        older_than=None if chosen.older_than is None else parse_span("--older-than", chosen.older_than),
        said=said,
        everything=isinstance(chosen, ActChoice) and chosen.everything,
    )
