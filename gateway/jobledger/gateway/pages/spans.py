"""A job's events as the spans and marks of its waterfall. Pure: the states are `evolve`'s."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.gateway.pages.words import style_of, took
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.job import CLOSED_STATES, Job, JobState, evolve
from jobledger.ledger.model.state_words import state_title

#: Shorter waits are not drawn: events of one batch are some microseconds apart, without a wait between them.
_SEEN: Final = timedelta(milliseconds=1)


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A span of time in which a job was in one state."""

    begin: datetime
    end: datetime
    lane: int  #: number of the attempt that runs or comes next, from 1
    runs: bool
    style: str  #: a class that carries the colour
    words: str
    after: bool = False  #: True if it is later than the moment shown


class JobSpans(msgspec.Struct, frozen=True, kw_only=True):
    """The states of a job over time."""

    bars: Sequence[Bar]
    cut: datetime | None = None  #: the moment shown, if it is in the past
    end: datetime  #: end of the axis of time


def drawn(
    events: Sequence[StoredEvent], times: Sequence[datetime], *, now: datetime, shown: int | None
) -> JobSpans:
    """Return the waterfall of one job, from its events (at least one) and their times.

    `shown`: stream sequence of the last event at the past moment shown; None: the present is shown.
    """
    jobs: list[Job] = []
    for stored in events:
        jobs.append(evolve(jobs[-1] if jobs else None, stored.event, stored.stream_sequence))
    last = jobs[-1]
    end = times[-1] if last.is_final else max(now, times[-1])
    bars: list[Bar] = []
    began = 0
    for index, job in enumerate(jobs):
        after = jobs[index + 1] if index + 1 < len(jobs) else None
        if after is not None and _place(after) == _place(job):
            continue  # progress, checkpoints and steps do not end the span
        until = end if after is None else times[index + 1]
        if job.state not in CLOSED_STATES and (
            job.state is JobState.RUNNING or until - times[began] >= _SEEN
        ):
            late = shown is not None and events[began].stream_sequence > shown
            bars.append(_bar(job, last, times[began], until, late=late))
        began = index + 1
    cut = next(
        (at for stored, at in zip(events, times, strict=True) if stored.stream_sequence == shown), None
    )
    return JobSpans(bars=bars, cut=cut, end=end)


def _place(job: Job) -> tuple[JobState, int]:
    return job.state, job.attempts_count


def _bar(job: Job, last: Job, begin: datetime, end: datetime, *, late: bool) -> Bar:
    """Return one bar; an attempt has the colour of its outcome."""
    runs = job.state is JobState.RUNNING
    attempt = last.attempt(job.attempts_count) if runs else None
    ended = "running" if attempt is None else attempt.state
    words = f"attempt {job.attempts_count}: {ended}" if runs else state_title(job.state.value)
    # A waiting job waits for its next attempt; a dead letter has none, and stays in the lane of its last attempt.
    ahead = not runs and job.state is not JobState.DEAD_LETTERED
    return Bar(
        begin=begin,
        end=end,
        lane=max(1, job.attempts_count + ahead),
        runs=runs,
        style=style_of(ended if runs else job.state.value),
        words=f"{words}\n{took((end - begin).total_seconds())}",
        after=late,
    )
