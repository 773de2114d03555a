"""The events of the ledger: as a stream that follows it, or as lines for clients that poll."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Annotated, Final

import msgspec

from jobledger.admin.events.choice import chosen_events
from jobledger.gateway.api.one_job import JobAtMoment
from jobledger.gateway.events import sse
from jobledger.gateway.events.feed import FeedEvent, Portion
from jobledger.gateway.events.sse import HEADERS, Shown
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import NDJSON, Answer, Endpoint, Raw, StreamedAnswer
from jobledger.gateway.http.headers import WAIT_MAX_S
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.shares import opened
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.rights.marks import Hidden, hidden_from
from jobledger.ledger.subscriptions.filter import Start, chosen_start


class EventQuery(msgspec.Struct, frozen=True, kw_only=True, rename={"after": "from", "types": "type"}):
    """The choice of events, and where to begin; without a beginning, only new events."""

    types: list[str] = []  #: only events of these types, as `completed`; repeat it
    queue: str | None = None
    task: str | None = None
    job: str | None = None  #: a whole job id
    after: Annotated[int, msgspec.Meta(ge=1)] | None = None  #: begin with this stream sequence; 1: the first
    since: datetime | None = None  #: begin with the first event stored at this time or later, RFC 3339
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100  #: most lines of `application/x-ndjson`
    wait: Annotated[float, msgspec.Meta(ge=0, le=WAIT_MAX_S)] = 0  #: seconds that NDJSON waits for a line


async def list_events(asked: ApiRequest, *, query: EventQuery) -> StreamedAnswer | Raw:
    """Stream events as they are stored (`text/event-stream`), or return some of them as lines (`application/x-ndjson`).

    With `Last-Event-ID` the answer begins after that event, on any gateway: no event is missed or repeated.
    """
    choice = chosen_events(query.types, queue=query.queue, task=query.task, job=query.job)
    start = _start(asked, query)
    feed, shown, hidden = asked.gateway.feed, shown_to(asked), hidden_from(asked.principal)
    portions = feed.portions(choice, start)
    if NDJSON in asked.header("accept"):
        return await _lines(asked, portions, shown, query, hidden)
    parts = sse.sse(feed, portions, shown, hidden=hidden, request_id=asked.request_id)
    return await _streamed(asked, parts)


def shown_to(asked: ApiRequest) -> Shown:
    """Return a check whether the caller may see an event; an event of no job needs the right to see all jobs."""
    principal = asked.principal
    sees_all = principal.may("view", "*", "*")

    def shown(kept: FeedEvent) -> bool:
        message = kept.message
        if isinstance(message, StoredEvent):
            return sees_all or principal.may("view", message.event.queue, message.event.task)
        return sees_all

    return shown


async def _streamed(asked: ApiRequest, parts: AsyncGenerator[bytes, None]) -> StreamedAnswer:
    """Return a stream as an answer; HEAD gets an empty one."""
    if asked.is_head:
        await parts.aclose()
    else:
        parts = await sse.primed(parts)
    return StreamedAnswer(parts=parts, media=sse.MEDIA, headers=HEADERS)


async def stream_job(asked: ApiRequest, held: JobAtMoment) -> StreamedAnswer | Answer:
    """Stream the events of a job until it has ended; answer 204 to a reader that has seen the end, which makes it stop.

    Raises: ProblemError for a past moment, which has no stream, and where too many streams are open.
    """
    if held.then is not None:
        raise ProblemError(
            "BAD_REQUEST", "a stream has no past: leave at and sequence out, or accept application/json"
        )
    last = held.job.last_sequence
    start = _after_last(asked)
    if start is None:
        start = chosen_start(from_sequence=held.history[0].stream_sequence)
    elif held.job.is_final and (start.from_sequence or 0) > last:
        return Answer(status=204)
    feed, choice = asked.gateway.feed, chosen_events(queue=held.job.queue, job=held.job.id)
    view = fold(held.history)

    def is_last(kept: FeedEvent) -> bool:  # an end before the newest event was undone later
        nonlocal view
        if isinstance(kept.message, StoredEvent) and kept.sequence > view.last_sequence:
            view = fold([kept.message], view)
        return kept.sequence >= last and view.job is not None and view.job.is_final

    parts = sse.sse(
        feed,
        feed.portions(choice, start),
        lambda kept: isinstance(kept.message, StoredEvent),
        hidden=hidden_from(asked.principal),
        request_id=asked.request_id,
        is_last=is_last,
    )
    return await _streamed(asked, parts)


def _start(asked: ApiRequest, query: EventQuery) -> Start:
    after_last = _after_last(asked)
    if after_last is not None:
        return after_last
    is_live = query.after is None and query.since is None
    return chosen_start(from_sequence=query.after, since=query.since, live=is_live)


def _after_last(asked: ApiRequest) -> Start | None:
    """Return the start after the reader's `Last-Event-ID`, None without that header."""
    last = asked.last_event_id
    return None if last is None else chosen_start(from_sequence=last + 1)


async def _lines(
    asked: ApiRequest,
    portions: AsyncGenerator[Portion, None],
    shown: Shown,
    query: EventQuery,
    hidden: Hidden,
) -> Raw:
    """Return up to `limit` lines; the next request sends the `Last-Event-ID` of this answer."""
    found: list[FeedEvent] = []
    position, feed = 0, asked.gateway.feed
    feed.require_open()
    waiting = asked.waiting(math.inf) if query.wait else contextlib.nullcontext()
    with opened("streams"), contextlib.suppress(TimeoutError):
        async with waiting, contextlib.aclosing(portions), asyncio.timeout(None) as patience:
            async for events, at in portions:
                position = at
                found += [each for each in events if shown(each)]
                if len(found) >= query.limit or (at >= feed.head and (found or not query.wait)):
                    break
                if at >= feed.head and patience.when() is None:
                    patience.reschedule(asyncio.get_running_loop().time() + query.wait)
    if len(found) > query.limit:
        found = found[: query.limit]
        position = found[-1].sequence
    body = "".join(each.text(hidden) + "\n" for each in found)
    return Raw(
        data=body.encode(),
        media=NDJSON,
        headers={"last-event-id": str(position), "cache-control": "no-store"},
    )


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/v1/events",
        permission="view",
        handler=list_events,
        summary="Stream events as they are stored, or read some of them",
        tag="events",
        query=EventQuery,
        heeds=("Last-Event-ID",),
        gives=sse.MEDIA,
        problems=("BUSY", "JOB_INVALID_INPUT"),
    ),
)
