"""Counts of what was read, so that other figures of the same ledger can be compared with them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from jobledger.ledger.model.events import EVENT_CLASSES, JobEvent, Queued, Started
from jobledger.ledger.model.job import Job, JobState

_TYPES: Final = {cls: str(cls.__struct_config__.tag) for cls in EVENT_CLASSES}


class Tally:
    """Counts that only grow, but for `closed`."""

    def __init__(self) -> None:
        self.events = 0  #: events of jobs and of all else
        self.redacted = 0  #: events whose values were taken out of the archive
        self.types: dict[type[JobEvent], int] = dict.fromkeys(EVENT_CLASSES, 0)  #: events of jobs
        self.causes: Counter[str] = Counter()  #: number of `queued` events by cause
        self.lost = 0  #: attempts that were taken over or given up without an outcome
        self.closed: Counter[JobState | None] = Counter()  #: jobs that are over now, by state

    @property
    def attempts(self) -> int:
        """How many `started` events there were."""
        return self.types[Started]

    def count(self, event: JobEvent) -> None:
        """Count an event of a job."""
        self.types[type(event)] += 1
        if type(event) is Queued:
            self.causes[event.cause] += 1

    def count_lost(self, before: Job, after: Job) -> None:
        """Count the attempt that was running before an event and is lost after it."""
        newest = after.attempt(before.attempts_count)
        self.lost += newest is not None and newest.state == "lost"

    def by_type(self) -> dict[str, int]:
        """Return how many events of jobs there were, by type; types without any are left out."""
        return {_TYPES[cls]: count for cls, count in self.types.items() if count}

    def by_cause(self) -> dict[str, int]:
        """Return how many dispatches there were, by cause."""
        return dict(self.causes)
