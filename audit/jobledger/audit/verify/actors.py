"""The rule `actor`: an act of a job in a person's name is recorded as by the one who made that job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jobledger.ledger.model.aggregate import Broken
from jobledger.ledger.model.events import Carried, JobEvent
from jobledger.ledger.model.subjects import ACTS_QUEUE

#: Jobs that act for somebody and are remembered: the newest ones.
_JOBS_MAX: Final = 50_000


class ActorRule:
    """The rule `actor` over the events of a ledger, in their order."""

    def __init__(self) -> None:
        self._by: dict[str, str] = {}  # the maker of each job that acts for somebody

    def job(self, event: JobEvent) -> Iterator[Broken]:
        """Yield what is wrong with an event of a job."""
        if event.queue == ACTS_QUEUE:
            if event.job not in self._by and (by := _maker(event)):
                if len(self._by) >= _JOBS_MAX:
                    del self._by[next(iter(self._by))]
                self._by[event.job] = by
            return
        if event.causation:
            by = self._by.get(event.causation, event.by)
            if by != event.by:
                yield (
                    "actor",
                    f"it says that {event.by} did it, and job {ACTS_QUEUE}/{event.causation} did it for {by}",
                )


def _maker(event: JobEvent) -> str:
    """Return who made a job, by its first event; "" if that was not seen."""
    if isinstance(event, Carried):
        return event.job_state.created_by
    return "" if event.prev else event.by
