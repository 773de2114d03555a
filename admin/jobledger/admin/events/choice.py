"""Which events somebody wants to see, of jobs and of everything else in the ledger."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobledger.ledger.model.aggregates import AGGREGATES, event_name
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import EVENT_TYPES, event_type
from jobledger.ledger.model.subjects import Names, aggregate_of
from jobledger.ledger.subscriptions.filter import EventFilter, chosen_filter


class EventChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are wanted; made by `chosen_events`."""

    jobs: EventFilter
    with_jobs: bool | None  #: None: everything there is
    others: tuple[str, ...]  #: types of other aggregates' events

    def subjects(self, names: Names) -> tuple[str, ...] | None:
        """Return what the server filters by; None for everything."""
        if self.with_jobs is None:
            return None
        others = (
            aggregate.of_type(names, kind)
            for aggregate in AGGREGATES.values()
            for kind in aggregate.types
            if event_name(aggregate.name, kind) in self.others
        )
        return (*(self.jobs.subjects(names) if self.with_jobs else ()), *others)

    def fits(self, message: Message) -> bool:
        """Return whether an event that the server let through is wanted."""
        return not isinstance(message, StoredEvent) or self.jobs.fits(message)

    def wants(self, message: Message) -> bool:
        """Return whether an event is wanted, for events that no server has filtered by their subjects."""
        if self.with_jobs is None:
            return True
        if not isinstance(message, StoredEvent):
            return not isinstance(message, Unreadable) and name_of(message) in self.others
        event, jobs = message.event, self.jobs
        return (
            self.with_jobs
            and (not jobs.types or event_type(event) in jobs.types)
            and jobs.queue in {None, event.queue}
            and jobs.job in {None, event.job}
            and jobs.fits(message)
        )


def name_of(message: Message) -> str:
    """Return the name of an event's type among those of all aggregates; `unreadable` for a message that is no event."""
    if isinstance(message, StoredEvent):
        return event_type(message.event)
    if isinstance(message, Unreadable):
        return "unreadable"
    aggregate = AGGREGATES[aggregate_of(message.subject)]
    return event_name(aggregate.name, aggregate.type_of(aggregate.decode(message)))


def chosen_events(
    types: Sequence[str] = (), *, queue: str | None = None, task: str | None = None, job: str | None = None
) -> EventChoice:
    """Check a choice of events. Raises: InvalidInputError, InvalidTokenError."""
    wanted = frozenset(types)
    known = [
        event_name(aggregate.name, kind) for aggregate in AGGREGATES.values() for kind in aggregate.types
    ]
    unknown = sorted(wanted - set(known))
    if unknown:
        raise InvalidInputError(f"there is no event type {unknown[0][:60]!r}; the types: {', '.join(known)}")
    others = sorted(wanted - set(EVENT_TYPES))
    named = [name for name, value in (("queue", queue), ("task", task), ("job", job)) if value is not None]
    if others and named:
        raise InvalidInputError(
            f"{named[0]} chooses events of jobs, and {others[0]} is not one of them: leave one of the two out"
        )
    of_jobs = sorted(wanted - set(others))
    jobs = chosen_filter(types=of_jobs, queue=queue, task=task, job=job)
    return EventChoice(
        jobs=jobs, with_jobs=bool(of_jobs or named) if wanted or named else None, others=tuple(others)
    )
