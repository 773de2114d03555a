"""Queues as lines of a table: numbers of jobs, and how fast they are worked off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from jobledger.gateway.pages.charts.plot import spark
from jobledger.ledger.model.job import LATER_STATES
from jobledger.ledger.model.subjects import is_own_queue
from jobledger.projections import QueueRow
from jobledger.projections.statistics.history import QueueHappened

LATELY_S: Final = 300  #: rates are of this newest time, in seconds


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """One queue."""

    queue: str
    counts: dict[str, int | None]  #: None, here and below, for a viewer bound to tasks
    later: int | None  #: jobs that wait for their time, their limits, a step or a person
    waits_s: float | None  #: how long the oldest one has waited for a worker
    rate: float  #: jobs completed a minute
    wait95_s: float | None
    run50_s: float | None
    failing: float | None  #: share of attempts that failed
    trend: Markup
    paused: bool


def queue_line(
    row: QueueRow, lately: Sequence[QueueHappened], now: datetime, trend: Sequence[float], *, paused: bool
) -> QueueLine:
    """Return the line of one queue; `trend`: jobs completed, span by span."""
    found = next((each for each in lately if each.queue == row.queue), None)
    oldest = None if row.oldest_waiting is None else datetime.fromisoformat(row.oldest_waiting)
    ended = 0 if found is None else found.completed + found.failed
    return QueueLine(
        queue=row.queue,
        counts=dict(row.counts),
        later=sum(row.counts[state] for state in LATER_STATES),
        waits_s=None if oldest is None else max(0.0, (now - oldest).total_seconds()),
        rate=0.0 if found is None else found.completed * 60 / LATELY_S,
        wait95_s=None if found is None else found.wait.quantile_s(0.95),
        run50_s=None if found is None else found.run.quantile_s(0.5),
        failing=None if found is None or not ended else found.failed / ended,
        trend=spark(trend, style="k0"),
        paused=paused,
    )


def uncounted(line: QueueLine) -> QueueLine:
    """Return a line without the figures that include all tasks of its queue."""
    return replace(line, counts=dict.fromkeys(line.counts), later=None, waits_s=None)


def of_users(queues: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    """Return how many jobs are in each state, without the ledger's own."""
    found: Counter[str] = Counter()
    for queue, counts in queues.items():
        if not is_own_queue(queue):
            found.update(counts)
    return found
