"""The events of a watch, the state they add up to, and what may follow: `WatchEvent`, `evolve`, `decide`. Pure.

A watch compares one figure of the fleet with a bound. Each of its events holds the whole state, so the newest one *is*
the state. Several gateways may judge one watch: a judgement is ignored if it covers less of the ledger than that of
the newest event. Released fields never change type, meaning or name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, Broken
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.envelope import Envelope, Moment, Whole
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.hooks.errors import WatchNotFoundError
from jobledger.ledger.model.inputs import check_finite
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE, check_token

#: The figures that a watch can compare; docs/webhooks.md explains each.
Figure = Literal[
    "depth",  # jobs that are queued and wait for a worker
    "oldest_wait_s",  # seconds since the oldest of them was queued
    "error_rate",  # of the attempts that ended within the window, the share that failed: 0 to 1
    "success_rate",  # of the jobs that completed or became dead letters within the window, the share that completed
    "wait_p99_s",  # seconds that 99 of 100 attempts, of those started within the window, had waited at most
    "dead_letters",  # dead letters that nobody requeued or discarded
    "lag",  # seconds by which the figures are behind the ledger
]
FIGURES: Final[tuple[Figure, ...]] = get_args(Figure)
FOR_S_MAX: Final = 24 * 3600.0
WINDOW_S_MAX: Final = 24 * 3600
#: Figures of a moment, which have no window.
_OF_NOW: Final = ("depth", "oldest_wait_s", "dead_letters", "lag")
#: Figures from 0 to 1.
_SHARES: Final = ("error_rate", "success_rate")


class WatchDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The figure of a watch, and the conditions under which it fires."""

    figure: Figure  #: the figure it watches
    queue: str = ""  #: only jobs of this queue; "": of all but deliveries of webhooks
    task: str = ""  #: only jobs of this task; "": of all
    above: float | None = None  #: it fires while the figure is greater; none: no upper bound
    below: float | None = None  #: it fires while the figure is less; none: no lower bound
    for_s: float = 0.0  #: seconds for which the figure must be beyond a bound before it fires
    window_s: Whole = 300  #: seconds back that rates and waits cover

    def is_breached(self, value: float | None) -> bool:
        """Return whether a figure is beyond a bound; an unknown figure is not."""
        if value is None:
            return False
        return (self.above is not None and value > self.above) or (
            self.below is not None and value < self.below
        )


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a watch: its state after the event."""

    watch: str  #: its name
    definition: WatchDefinition  #: what it looks at, and when it fires
    firing: bool = False  #: whether the figure was beyond its bound for long enough
    value: float | None = None  #: the judged figure; none: it was not known, or nothing was judged
    position: Whole = (
        0  #: the stream sequence up to which the judged figure was counted; 0: nothing was judged
    )
    reason: str = ""  #: why, as the person said


class WatchSet(_Fact, frozen=True, kw_only=True, tag="set", gc=False):
    """From here on the watch looks at what this event says. It does not fire until it is judged again."""


class WatchFiring(_Fact, frozen=True, kw_only=True, tag="firing", gc=False):
    """The figure was beyond its bound for long enough."""


class WatchResolved(_Fact, frozen=True, kw_only=True, tag="resolved", gc=False):
    """The figure is within its bounds again."""


class WatchRemoved(_Fact, frozen=True, kw_only=True, tag="removed", gc=False):
    """Somebody ended the watch. Its name may be set again."""


WatchEvent = WatchSet | WatchFiring | WatchResolved | WatchRemoved


class Watch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A watch after its newest event."""

    name: str
    definition: WatchDefinition
    removed: bool = False
    firing: bool = False
    value: float | None = None  #: the figure of the newest `firing` or `resolved`
    position: int = 0
    at: Moment  #: of the newest event
    by: str
    reason: str = ""
    sequence: int  #: stream sequence of the newest event


def evolve(_before: Watch | None, event: WatchEvent, stream_sequence: int) -> Watch:
    """Return the watch after `event`, whatever came before it."""
    is_removed = isinstance(event, WatchRemoved)
    return copied(Watch, event, name=event.watch, removed=is_removed, sequence=stream_sequence)


class SetWatch(msgspec.Struct, frozen=True, kw_only=True):
    """Define a watch, or replace its definition."""

    definition: WatchDefinition
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises: InvalidInputError, InvalidTokenError."""
        _check_definition(self.definition)


class Judge(msgspec.Struct, frozen=True, kw_only=True):
    """Report the figure, and whether it was beyond its bound for long enough."""

    value: float | None
    position: int  #: the stream sequence up to which the figure was counted
    sequence: int  #: stream sequence of the watch's newest event when it was judged
    fires: bool


WatchCommand = SetWatch | Judge | Remove


def decide(name: str, watch: Watch | None, command: WatchCommand, stamp: Stamp) -> WatchEvent | None:
    """Return the event that follows from a command; None: nothing would change.

    Raises: WatchNotFoundError for a watch that is not set; AccessDeniedError.
    """
    stamp.require_everywhere("manage")
    if watch is not None and watch.removed:
        watch = None
    fact: dict[str, Any] = {"watch": name, **stamp.fact}
    match command:
        case SetWatch(definition=definition, reason=reason):
            if watch is not None and watch.definition == definition:
                return None
            return WatchSet(**fact, definition=definition, reason=reason)
        case Remove(reason=reason):
            if watch is None:
                raise WatchNotFoundError(name)
            return WatchRemoved(**fact, definition=watch.definition, reason=reason)
        case Judge():
            return None if watch is None else _judged(watch, command, fact)


def _judged(watch: Watch, command: Judge, fact: dict[str, Any]) -> WatchEvent | None:
    is_late = command.sequence != watch.sequence or command.position < watch.position
    if is_late or command.fires == watch.firing:
        return None
    kind: type[WatchEvent] = WatchFiring if command.fires else WatchResolved
    return copied(kind, command, **fact, definition=watch.definition, firing=command.fires)


def _check_definition(given: WatchDefinition) -> None:
    if given.figure not in FIGURES:
        raise InvalidInputError(
            f"there is no figure {str(given.figure)[:60]!r}; the figures: {', '.join(FIGURES)}"
        )
    if given.above is None and given.below is None:
        raise InvalidInputError("a watch needs a bound: give above, or below, or both")
    _check_bounds(given)
    _within("for_s", given.for_s, FOR_S_MAX)
    _within("window_s", given.window_s, WINDOW_S_MAX, 60)
    for field, name in (("queue", "queue"), ("task", "task name")):
        if getattr(given, field):
            check_token(name, getattr(given, field))
    if given.queue.startswith(DELIVERIES_QUEUE):
        raise InvalidInputError(
            f"queue {given.queue} has the deliveries of webhooks, and what fires for them would be delivered there: "
            "see `jobledger webhooks list` instead"
        )
    if given.figure == "oldest_wait_s" and given.task:
        raise InvalidInputError("oldest_wait_s is told of queues: give it no task")
    if given.figure == "lag" and (given.queue or given.task):
        raise InvalidInputError("lag is one figure for the whole ledger: give it no queue and no task")


def _check_bounds(given: WatchDefinition) -> None:
    """Refuse a bound that the figure is never beyond, or always. Raises: InvalidInputError."""
    above, below = given.above, given.below
    is_share = given.figure in _SHARES
    most = 1.0 if is_share else math.inf
    what = "a share from 0 to 1 (write 0.05 for 5 %)" if is_share else "never less than 0"
    for name, value, can_change in (
        ("above", above, above is None or 0 <= above < most),
        ("below", below, below is None or 0 < below <= most),
    ):
        check_finite(name, value)
        if not can_change:
            raise InvalidInputError(
                f"{given.figure} is {what}, so a watch with {name} {value:g} would fire always or never: "
                "give another bound"
            )


def _within(field: str, value: float, most: float, least: float = 0) -> None:
    if not least <= value <= most:  # NaN is not, either
        raise InvalidInputError(f"{field} must be from {least:g} to {most:,.0f}, got {value!r}")


def bound_words(definition: WatchDefinition) -> str:
    """Return a watch for a person: `depth of queue billing above 1,000 for 60 s`."""
    parts = [
        f"{name} {value}" for name, value in (("queue", definition.queue), ("task", definition.task)) if value
    ]
    bounds = [
        f"{name} {value:g}"
        for name, value in (("above", definition.above), ("below", definition.below))
        if value is not None
    ]
    lasts = f" for {definition.for_s:g} s" if definition.for_s else ""
    within = "" if definition.figure in _OF_NOW else f" within {definition.window_s} s"
    of = f" of {', '.join(parts)}" if parts else ""
    return f"{definition.figure}{of}{within} {' or '.join(bounds)}{lasts}"


def _words(event: WatchEvent) -> str:
    match event:
        case WatchSet(definition=definition, reason=reason):
            return bound_words(definition) + (f": {reason}" if reason else "")
        case WatchFiring() | WatchResolved():
            figure = "unknown" if event.value is None else f"{event.value:g}"
            return f"{event.definition.figure} is {figure}, watched: {bound_words(event.definition)}"
        case WatchRemoved(reason=reason):
            return reason


def _check(before: Watch | None, event: WatchEvent, _stream_sequence: int) -> Iterator[Broken]:
    """Check the rules that hold for every version."""
    kind = WATCH.type_of(event)
    if before is not None and evolve(None, event, before.sequence) == before:
        return  # an archive run appends the current state once more
    if isinstance(event, WatchSet):
        if event.firing:
            yield "transition", "`set` says that the watch fires, which is judged later"
        return
    if before is None or before.removed:
        yield "transition", f"`{kind}` of a watch that nobody set"
        return
    if event.definition != before.definition:
        yield "transition", f"`{kind}` changes what the watch looks at, which only `set` may"
    if isinstance(event, WatchFiring | WatchResolved):
        if event.firing != isinstance(event, WatchFiring) or event.firing == before.firing:
            yield "transition", f"`{kind}` of a watch that {'fired' if before.firing else 'did not fire'}"
        if event.firing and not event.definition.is_breached(event.value):
            yield "transition", f"`firing` at {event.value}, which is within the bounds"
        if event.position < before.position:
            yield "transition", f"`{kind}` by an older part of the ledger than the event before it"


WATCH: Aggregate[WatchEvent, Watch] = Aggregate(
    "watch",
    ("watch",),
    WatchEvent,
    state=Watch,
    evolve=evolve,
    words=_words,
    check=_check,
    removed=WatchRemoved,
)
