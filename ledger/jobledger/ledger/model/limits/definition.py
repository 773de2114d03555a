"""Definitions of limits as facts: `LimitEvent`, what they add up to, and what may follow. Pure.

Each limit has a chain of its own, `ledger.limit.<name>.>`, and each `set` says the whole definition, so the newest event
*is* the state. A job that names a limit without a definition stays `held`. Released fields never change type, meaning
or name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, Broken, Kept
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import WHOLE_MAX, Envelope, Moment, Whole
from jobledger.ledger.model.errors import InvalidInputError, LimitNotFoundError, RefusedError
from jobledger.ledger.model.inputs import check_word

#: What a job does whose limit is full: wait; take the place of an older job that waits; also ask the one that runs to
#: end; or be cancelled.
Mode = Literal["queue", "newest", "replace", "drop"]
#: When a job gives its slot back: after each attempt, and it takes one again for the next; or when it has ended for good.
Keep = Literal["attempt", "job"]
Source = Literal["code", "operator"]

MODES: Final[tuple[Mode, ...]] = ("queue", "newest", "replace", "drop")
KEEPS: Final[tuple[Keep, ...]] = ("attempt", "job")
OVERRIDES_MAX: Final = 1_000  #: keys with numbers of their own, of one limit
PERIOD_S_MAX: Final = 366 * 24 * 3600.0


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What holds for one key of a limit."""

    slots: Whole | None = None  #: how many jobs may hold it at once; None: any number; 0: none, so all wait
    rate: float | None = None  #: how many jobs may start in `per_s` seconds; None: any number
    per_s: float = 1.0  #: the period of `rate`, in seconds
    burst: Whole = 1  #: how many of them may start at once, after a pause
    mode: Mode = "queue"  #: what a job does that finds the limit full
    keep: Keep = "attempt"  #: when a job gives its slot back
    weight: float = 1.0  #: this key's share beside the other keys', where they compete


class Override(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What differs for one key of a limit."""

    slots: Whole | None = None  #: how many jobs may hold it at once; none: as the limit
    rate: float | None = None  #: how many jobs may start in `per_s` seconds; none: as the limit
    per_s: float | None = None  #: the period of `rate`, in seconds; none: as the limit
    burst: Whole | None = None  #: how many of them may start at once; none: as the limit
    mode: Mode | None = None  #: what a job does that finds the key full; none: as the limit
    keep: Keep | None = None  #: when a job gives its slot back; none: as the limit
    weight: float | None = None  #: the key's share beside other keys; none: as the limit


_TERMS: Final = Terms.__struct_fields__


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """What every fact about a limit carries."""

    limit: str  #: the limit's name


class LimitSet(_Fact, frozen=True, kw_only=True, tag="set", gc=False):
    """From here on the limit is as this event says, whatever was before. Nothing that runs is ended for it."""

    slots: Whole | None = (
        None  #: how many jobs may hold one key at once; none: any number; 0: none, so all wait
    )
    rate: float | None = None  #: how many jobs of one key may start in `per_s` seconds; none: any number
    per_s: float = 1.0  #: the period of `rate`, in seconds
    burst: Whole = 1  #: how many of them may start at once, after a pause
    mode: Mode = "queue"  #: what a job does that finds its key full
    keep: Keep = (
        "attempt"  #: when a job gives its slot back: after each `attempt`, or at the end of the `job`
    )
    weight: float = 1.0  #: a key's share beside other keys, where they compete
    overrides: Mapping[str, Override] = {}  #: keys for which something differs
    source: Source  #: who says so: the application's code, or a person, whom code never overrides
    reason: str = ""  #: why, as the person said


class LimitRemoved(_Fact, frozen=True, kw_only=True, tag="removed", gc=False):
    """The limit has no definition any more: jobs that name it stay `held` until it is set again."""

    reason: str = ""  #: why, as the person said


LimitEvent = LimitSet | LimitRemoved


class Definition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A limit after its newest event."""

    limit: str
    sequence: int  #: stream sequence of that event
    at: Moment
    by: str
    reason: str = ""
    common: Terms | None = None  #: for every key without an override; None: removed
    overrides: Mapping[str, Override] = {}
    source: Source = "operator"

    @property
    def is_set(self) -> bool:
        """Whether it is defined at this moment."""
        return self.common is not None

    def of(self, key: str = "") -> Terms | None:
        """Return what holds for a key, "" being that of the bare name; None where nothing is defined."""
        override = self.overrides.get(key)
        if override is None or self.common is None:
            return self.common
        return msgspec.structs.replace(self.common, **_said(override))


def _said(override: Override) -> dict[str, Any]:
    return {name: value for name in _TERMS if (value := getattr(override, name)) is not None}


def evolve(_before: Definition | None, event: LimitEvent, stream_sequence: int) -> Definition:
    """Return the limit after `event`, whatever came before it."""
    common: dict[str, Any] = {}
    if isinstance(event, LimitSet):
        terms = Terms(**{name: getattr(event, name) for name in _TERMS})
        common = {"common": terms, "overrides": event.overrides, "source": event.source}
    return Definition(
        limit=event.limit, sequence=stream_sequence, at=event.at, by=event.by, reason=event.reason, **common
    )


class SetLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Define a limit, or replace its definition."""

    terms: Terms = Terms()
    overrides: Mapping[str, Override] = {}
    source: Source = "operator"
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work.

        Raises: InvalidInputError.
        """
        problem = problem_of(self.terms, self.overrides)
        if problem:
            raise InvalidInputError(problem)


class RemoveLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Take a definition away."""

    reason: str = ""


LimitCommand = SetLimit | RemoveLimit


def decide(limit: str, before: Definition | None, command: LimitCommand, stamp: Stamp) -> LimitEvent:
    """Return the event that follows from a command.

    Raises: LimitNotFoundError for the removal of what is not defined; RefusedError where code would override a person.
    """
    fact: dict[str, Any] = {"limit": limit, "at": stamp.at, "by": stamp.by, "trace": stamp.trace}
    is_set = before is not None and before.is_set
    match command:
        case RemoveLimit(reason=reason):
            if not is_set:
                raise LimitNotFoundError(limit)
            return LimitRemoved(**fact, reason=reason)
        case SetLimit(terms=terms, overrides=overrides, source=source, reason=reason):
            if source == "code" and before is not None and is_set and before.source == "operator":
                raise RefusedError(f"limit {limit} was set by {before.by}, and code does not override that")
            said = {name: getattr(terms, name) for name in _TERMS}
            return LimitSet(**fact, **said, overrides=dict(overrides), source=source, reason=reason)


def problem_of(terms: Terms, overrides: Mapping[str, Override]) -> str:
    """Return which number of a definition cannot work, as a sentence; "" where all can."""
    if len(overrides) > OVERRIDES_MAX:
        return f"{len(overrides):,} keys have numbers of their own: at most {OVERRIDES_MAX:,} may"
    for key, override in overrides.items():
        try:
            check_word("a key", key)
        except InvalidInputError as error:
            return str(error)
        problem = _problem_of(override)
        if problem:
            return f"key {key}: {problem}"
    return _problem_of(terms)


def _problem_of(terms: Terms | Override) -> str:
    for name, least in (("slots", 0), ("burst", 1)):
        value = getattr(terms, name)
        if value is not None and (type(value) is not int or not least <= value <= WHOLE_MAX):
            return f"{name} must be a whole number from {least} to {WHOLE_MAX:,}, got {value!r}"
    for name, most in (("rate", 1e6), ("per_s", PERIOD_S_MAX), ("weight", 1e6)):
        value = getattr(terms, name)
        if value is not None and not (_is_number(value) and 0 < value <= most):  # NaN is not, either
            return f"{name} must be a number above 0 and at most {most:,.0f}, got {value!r}"
    for name, words in (("mode", MODES), ("keep", KEEPS)):
        value = getattr(terms, name)
        if value is not None and value not in words:
            return f"{name} must be {', '.join(words[:-1])} or {words[-1]}, got {value!r}"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def terms_words(terms: Terms | Override) -> str:
    """Return what is said beyond the defaults, for a person: `slots 5, rate 10 per 60 s, burst 2`."""
    said: list[str] = []
    if terms.slots is not None:
        said.append(f"slots {terms.slots:,}")
    if terms.rate is not None:
        said.append(rate_words(terms.rate, terms.per_s or 1.0))
    defaults = Terms()
    for name in ("burst", "mode", "keep", "weight"):
        value = getattr(terms, name)
        if value is not None and value != getattr(defaults, name):
            said.append(f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}")
    return ", ".join(said) or "no bound"


def rate_words(rate: float, per_s: float) -> str:
    """Return a rate for a person: `100 per minute`."""
    return f"{rate:g} per {_PERIODS.get(per_s) or f'{per_s:g} s'}"


_PERIODS: Final = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86_400.0: "day"}


def _words(event: LimitEvent) -> str:
    why = f": {event.reason}" if event.reason else ""
    match event:
        case LimitSet(overrides=overrides, source=source):
            terms = terms_words(Terms(**{name: getattr(event, name) for name in _TERMS}))
            keys = f", {len(overrides):,} {'key differs' if len(overrides) == 1 else 'keys differ'}"
            return (
                f"{terms}{keys if overrides else ''}{', as the code has it' if source == 'code' else ''}{why}"
            )
        case LimitRemoved():
            return event.reason


def _check(before: Definition | None, event: LimitEvent, _stream_sequence: int) -> Iterator[Broken]:
    """Decide again what the event says was decided; it must come out the same."""
    state = evolve(None, event, 0)
    command: LimitCommand = RemoveLimit(reason=event.reason)
    try:
        if state.common is not None:
            command = SetLimit(
                terms=state.common, overrides=state.overrides, source=state.source, reason=event.reason
            )
        decide(event.limit, before, command, Stamp(at=event.at, by=event.by, trace=event.trace))
    except (InvalidInputError, LimitNotFoundError, RefusedError) as error:
        yield "transition", f"`{LIMIT.type_of(event)}` was accepted, although {error}"


def _keeps(event: LimitEvent, stream_sequence: int) -> Kept | None:
    """A limit that is set stays; what was removed may go with its whole chain."""
    if isinstance(event, LimitRemoved):
        return None
    return Kept(stream_sequence, f"limit {event.limit}, which is as stream sequence {stream_sequence} says")


LIMIT: Aggregate[LimitEvent, Definition] = Aggregate(
    "limit",
    ("limit",),
    LimitEvent,
    state=Definition,
    evolve=evolve,
    words=_words,
    check=_check,
    keeps=_keeps,
    restated=True,
)
