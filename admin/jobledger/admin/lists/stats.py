"""How well and how fast jobs went in a span of time: by queue, by task, and minute by minute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import anyio.to_thread
import msgspec

from jobledger.admin.rows import AnswerPosition, View
from jobledger.ledger.model.subjects import INNER_QUEUES
from jobledger.projections.filters import Term, of_fleet, visible
from jobledger.projections.statistics.history import QueueHistory, happened
from jobledger.projections.statistics.rates import Rates, rates


class _OfQueue(Protocol):
    @property
    def queue(self) -> str: ...


R = TypeVar("R", bound=_OfQueue)


class SpanRates(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to jobs between two moments, by the server's clock."""

    since: datetime
    until: datetime
    step_s: int
    queues: list[Rates]
    tasks: list[Rates]
    spans: list[
        QueueHistory
    ]  #: rates by span of `step_s` seconds and queue, the oldest first; spans in which nothing happened are left out
    position: AnswerPosition


def of_fleet_rows(rows: Sequence[R], queue: str | None, task: str | None) -> list[R]:
    """Return the rows without those of the ledger's own queues, unless a queue or a task is named."""
    return [row for row in rows if queue is not None or task is not None or row.queue not in INNER_QUEUES]


async def stats(
    view: View,
    since: datetime,
    until: datetime,
    *,
    step_s: int = 60,
    queue: str | None = None,
    task: str | None = None,
    visible_queues: Sequence[str] = (),
    visible_tasks: Sequence[str] = (),
) -> SpanRates:
    """Return what happened in the minutes from the one of `since` to the one before `until`.

    The ledger's own queues are left out if neither queue nor task is named. `visible_queues`, `visible_tasks`: as in
    `JobFilter`. Reads in a thread.

    Raises: ProjectionConfigError for a step that is no multiple of a minute; ProjectionError.
    """
    given = {"queue": queue, "task": task}
    terms = [Term(name, f"{name} = ?", (value,)) for name, value in given.items() if value is not None]
    terms += of_fleet(queue, task)
    terms += visible(tuple(visible_queues), tuple(visible_tasks))

    def read() -> SpanRates:
        select = view.store.select
        with view.store.one_moment():
            return SpanRates(
                since=since,
                until=until,
                step_s=step_s,
                queues=rates(select, "queue", since, until, terms),
                tasks=rates(select, "task", since, until, terms),
                spans=happened(select, since, until, step_s=step_s, terms=terms),
                position=view.position(),
            )

    return await anyio.to_thread.run_sync(read)
