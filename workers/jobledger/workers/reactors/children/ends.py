"""The facts that the reactor keeps of an event: whose child ended or paused, or which run's children follow it."""

from __future__ import annotations

from typing import Literal

import msgspec

from jobledger.ledger.model.events import Cancelled, Completed, DeadLettered, Discarded, JobEvent, Paused
from jobledger.ledger.model.runs.orders import RUN_BATCH, WITH_ITS_RUN, Member
from jobledger.ledger.runs.ends import RunEnd, end_of

_ENDS = (Completed, Cancelled, DeadLettered, Discarded)


#: How a child ended. A dead letter may be requeued: the order of its step says whether it counts as an end.
EndState = Literal["completed", "dead", "failed"]


class News(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one event says of children; the event itself may carry a large result and is not kept."""

    queue: str  #: the queue of the job that the event is about
    job: str
    member: Member | None = None  #: the parent of a child that has ended
    end_as: EndState = "completed"
    has_children: bool = False  #: the job is a run that ended or paused, and its open children follow it
    has_followed: bool = False  #: it paused because its run was paused, which may go on by now
    end: RunEnd | None = None  #: how it ended, if a callback job is to be enqueued
    is_batch: bool = False  #: it is a batch that was ended, perhaps before its client had added all its jobs


def news_in(event: JobEvent) -> News | None:
    """Return what an event says of children, None for nothing: most jobs are nobody's child and no run."""
    has_children = isinstance(event, (*_ENDS, Paused)) and event.open_children > 0
    if isinstance(event, Paused):
        has_followed = event.reason.startswith(WITH_ITS_RUN)
        if not (has_children or has_followed):
            return None
        return News(queue=event.queue, job=event.job, has_children=has_children, has_followed=has_followed)
    if not isinstance(event, _ENDS):
        return None
    is_batch = event.task == RUN_BATCH and not isinstance(event, Completed)
    end = end_of(event) if isinstance(event, Cancelled | DeadLettered) and event.calls_back else None
    if not (has_children or is_batch or end is not None or event.member is not None):
        return None
    return News(
        queue=event.queue,
        job=event.job,
        member=event.member,
        end_as=_end_as(event),
        has_children=has_children,
        end=end,
        is_batch=is_batch,
    )


def _end_as(event: Completed | Cancelled | DeadLettered | Discarded) -> EndState:
    if isinstance(event, Completed):
        return "completed"
    return "dead" if isinstance(event, DeadLettered) else "failed"


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(News).decode
