"""Queues: their jobs, their pauses, and figures of their past."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Annotated, Final

import anyio.to_thread
import msgspec

from jobledger.admin.lists.stats import SpanRates, of_fleet_rows, stats
from jobledger.admin.objects.fleet import (
    PauseShown,
    QueueShown,
    pause_shown,
    queue_shown,
)
from jobledger.admin.queues import by_priority, drained, listed, together
from jobledger.admin.rows import AnswerPosition
from jobledger.gateway.api.pagination import READ, looking
from jobledger.gateway.api.parameters import Look, WithReason, aware
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, endpoint_maker
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.visibility import queue_for, terms_for
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.model.subjects import check_token
from jobledger.projections import BucketRow, FailureRow, TotalsRow
from jobledger.projections.filters import of_fleet
from jobledger.projections.queries.demand import CONCURRENCY, TARGET_S, Demand, read_demand

_BUCKETS_MAX: Final = 10_000
_SPANS_MAX: Final = 1_500


class QueueQuery(Look, frozen=True, kw_only=True):
    """The form of the list of queues."""

    by_priority: bool = False  #: an item for each priority of a queue


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """The queues that ever had a job or are paused, by name."""

    items: list[QueueShown]
    position: AnswerPosition


class Pause(WithReason, frozen=True, kw_only=True):
    """A pause of a queue."""

    until: datetime | None = None  #: end of the pause; left out: until it is resumed
    interrupt: bool = False  #: also give back attempts that run; these do not count as tries


class DrainState(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a paused queue that still runs."""

    queue: str
    pause: PauseShown | None
    running: int  #: jobs on workers that live
    workers: int  #: number of these workers
    lost: int  #: jobs of workers that are gone; others take them over when the queue is resumed


class StatsQuery(Look, frozen=True, kw_only=True):
    """A filter of the jobs that are counted."""

    queue: str | None = None
    task: str | None = None


class BucketsQuery(StatsQuery, frozen=True, kw_only=True):
    """A filter of the jobs that are counted, and a range of time."""

    since: datetime | None = None  #: begin with the span that contains this time
    until: datetime | None = None  #: end before this
    step_s: Annotated[int, msgspec.Meta(ge=60, multiple_of=60)] = 60  #: length of a span: whole minutes
    limit: Annotated[int, msgspec.Meta(ge=1, le=_BUCKETS_MAX)] = 1_000


class RatesQuery(StatsQuery, frozen=True, kw_only=True):
    """A filter of the jobs that are counted, and a range of time."""

    since: datetime | None = None  #: begin with the minute of this time; left out: an hour before `until`
    until: datetime | None = None  #: end before this time; left out: with this minute
    step_s: Annotated[int, msgspec.Meta(ge=60, multiple_of=60)] = 60  #: length of a span: whole minutes


class WantedQuery(Look, frozen=True, kw_only=True):
    """The size of the workers, and the time limit for waiting jobs."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = (
        CONCURRENCY  #: attempts that one of them runs at once
    )
    #: Seconds within which workers are to take the waiting jobs.
    target_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = TARGET_S


class WantedWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """The number of workers that a queue needs, and the figures that it follows from."""

    queue: str
    workers: int
    slots: float  #: attempts that have to run at once
    waiting: int  #: jobs that a worker could take
    running: int
    enqueued_per_s: float  #: jobs enqueued a second, in this minute and the one before
    attempt_s: (
        float | None
    )  #: how long an attempt takes, on average of the last ten minutes; null: none has ended yet
    paused: bool
    position: AnswerPosition


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the beginning of the projection, by queue and task."""

    totals: list[TotalsRow]
    failures: list[FailureRow]  #: the most frequent failures of each task first
    position: AnswerPosition


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Counts for each span of time, the oldest first; spans without events are left out."""

    items: list[BucketRow]
    next_since: datetime | None  #: `since` of the next request; null: there is no more
    position: AnswerPosition


async def list_queues(asked: ApiRequest, *, query: QueueQuery) -> Queues:
    """List the queues that the asker may see."""
    async with looking(asked, query) as (view, place):
        rows, paused = listed(view.store, None, view.now)
    seen = [row for row in rows if asked.principal.may("view", row.queue)]
    lines = by_priority(seen) if query.by_priority else together(seen)
    return Queues(
        items=[queue_for(asked.principal, queue_shown(row, paused)) for row in lines], position=place
    )


async def show_queue(asked: ApiRequest, queue: str, *, query: Look) -> QueueShown:
    """Show one queue."""
    asked.principal.require("view", check_token("queue", queue))
    async with looking(asked, query) as (view, _):
        rows, paused = listed(view.store, queue, view.now)
    if not rows:
        raise ProblemError(
            "NOT_FOUND", f"queue {queue} never had a job and is not paused: GET /v1/queues lists those"
        )
    return queue_for(asked.principal, queue_shown(together(rows)[0], paused))


async def show_wanted(asked: ApiRequest, queue: str, *, query: WantedQuery) -> WantedWorkers:
    """Show how many workers a queue needs at this moment, for programs that start and stop workers."""
    asked.principal.require("view", check_token("queue", queue))
    asked.principal.require_all_tasks()
    async with looking(asked, query) as (view, place):
        found = await anyio.to_thread.run_sync(read_demand, view.store, (queue,), view.now)
    demand = found.get(queue, Demand())
    return WantedWorkers(
        queue=queue,
        workers=demand.workers(concurrency=query.concurrency, target_s=query.target_s),
        slots=round(demand.slots(query.target_s), 3),
        waiting=demand.waiting,
        running=demand.running,
        enqueued_per_s=round(demand.enqueued_per_s, 3),
        attempt_s=demand.attempt_s,
        paused=demand.is_paused,
        position=place,
    )


async def _paused(asked: ApiRequest, queue: str, body: Pause) -> QueueState:
    asked.principal.require("manage", check_token("queue", queue))
    return await asked.gateway.ledger.pause_queue(
        queue,
        until=aware("until", body.until),
        reason=body.reason,
        interrupt=body.interrupt,
        by=asked.principal.name,
    )


async def drain_queue(asked: ApiRequest, queue: str, *, body: Pause) -> Answer:
    """Pause the queue unless it is paused, and look whether a job of it runs; `Prefer: wait=N` waits until none does."""
    asked.principal.require("manage", check_token("queue", queue))
    asked.principal.require_all_tasks()
    ledger = asked.gateway.ledger
    state = await ledger.queue_state(queue)
    if body != Pause() or not state.is_paused(ledger.clock.now()):
        state = await _paused(asked, queue, body)
    left = await drained(asked.gateway.rows, queue, limit_s=0.0, on_change=lambda _running: None)
    if left.jobs and asked.wait_s:
        async with asked.waiting(math.inf):
            left = await drained(
                asked.gateway.rows, queue, limit_s=asked.wait_s, on_change=lambda _running: None
            )
    value = DrainState(
        queue=queue, pause=pause_shown(state), running=left.jobs, workers=left.workers, lost=left.lost
    )
    return Answer(value=value, status=202 if left.jobs else 200)


async def show_stats(asked: ApiRequest, *, query: StatsQuery) -> Stats:
    """Show counts of what happened to jobs, by queue and task."""
    async with looking(asked, query) as (view, place):
        totals = view.store.totals(queue=query.queue, task=query.task)
        failures = view.store.failures(queue=query.queue, task=query.task)
    may, named = asked.principal.may, (query.queue, query.task)
    return Stats(
        totals=[row for row in of_fleet_rows(totals, *named) if may("view", row.queue, row.task)],
        failures=[row for row in of_fleet_rows(failures, *named) if may("view", row.queue, row.task)],
        position=place,
    )


async def show_rates(asked: ApiRequest, *, query: RatesQuery) -> SpanRates:
    """Show success rates, and how long jobs waited and ran: by queue and by task, and what happened span by span."""
    async with looking(asked, query) as (view, _):
        until = aware("until", query.until) or view.now + timedelta(minutes=1)
        since = aware("since", query.since) or until - timedelta(hours=1)
        if (until - since).total_seconds() / query.step_s > _SPANS_MAX:
            raise ProblemError(
                "BAD_REQUEST", f"this asks for more than {_SPANS_MAX} spans: give a larger step_s"
            )
        return await stats(
            view,
            since,
            until,
            step_s=query.step_s,
            queue=query.queue,
            task=query.task,
            visible_queues=asked.principal.queues,
            visible_tasks=asked.principal.tasks,
        )


async def list_buckets(asked: ApiRequest, *, query: BucketsQuery) -> Buckets:
    """List counts for each span of time, by queue and task."""
    async with looking(asked, query) as (view, place):
        rows = view.store.buckets(
            aware("since", query.since),
            aware("until", query.until),
            queue=query.queue,
            task=query.task,
            step_s=query.step_s,
            limit=query.limit,
            terms=[*of_fleet(query.queue, query.task), *terms_for(asked.principal)],
        )
    more = None
    if len(rows) == query.limit:  # the last span may lack rows, so the next page begins with it
        whole = [row for row in rows if row.begins_at != rows[-1].begins_at]
        if not whole:
            raise ProblemError("BAD_REQUEST", f"one span has {query.limit} rows or more: give a larger limit")
        rows, more = whole, datetime.fromisoformat(rows[-1].begins_at)
    return Buckets(items=rows, next_since=more, position=place)


_endpoint: Final = endpoint_maker("queues", permission="view", problems=READ)

_DRAIN: Final = {"permission": "manage", "problems": ("LEDGER_FULL", "LEDGER_BUSY"), "also": (202,)}

ENDPOINTS: Final = (
    _endpoint("GET", "/v1/queues", list_queues, "List the queues", Queues, query=QueueQuery),
    _endpoint(
        "GET",
        "/v1/queues/{queue}",
        show_queue,
        "Show one queue",
        QueueShown,
        query=Look,
        problems=(*READ, "NOT_FOUND"),
    ),
    _endpoint(
        "GET",
        "/v1/queues/{queue}/wanted",
        show_wanted,
        "Show how many workers a queue needs",
        WantedWorkers,
        query=WantedQuery,
    ),
    _endpoint(
        "POST",
        "/v1/queues/{queue}/drain",
        drain_queue,
        "Pause a queue and wait until nothing of it runs",
        DrainState,
        body=Pause,
        heeds=("Prefer",),
        **_DRAIN,
    ),
    _endpoint(
        "GET",
        "/v1/stats",
        show_stats,
        "Show what happened, by queue and task",
        Stats,
        query=StatsQuery,
        tag="stats",
    ),
    _endpoint(
        "GET",
        "/v1/stats/rates",
        show_rates,
        "Show success rates and how long jobs took",
        SpanRates,
        query=RatesQuery,
        tag="stats",
    ),
    _endpoint(
        "GET",
        "/v1/stats/buckets",
        list_buckets,
        "List what happened in each span of time",
        Buckets,
        query=BucketsQuery,
        tag="stats",
    ),
)
