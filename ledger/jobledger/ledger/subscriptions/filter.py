"""Which job events a reader wants, and where it begins: checked, and put into the subjects that the server filters by.

Pure. The server filters by type, queue and job, which are parts of a subject; a task is told from the event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Final, TypedDict

import msgspec

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import EVENT_TYPES
from jobledger.ledger.model.subjects import Names, check_token, leaves_of

_SEQUENCE_MAX: Final = 2**63 - 1
_SHOWN_MAX: Final = 60
#: The server counts nanoseconds since 1970 in 64 bits.
_TIME_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_END: Final = datetime(2262, 1, 1, tzinfo=UTC)


class Selection(TypedDict, total=False):
    """Which events a reader gets, and from where on; all of them from the first one unless told otherwise."""

    types: Sequence[str]  #: of these types; () is all
    queue: str | None
    task: str | None
    job: str | None  #: a whole job id
    from_sequence: int | None  #: begin at this stream sequence
    since: datetime | None  #: begin with what the server stored from this time on
    live: bool  #: begin with what is stored from now on
    follow: bool  #: go on with new events for ever (the default), or end where the ledger ends now


class EventFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which job events are wanted; made by `chosen`."""

    types: tuple[str, ...] = ()  #: sorted, each once; () is all
    queue: str | None = None
    task: str | None = None
    job: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether every job event is wanted."""
        return self == EventFilter()

    def subjects(self, names: Names) -> tuple[str, ...]:
        """Return the filters for the server; none overlaps another, as it demands."""
        jobs = f"{names.jobs_root}{self.queue or '*'}.{self.job or '*'}"
        if self.types:
            return tuple(f"{jobs}.{leaf}" for kind in self.types for leaf in leaves_of(kind))
        return (f"{jobs}.>" if self.queue or self.job else f"{names.jobs_root}>",)

    def fits(self, stored: StoredEvent) -> bool:
        """Return whether an event that the server let through is wanted."""
        return self.task is None or stored.event.task == self.task

    def words(self) -> str:
        """Return the filter for a person: `types completed, failed; queue billing`; `all` where there is none."""
        parts = {"types": ", ".join(self.types), "queue": self.queue, "task": self.task, "job": self.job}
        return "; ".join(f"{name} {value}" for name, value in parts.items() if value) or "all"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The place where a reader begins; made by `chosen_start`. At most one field is given."""

    from_sequence: int | None = None  #: None, or 1: at the first event that the ledger holds
    since: datetime | None = None
    live: bool = False


def chosen_filter(
    *, types: Sequence[str] = (), queue: str | None = None, task: str | None = None, job: str | None = None
) -> EventFilter:
    """Check a choice of events.

    Raises: InvalidInputError, InvalidTokenError.
    """
    if isinstance(types, str):
        raise InvalidInputError(
            f"types is the text {types[:60]!r}: give a list, as in types=[{types[:60]!r}]"
        )
    _check_types(types)
    unknown = sorted(set(map(str, types)) - set(EVENT_TYPES))
    if unknown:
        raise InvalidInputError(
            f"there is no event type {unknown[0][:60]!r}; the types: {', '.join(EVENT_TYPES)}"
        )
    for field, value in (("queue", queue), ("task name", task), ("job id", job)):
        if value is not None:
            check_token(field, value)
    return EventFilter(types=tuple(sorted(set(types))), queue=queue, task=task, job=job)


def chosen_start(
    *, from_sequence: int | None = None, since: datetime | None = None, live: bool = False
) -> Start:
    """Check where to begin.

    Raises: InvalidInputError.
    """
    check_flag("live", live)
    given = [
        name
        for name, value in (("from_sequence", from_sequence), ("since", since), ("live", live or None))
        if value is not None
    ]
    if len(given) > 1:
        raise InvalidInputError(
            f"{' and '.join(given)} both say where to begin: give one of from_sequence, since, live"
        )
    if from_sequence is not None:
        _check_sequence(from_sequence)
    if since is not None:
        _check_time(since)
    return Start(from_sequence=from_sequence, since=since, live=live)


def is_number(value: object) -> bool:
    """Return whether this is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_types(value: object) -> None:
    if not isinstance(value, Collection):
        raise InvalidInputError(f"types must be a list of event types, got {shown(value)}")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False, as the text "no" is.

    Raises: InvalidInputError.
    """
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} must be True or False, got {shown(value)}")


def _check_sequence(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputError(f"from_sequence must be a whole number, got {shown(value)}")
    if value < 1:
        raise InvalidInputError(f"from_sequence is {value}: sequences begin at 1")
    if value > _SEQUENCE_MAX:
        raise InvalidInputError(f"from_sequence must be below 2 to the power of 63, got {shown(value)}")


def _check_time(value: object) -> None:
    if not isinstance(value, datetime):
        raise InvalidInputError(f"since must be a datetime, such as datetime.now(UTC), got {shown(value)}")
    if value.utcoffset() is None:
        raise InvalidInputError("since has no time zone: give an aware datetime, such as datetime.now(UTC)")
    if not _TIME_BEGIN <= value < _TIME_END:
        raise InvalidInputError(f"since must be from 1970 to 2261, got {value.isoformat()}")


def shown(value: object) -> str:
    """Return a value that is of the wrong type or size, in a bounded number of characters."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        text = "a very long one"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
