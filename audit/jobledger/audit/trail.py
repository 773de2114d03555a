"""The trail of one job: for each event who did what, how long after the one before, and what the job waits for then.

Pure. `job.evolve` gives the state between the events, `clocks` decides whose times are shown, and `trail_words` has the
words of an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from jobledger.audit.clocks import Clocks, clocks_of
from jobledger.audit.trail_words import count, happened, span, waits_for
from jobledger.audit.verify.payloads import NO_STATES, States
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import PayloadState
from jobledger.ledger.model.events import (
    CancelRequested,
    Carried,
    DeadLettered,
    ErrorInfo,
    Failed,
    Fenced,
    JobEvent,
    Queued,
    Started,
    event_type,
)
from jobledger.ledger.model.job import PENDING_STATES, Job, JobState, evolve
from jobledger.ledger.model.lifecycle import references_of
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.ledger.model.times import as_utc


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt whose worker recorded no end, as the event shows that took the job from it."""

    attempt: int
    worker: str
    silent_s: float  #: since the worker's last event of this job; its lease was renewed outside the ledger


class LargeValue(msgspec.Struct, frozen=True, kw_only=True):
    """A large input, checkpoint or result that an event refers to."""

    sha256: str
    size_bytes: int
    state: PayloadState | None  #: None when it was not read

    def text(self) -> str:
        """Return what became of it, for a person."""
        is_what = {None: "was not read", "stored": "is stored", "gone": "is gone", "differs": "differs"}
        return f"its large value ({self.size_bytes:,} bytes) {is_what[self.state]}"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the trail."""

    stream_sequence: int
    at: datetime  #: UTC; by the clock that the trail names
    since_s: float | None  #: time since the event before it; None for the first
    event: str  #: its type
    by: str  #: who appended it: a worker, an application, or an operator
    what: str  #: what happened, in words
    attempt: int | None = None  #: the attempt it is about
    worker: str | None = None  #: who runs or ran that attempt
    error: ErrorInfo | None = None
    lost: Lost | None = None
    waits_for: str | None = None  #: what the job waits for from here on; None when it runs or is over
    waited_s: float | None = None  #: length of the wait that this event ended
    waited_for: str | None = None  #: what the job waited for until then
    large_values: tuple[LargeValue, ...] = ()

    def text(self) -> str:
        """Return the event in words, without its time."""
        by = "" if self.by == self.worker else f", by {self.by}"
        lost = ""
        if self.lost is not None:
            lost = (
                f"; attempt {self.lost.attempt} is lost: worker {self.lost.worker} "
                f"had recorded nothing for {span(self.lost.silent_s)}"
            )
        waits = f"; waits for {self.waits_for}" if self.waits_for else ""
        values = "".join(f"; {each.text()}" for each in self.large_values)
        return f"{self.what}{by}{lost}{values}{waits}"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a trail; no time counts any more once the job is over."""

    state: str
    events: int
    attempts: int
    attempts_lost: int
    total_s: float
    waiting_s: float  #: time of waits for a worker or for a moment
    running_s: float  #: time in which some attempt held the job, alive or not
    dead_s: float  #: time as a dead letter until a person acted; without an act it does not count
    carried_through: int = (
        0  #: stream sequence up to which the sums come from a `carried` event; 0 without one
    )

    def text(self) -> str:
        """Return the summary as one line."""
        lost = f" ({self.attempts_lost} lost)" if self.attempts_lost else ""
        dead = f", dead letter {span(self.dead_s)}" if self.dead_s else ""
        return (
            f"{self.state.replace('_', ' ')} after {span(self.total_s)}: waiting {span(self.waiting_s)}, "
            f"running {span(self.running_s)}{dead}, {count(self.attempts, 'attempt')}{lost}{self._carried()}"
        )

    def _carried(self) -> str:
        if not self.carried_through:
            return ""
        return f"; what happened up to stream sequence {self.carried_through:,} is as `carried` sums it up"


class Trail(msgspec.Struct, frozen=True, kw_only=True):
    """A job's events in words, and their summary."""

    lines: tuple[Line, ...]
    summary: Summary
    clocks: Clocks


def trail_of(
    events: Sequence[StoredEvent], *, now: datetime | None = None, states: States = NO_STATES
) -> Trail:
    """Return the trail of one job's events, all of them in stream order; at least one.

    With `now` the summary of a job that waits or runs counts up to then; without, up to its newest event.
    `states` says what became of the large values that the events refer to.
    """
    clocks, teller = clocks_of(events), _Teller(states)
    for stored, at in zip(events, clocks.times, strict=True):
        teller.tell(stored, at)
    return Trail(lines=tuple(teller.lines), summary=teller.end(now), clocks=clocks)


def lines_of_chain(messages: Sequence[Message], clocks: Clocks) -> tuple[Line, ...]:
    """Return the trail of a chain of any aggregate but jobs: all its messages in stream order; may be empty.

    Raises: UnknownEventError, MalformedEventError.
    """
    lines: list[Line] = []
    for message, at in zip(messages, clocks.times, strict=True):
        aggregate = AGGREGATES[aggregate_of(message.subject)]
        event = aggregate.decode(message)
        kind, said = aggregate.type_of(event), aggregate.words(event)
        lines.append(
            Line(
                stream_sequence=message.stream_sequence,
                at=at,
                since_s=_between(lines[-1].at, at) if lines else None,
                event=kind,
                by=event.by,
                what=f"{kind}: {said}" if said else kind,
            )
        )
    return tuple(lines)


class _Teller:
    """Goes through the events and keeps what the next line needs of those before."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._job: Job | None = None
        self.lines: list[Line] = []
        self._carried_through = 0
        self._heard_at: datetime | None = None  # the newest event of the worker that holds the claim
        self._wait: tuple[datetime, str] | None = None  # since when the job waits, and for what
        self._waiting_s = self._running_s = self._dead_s = 0.0

    def tell(self, stored: StoredEvent, at: datetime) -> None:
        before, event = self._job, stored.event
        after = self._job = evolve(before, event, stored.stream_sequence)
        since_s = _between(self.lines[-1].at, at) if self.lines else None
        if before is not None:
            self._count(before, since_s or 0.0)
        moved = before is None or _place(before) != _place(after)
        waits = waits_for(after, event) if moved or isinstance(event, CancelRequested) else None
        waited = self._end_wait(at) if moved else None
        self.lines.append(
            Line(
                stream_sequence=stored.stream_sequence,
                at=at,
                since_s=since_s,
                event=event_type(event),
                by=event.by,
                what=happened(before, event, at),
                attempt=_attempt(before, event),
                worker=_worker(before, event),
                error=event.error if isinstance(event, Failed | DeadLettered) else None,
                # The state before it may come from half a chain.
                lost=None if isinstance(event, Carried) else self._lost(before, after, at),
                waits_for=waits,
                waited_s=None if waited is None else waited[0],
                waited_for=None if waited is None else waited[1],
                large_values=tuple(
                    LargeValue(
                        sha256=each.sha256, size_bytes=each.size_bytes, state=self._states.get(each.sha256)
                    )
                    for _, each in references_of(event)
                ),
            )
        )
        if waits is not None:
            self._wait = (at, waits)
        if before is None and isinstance(event, Carried):
            self._count_carried(after, event, at)
        holder = after.running_attempt
        if holder is not None and (event.by == holder.worker or isinstance(event, Started)):
            self._heard_at = at

    def _end_wait(self, at: datetime) -> tuple[float, str] | None:
        if self._wait is None:
            return None
        (begun_at, what), self._wait = self._wait, None
        return _between(begun_at, at), what

    def _lost(self, before: Job | None, after: Job, at: datetime) -> Lost | None:
        """Tell of the attempt that this event found lost, if it did."""
        running = None if before is None else before.running_attempt
        if before is None or running is None:
            return None
        found = after.attempt(before.attempts_count)
        if found is None or found.state != "lost":
            return None
        silent_s = _between(self._heard_at or running.started_at, at)
        return Lost(attempt=running.number, worker=running.worker, silent_s=silent_s)

    def _count_carried(self, job: Job, event: Carried, at: datetime) -> None:
        """Count the time before a `carried` event that is the first of the history, by its state of the job.

        The time as a dead letter before a person acted counts as waiting, since the state does not record it.
        """
        self._carried_through = event.job_state.last_sequence
        ends = [*(each.started_at for each in job.attempts[1:]), at]
        self._running_s = sum(
            _between(each.started_at, each.finished_at or end)
            for each, end in zip(job.attempts, ends, strict=False)
        )
        if job.state is JobState.DEAD_LETTERED and job.finished_at is not None:
            self._dead_s = _between(job.finished_at, at)
        self._waiting_s = max(0.0, _between(job.created_at, at) - self._running_s - self._dead_s)
        if self._wait is not None:  # the wait began no later than the job's newest event
            self._wait = (min(at, as_utc(event.job_state.updated_at)), self._wait[1])
        self._heard_at = event.job_state.updated_at

    def _count(self, state: Job, seconds: float) -> None:
        if state.state is JobState.RUNNING:
            self._running_s += seconds
        elif state.state in PENDING_STATES:
            self._waiting_s += seconds
        elif state.state is JobState.DEAD_LETTERED:
            self._dead_s += seconds

    def end(self, now: datetime | None) -> Summary:
        job = self._job
        assert job is not None, "a trail has at least one event"
        if now is not None and not job.is_final:
            self._count(job, _between(self.lines[-1].at, now))
        return Summary(
            state=job.state.value,
            events=len(self.lines),
            attempts=job.attempts_count,
            attempts_lost=sum(attempt.state == "lost" for attempt in job.attempts),
            total_s=self._waiting_s + self._running_s + self._dead_s,
            waiting_s=self._waiting_s,
            running_s=self._running_s,
            dead_s=self._dead_s,
            carried_through=self._carried_through,
        )


def _between(begin: datetime, end: datetime) -> float:
    """Return the seconds between two times; a clock that was set back does not make them negative."""
    return max(0.0, (as_utc(end) - as_utc(begin)).total_seconds())


def _place(job: Job) -> tuple[JobState, int, int]:
    """Return a value that changes whenever a job begins or ends a wait or an attempt, but not with a remark."""
    return job.state, job.wait_sequence, job.claim_epoch


def _attempt(before: Job | None, event: JobEvent) -> int | None:
    number: int | None = getattr(event, "attempt", None)
    if number is not None:  # for a `queued`: that of the next attempt
        return number
    running = None if before is None else before.running_attempt
    return None if running is None else running.number


def _worker(before: Job | None, event: JobEvent) -> str | None:
    if isinstance(event, Started | Fenced):
        return event.worker
    if isinstance(event, Queued):  # the event is about the next attempt
        return None
    running = None if before is None else before.running_attempt
    return None if running is None else running.worker
