"""The attempts of a folded job, and the newest progress that the running one reported. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from jobledger.ledger.model.events import ErrorInfo, Event

AttemptState = Literal[
    "running", "completed", "failed", "lost", "interrupted", "snoozed", "paused", "cancelled", "dead_lettered"
]
ATTEMPTS_KEPT: Final = 50  #: a job keeps at most this many attempts; of older ones it keeps only their number


class Attempt(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One run of a job."""

    number: int  #: from 1
    worker: str
    epoch: int  #: stream sequence of its `started`: the claim's fencing number
    started_at: datetime
    state: AttemptState = "running"
    finished_at: datetime | None = None
    error: ErrorInfo | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The newest progress that the running attempt reported."""

    done: float
    total: float | None
    note: str


def closed(
    attempts: tuple[Attempt, ...], event: Event, state: AttemptState, *, error: ErrorInfo | None = None
) -> tuple[Attempt, ...]:
    """Return the attempts with the open one closed: it ended with `event`, in `state`."""
    if not attempts or attempts[-1].state != "running":
        return attempts
    ended = msgspec.structs.replace(attempts[-1], state=state, finished_at=event.at, error=error)
    return (*attempts[:-1], ended)
