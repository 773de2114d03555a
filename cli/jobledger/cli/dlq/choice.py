"""Which dead letters a command is about: the options that choose, and the jobs they come to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from jobledger.cli.errors import UsageError
from jobledger.cli.events.events import parse_time
from jobledger.cli.one_job import find_job
from jobledger.cli.output import Output
from jobledger.cli.session import caught_up, projection_path
from jobledger.ledger import Ledger
from jobledger.ledger.model.events import DeadReason
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.model.times import time_text
from jobledger.projections import DeadLetterFilter, DeadLetterRow, Store

_SPAN: Final = re.compile(r"(?P<count>\d{1,9}(?:\.\d{1,6})?)(?P<unit>[smhdw])", flags=re.ASCII)
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Task = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only dead letters of this task.")]
Reason = Annotated[
    DeadReason | None, typer.Option("--dead-reason", help="Only those given up for this reason.")
]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint", metavar="HEX", help="Only those of one error, by its fingerprint or a prefix of it."
    ),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only those dead since this time (UTC).")
]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="SPAN", help="Only those dead for longer, as in 90s, 30m, 12h, 7d."),
]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What the words and options of a command choose; checked, and nothing looked up yet."""

    ids: tuple[str, ...] = ()
    queue: str | None = None
    task: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    since: datetime | None = None
    older_than: timedelta | None = None
    everything: bool = False

    @property
    def names_a_condition(self) -> bool:
        """Whether anything but the queue chooses; the queue may also belong to an id."""
        conditions = (self.task, self.reason, self.fingerprint, self.since, self.older_than)
        return any(each is not None for each in conditions)

    def filter(self, now: datetime) -> DeadLetterFilter:
        """Return the condition for the projection."""
        return DeadLetterFilter(
            queue=self.queue,
            task=self.task,
            reason=self.reason,
            fingerprint=self.fingerprint,
            since=time_text(self.since) if self.since is not None else None,
            until=time_text(now - self.older_than) if self.older_than is not None else None,
        )


def choose(
    *,
    ids: Sequence[str] = (),
    queue: str | None,
    task: str | None,
    reason: str | None,
    fingerprint: str | None,
    since: str | None,
    older_than: str | None,
    everything: bool = False,
) -> Choice:
    """Check the options, before anything is asked of a server.

    Raises: UsageError, InvalidTokenError.
    """
    for field, value in (("queue", queue), ("task name", task)):
        if value is not None:
            check_token(field, value)
    if fingerprint is not None and re.fullmatch(r"[0-9a-f]{1,12}", fingerprint) is None:
        raise UsageError(
            f"--fingerprint {fingerprint[:60]!r} is none: up to 12 hex digits, as `dlq list` shows them"
        )
    return Choice(
        ids=tuple(dict.fromkeys(ids)),
        queue=queue,
        task=task,
        reason=reason,
        fingerprint=fingerprint,
        since=parse_time("--since", since) if since is not None else None,
        older_than=parse_span("--older-than", older_than) if older_than is not None else None,
        everything=everything,
    )


def parse_span(option: str, text: str) -> timedelta:
    """Read a time span such as 90s, 30m, 12h, 7d or 2w.

    Raises: UsageError.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text[:60]!r} is not a time span such as 90s, 30m, 12h, 7d or 2w")
    try:
        return timedelta(seconds=float(found["count"]) * _UNITS_S[found["unit"]])
    except OverflowError as error:
        raise UsageError(f"{option} {text[:60]!r} is longer than anything was kept") from error


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter that an act is about."""

    ref: JobRef
    task: str
    error: str = ""  #: why it died, in a few words


def check_acting(choice: Choice) -> None:
    """Refuse words that choose nothing, or two ways at once: what is done to many is asked for on purpose.

    Raises: UsageError.
    """
    if choice.ids and (choice.names_a_condition or choice.everything):
        raise UsageError("name jobs by their ids or choose them by options, not both")
    if not (choice.ids or choice.names_a_condition or choice.everything or choice.queue):
        raise UsageError(
            "choose dead letters: by id, by --queue, --task, --fingerprint, --dead-reason, --since or --older-than, "
            "or --all of them"
        )


async def find_chosen(
    ledger: Ledger, output: Output, chosen_file: Path | None, choice: Choice, limit: int | None
) -> list[Chosen]:
    """Return what a choice comes to, the oldest first; ids in the order in which they were given.

    Raises: JobNotFoundError, AmbiguousIdError for an id.
    """
    if choice.ids:
        found: list[Chosen] = []
        for job_id in choice.ids:
            handle = await find_job(ledger, output, chosen_file, job_id, choice.queue)
            job = await handle.snapshot()
            error = f"{job.error.type}: {job.error.message}" if job.error is not None else ""
            found.append(Chosen(ref=handle.ref, task=job.task, error=error))
        return found
    path = await projection_path(ledger, chosen_file)
    await caught_up(ledger, path, output)
    condition = choice.filter(ledger.clock.now())
    with Store.open(path) as store:
        count = limit or max(1, store.dead_letter_count(condition))
        rows = store.dead_letters(count, order="oldest", chosen=condition)
    return [
        Chosen(
            ref=JobRef(queue=row.queue, job_id=row.job_id),
            task=row.task,
            error=why(row),
        )
        for row in rows
    ]


def why(row: DeadLetterRow) -> str:
    """Return in a few words why a job is a dead letter."""
    said = f"{row.error_type}: {row.error}" if row.error_type else row.error or ""
    return said if row.reason == "exhausted" else f"{row.reason}: {row.error or said}"
