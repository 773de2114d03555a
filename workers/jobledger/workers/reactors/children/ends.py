"""The facts that the reactor keeps of an event: the parent of an ended child, or a run whose children follow it."""

from __future__ import annotations

from typing import Literal

import msgspec

from jobledger.ledger.model.events import Cancelled, Completed, DeadLettered, Discarded, JobEvent, Paused
from jobledger.ledger.model.runs.orders import RUN_BATCH, WITH_ITS_RUN, Member
from jobledger.ledger.runs.ends import RunEnd, end_of

_ENDS = (Completed, Cancelled, DeadLettered, Discarded)


#: The end of a child. A dead letter may be requeued: the order of its step decides whether it counts as an end.
EndState = Literal["completed", "dead", "failed"]


class News(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The facts about children in one event; the event itself, which may carry a large result, is not kept."""

    queue: str  #: the queue of the job that the event is about
    job: str
    member: Member | None = None  #: the parent of a child that has ended
    end_as: EndState = "completed"
    has_children: bool = False  #: the job is a run that ended or paused, which its open children follow
    has_followed: bool = False  #: True: it paused because its run was paused, and the run may go on by now
    end: RunEnd | None = None  #: its end, if a callback has to be enqueued
    is_batch: bool = False  #: it is a batch that was ended, perhaps before all its jobs were added


def news_in(event: JobEvent) -> News | None:
    """Return the facts about children in an event, None without any: most jobs are neither a child nor a run."""
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
