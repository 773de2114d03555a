"""Definitions of limits as facts: `LimitEvent`, the fold of these events, and the next event for a command. Pure.

Each limit has a chain of its own, `ledger.limit.<name>.>`. The terms for all its keys and the differences for one key
are separate facts, each with its author. An event changes one of these facts and repeats the others, so the newest
event *is* the state. A job that names a limit without a definition stays `held`. Released fields never change type,
meaning or name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, cast

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, Broken
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.envelope import WHOLE_MAX, Envelope, Moment, Whole
from jobledger.ledger.model.errors import InvalidInputError, LimitNotFoundError, RefusedError
from jobledger.ledger.model.inputs import check_word
from jobledger.ledger.model.limits.names import joined
from jobledger.ledger.model.rights.authority import EVERY
from jobledger.ledger.model.rights.grants import checked_patterns, matches

#: Fate of a job whose limit is full: it waits; takes the place of an older waiting job; also asks the running one to
#: end; or is cancelled.
Mode = Literal["queue", "newest", "replace", "drop"]
#: When a job gives its slot back: after each attempt (the next one takes a slot again), or when it has ended for good.
Keep = Literal["attempt", "job"]
Source = Literal["code", "operator"]

MODES: Final[tuple[Mode, ...]] = ("queue", "newest", "replace", "drop")
KEEPS: Final[tuple[Keep, ...]] = ("attempt", "job")
OVERRIDES_MAX: Final = 1_000  #: the most keys of one limit with terms of their own
PERIOD_S_MAX: Final = 366 * 24 * 3600.0


class Terms(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The terms of one key of a limit, and the jobs that may name the limit, which are the same for all its keys."""

    # Subclasses have terms and more: a limit that code declares, and a row of the table of limits.
    slots: Whole | None = None  #: how many jobs may hold it at once; None: any number; 0: none, so all wait
    rate: float | None = None  #: how many jobs may start in `per_s` seconds; None: any number
    per_s: float = 1.0  #: the period of `rate`, in seconds
    burst: Whole = 1  #: how many of them may start at once, after a pause
    mode: Mode = "queue"  #: fate of a job that finds the limit full
    keep: Keep = "attempt"  #: when a job gives its slot back
    weight: float = 1.0  #: share of this key beside competing keys
    #: Patterns of the queues whose jobs may name the limit, ("*",) for all. Empty, as `tasks`: only callers who may
    #: enqueue anywhere, and tasks whose code has the limit, may name it.
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  #: the same for tasks; if both are given, both must match

    @property
    def terms(self) -> Terms:
        """The terms alone, without the other fields of a subclass."""
        said: dict[str, Any] = {name: getattr(self, name) for name in _TERMS}
        for name in ("queues", "tasks"):
            if isinstance(said[name], list):  # code may give a list
                said[name] = tuple(said[name])
        return Terms(**said)

    @property
    def says_who(self) -> bool:
        """Whether the terms say which jobs may name the limit."""
        return bool(self.queues or self.tasks)

    def is_for(self, queue: str, task: str) -> bool:
        """Return whether the patterns allow jobs of a task in a queue to name the limit."""
        return _matches(queue, self.queues) and _matches(task, self.tasks)


class Override(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The differences of one key from the terms of its limit."""

    slots: Whole | None = None  #: how many jobs may hold it at once; none: as for the limit
    rate: float | None = None  #: how many jobs may start in `per_s` seconds; none: as for the limit
    per_s: float | None = None  #: the period of `rate`, in seconds; none: as for the limit
    burst: Whole | None = None  #: how many of them may start at once; none: as for the limit
    mode: Mode | None = None  #: fate of a job that finds the key full; none: as for the limit
    keep: Keep | None = None  #: when a job gives its slot back; none: as for the limit
    weight: float | None = None  #: the key's share beside other keys; none: as for the limit


class Author(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The author of a fact that a later event repeats."""

    source: Source  #: the application's code, or a person, whom code never overrides
    by: str  #: the process or person
    at: Moment  #: time of the fact
    reason: str = ""  #: the person's reason; of a long one the beginning


_TERMS: Final = Terms.__struct_fields__
_OF_KEYS: Final = Override.__struct_fields__
_REASON_MAX: Final = 100  #: characters of the reason that are repeated


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a limit."""

    limit: str  #: the limit's name


class LimitSet(_Fact, frozen=True, kw_only=True, tag="set", gc=False):
    """From here on the limit is as in this event, whatever it was before. It ends no running job.

    With a `key` it changes the differences of that key, or removes them; everything else is repeated.
    """

    slots: Whole | None = (
        None  #: how many jobs may hold one key at once; none: any number; 0: none, so all wait
    )
    rate: float | None = None  #: how many jobs of one key may start in `per_s` seconds; none: any number
    per_s: float = 1.0  #: the period of `rate`, in seconds
    burst: Whole = 1  #: how many of them may start at once, after a pause
    mode: Mode = "queue"  #: fate of a job that finds its key full
    keep: Keep = (
        "attempt"  #: when a job gives its slot back: after each `attempt`, or at the end of the `job`
    )
    weight: float = 1.0  #: a key's share beside competing keys
    overrides: Mapping[str, Override] = {}  #: differences from these terms, by key
    source: Source  #: author of the definition: the code, or a person, whom code never overrides
    reason: str = ""  #: the person's reason
    key: str = ""  #: the key whose differences this event changes; empty: it changes the definition
    defined: Author | None = None  #: author of the definition, if a key is named; absent: this event's author
    authors: Mapping[str, Author] = {}  #: authors of differences, by key; absent: as of the definition
    given_back: bool = False  #: whether a person gave the terms back to the code
    queues: tuple[
        str, ...
    ] = ()  #: patterns of the queues whose jobs may name it; empty, as `tasks`: not given
    tasks: tuple[str, ...] = ()  #: the same for tasks; if both are given, both must match


class LimitRemoved(_Fact, frozen=True, kw_only=True, tag="removed", gc=False):
    """The limit has no definition any more: jobs that name it stay `held` until it is set again."""

    reason: str = ""  #: the person's reason


LimitEvent = LimitSet | LimitRemoved


class Definition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A limit after its newest event. `at`, `by`, `reason` and `source` belong to its definition, or to its removal."""

    limit: str
    sequence: int  #: stream sequence of that event
    at: Moment
    by: str
    reason: str = ""
    common: Terms | None = None  #: terms of every key without an override; None: removed
    overrides: Mapping[str, Override] = {}
    source: Source = "operator"
    authors: Mapping[str, Author] = {}  #: author of the differences, for every key of `overrides`

    @property
    def is_set(self) -> bool:
        """Whether the limit is defined now."""
        return self.common is not None

    def of(self, key: str = "") -> Terms | None:
        """Return the terms of a key, "" being the bare name; None if nothing is defined."""
        override = self.overrides.get(key)
        if override is None or self.common is None:
            return self.common
        return msgspec.structs.replace(self.common, **_said(override))

    def author(self, key: str = "") -> Author:
        """Return the author of the terms of a key: of its differences, or else of the definition."""
        own = self.authors.get(key)
        return own or Author(source=self.source, by=self.by, at=self.at, reason=self.reason[:_REASON_MAX])


def _said(override: Override) -> dict[str, Any]:
    return {name: value for name in _OF_KEYS if (value := getattr(override, name)) is not None}


def override_of(terms: Terms) -> Override:
    """Return the override that gives a key these terms."""
    return Override(**{name: getattr(terms, name) for name in _OF_KEYS})


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(matches(pattern, name) for pattern in patterns)


def evolve(_before: Definition | None, event: LimitEvent, stream_sequence: int) -> Definition:
    """Return the limit after `event`, whatever came before it."""
    if isinstance(event, LimitRemoved):
        return Definition(
            limit=event.limit, sequence=stream_sequence, at=event.at, by=event.by, reason=event.reason
        )
    said = event.defined or Author(source=event.source, by=event.by, at=event.at, reason=event.reason)
    return Definition(
        limit=event.limit,
        sequence=stream_sequence,
        at=said.at,
        by=said.by,
        reason=said.reason,
        common=_common(event),
        overrides=event.overrides,
        source=event.source,
        authors={key: event.authors.get(key, said) for key in event.overrides},
    )


class SetLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Define a limit, or replace its definition."""

    terms: Terms = Terms()
    overrides: Mapping[str, Override] | None = None  #: differences by key; None: as before
    source: Source = "operator"
    given_back: bool = False  #: whether a person gives it back to the code
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work.

        Raises: InvalidInputError.
        """
        problem = problem_of(self.terms, self.overrides or {})
        if problem:
            raise InvalidInputError(problem)


class SetKey(msgspec.Struct, frozen=True, kw_only=True):
    """Set the differences of one key of a limit; the definition and the other keys keep their terms and authors."""

    key: str
    override: Override | None  #: the differences; None: none any more
    source: Source = "operator"
    given_back: bool = False  #: whether a person gives it back to the code
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work.

        Raises: InvalidInputError.
        """
        problem = "" if self.override is None else problem_of(Terms(), {self.key: self.override})
        if problem:
            raise InvalidInputError(problem)


LimitCommand = SetLimit | SetKey | Remove


def decide(limit: str, before: Definition | None, command: LimitCommand, stamp: Stamp) -> LimitEvent:
    """Return the event that follows from a command.

    Raises: LimitNotFoundError for the removal of an undefined limit; InvalidInputError for too many keys; RefusedError
        if code would override a person; AccessDeniedError.
    """
    stamp.require_everywhere("manage")
    match command:
        case Remove(reason=reason):
            if before is None or not before.is_set:
                raise LimitNotFoundError(limit)
            return LimitRemoved(limit=limit, **stamp.fact, reason=reason)
        case SetKey():
            return _decide_key(limit, before, command, stamp)
        case SetLimit(terms=terms, overrides=overrides, source=source, reason=reason):
            if before is not None and before.is_set and not command.given_back:
                _refuse_code(limit, before.author(), source)
            kept: Mapping[str, Author] = {}
            if before is not None and overrides is None:
                kept = before.authors
            return LimitSet(
                limit=limit,
                **stamp.fact,
                **msgspec.structs.asdict(terms),
                overrides=dict(_overrides(before) if overrides is None else overrides),
                source=source,
                reason=reason,
                authors=kept,
                given_back=command.given_back,
            )


def _decide_key(limit: str, before: Definition | None, command: SetKey, stamp: Stamp) -> LimitSet:
    """Return the event that sets the differences of one key. Raises: InvalidInputError, RefusedError."""
    key, source = command.key, command.source
    said = Author(source=source, by=stamp.by, at=stamp.at, reason=command.reason[:_REASON_MAX])
    is_set = before is not None and before.is_set
    if is_set and before is not None and key in before.overrides and not command.given_back:
        _refuse_code(joined(limit, key), before.author(key), source)
    # If nobody defined the limit, all other keys are without a bound.
    defined = before.author() if is_set and before is not None else said
    overrides = {other: each for other, each in _overrides(before).items() if other != key}
    authors = {other: before.author(other) for other in overrides} if before is not None else {}
    if command.override is not None:
        overrides[key], authors[key] = command.override, said
    if len(overrides) > OVERRIDES_MAX:
        raise InvalidInputError(problem_of(Terms(), overrides))
    return LimitSet(
        limit=limit,
        **stamp.fact,
        **msgspec.structs.asdict((before.common if before is not None else None) or Terms()),
        overrides=overrides,
        source=defined.source,
        reason=command.reason,
        key=key,
        defined=defined,
        authors=authors,
        given_back=command.given_back,
    )


def _overrides(before: Definition | None) -> Mapping[str, Override]:
    return before.overrides if before is not None and before.is_set else {}


def _refuse_code(limit: str, author: Author, source: Source) -> None:
    """Refuse code that would override a person. Raises: RefusedError."""
    if source == "code" and author.source == "operator":
        raise RefusedError(f"limit {limit} was set by {author.by}, and code does not override that")


def problem_of(terms: Terms, overrides: Mapping[str, Override]) -> str:
    """Return a sentence on a number of a definition that cannot work; "" if all can."""
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
    return _problem_of_who(terms) or _problem_of(terms)


def _problem_of_who(terms: Terms) -> str:
    for name in ("queues", "tasks"):
        given: object = getattr(terms, name)
        if not isinstance(given, tuple):
            return (
                f"{name} must be patterns of names, such as {name}=('mail', 'billing-*'), got {given!r:.60}"
            )
        try:
            checked_patterns(name, cast("tuple[str, ...]", given))
        except (InvalidInputError, TypeError) as error:
            return str(error)
    return ""


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


def terms_words(terms: Terms | Override, *, with_who: bool = True) -> str:
    """Return the terms that differ from the defaults, for a person: `slots 5, rate 10 per 60 s, burst 2`.

    `with_who`: also the patterns of jobs that may name the limit.
    """
    said: list[str] = []
    if terms.slots is not None:
        said.append(f"slots {terms.slots:,}")
    if terms.rate is not None:
        said.append(rate_words(terms.rate, terms.per_s or 1.0))
    defaults = Terms()
    for name in _OF_KEYS:
        if name in {"slots", "rate", "per_s"}:
            continue
        value = getattr(terms, name)
        if value is not None and value != getattr(defaults, name):
            said.append(f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}")
    numbers, who = ", ".join(said) or "no bound", ""
    if with_who and isinstance(terms, Terms):
        who = who_words(terms)
    return f"{numbers}; for {who}" if who else numbers


def who_words(terms: Terms) -> str:
    """Return which jobs may name a limit, for a person: `queues mail, billing-*; tasks send`; "" without patterns."""
    said = [
        f"{kind} {', '.join(patterns)}"
        for kind, patterns in (("queues", terms.queues), ("tasks", terms.tasks))
        if patterns and patterns != EVERY
    ]
    return "; ".join(said) or ("everybody" if terms.says_who else "")


def rate_words(rate: float, per_s: float) -> str:
    """Return a rate for a person: `100 per minute`."""
    return f"{rate:g} per {_PERIODS.get(per_s) or f'{per_s:g} s'}"


_PERIODS: Final = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86_400.0: "day"}


def _words(event: LimitEvent) -> str:
    why = f": {event.reason}" if event.reason else ""
    match event:
        case LimitSet(key=key, overrides=overrides) if key:
            if key not in overrides:
                return f"key {key} is as the others{why}"
            author = event.authors.get(key)
            in_code = ", as the code has it" if author is not None and author.source == "code" else ""
            return f"key {key}: {terms_words(overrides[key])}{in_code}{why}"
        case LimitSet(overrides=overrides, source=source):
            terms = terms_words(_common(event))
            keys = f", {len(overrides):,} {'key differs' if len(overrides) == 1 else 'keys differ'}"
            return (
                f"{terms}{keys if overrides else ''}{', as the code has it' if source == 'code' else ''}{why}"
            )
        case LimitRemoved():
            return event.reason


def _check(before: Definition | None, event: LimitEvent, _stream_sequence: int) -> Iterator[Broken]:
    """Yield the violations: facts that `decide` would not have returned."""
    if isinstance(event, LimitSet) and event.key:
        found = [problem_of(_common(event), event.overrides), *_problems_of_key(before, event)]
    else:
        found = [_refusal(before, event)]
    for sentence in filter(None, found):
        yield "transition", f"`{LIMIT.type_of(event)}` was accepted, although {sentence}"


def _refusal(before: Definition | None, event: LimitEvent) -> str:
    """Decide again on the definition of an event; return the reason of a refusal, "" without one."""
    command: LimitCommand = Remove()
    try:
        if isinstance(event, LimitSet):
            command = SetLimit(
                terms=_common(event),
                overrides=event.overrides,
                source=event.source,
                given_back=event.given_back,
            )
        decide(event.limit, before, command, Stamp(at=event.at, by=event.by, trace=event.trace))
    except (InvalidInputError, LimitNotFoundError, RefusedError) as error:
        return str(error)
    return ""


def _common(event: LimitSet) -> Terms:
    return Terms(**{name: getattr(event, name) for name in _TERMS})


def _problems_of_key(before: Definition | None, event: LimitSet) -> Iterator[str]:
    """Yield other changes by an event about one key, and a replacement of a person's terms by code."""
    if before is None:  # earlier events are in an archive, or are not checked
        return
    after, key = evolve(None, event, 0), event.key
    if after.common != (before.common or Terms()) or (before.is_set and after.author() != before.author()):
        yield f"it is about key {key} and changed the definition"
    for other in sorted({*before.overrides, *after.overrides} - {key}):
        if _fact(before, other) != _fact(after, other):
            yield f"it is about key {key} and changed what differs for {other}"
    if key in before.overrides and key in after.overrides and not event.given_back:
        try:
            _refuse_code(joined(event.limit, key), before.author(key), after.author(key).source)
        except RefusedError as error:
            yield str(error)


def _fact(limit: Definition, key: str) -> tuple[Override | None, Author | None]:
    return limit.overrides.get(key), limit.authors.get(key)


LIMIT: Aggregate[LimitEvent, Definition] = Aggregate(
    "limit",
    ("limit",),
    LimitEvent,
    state=Definition,
    evolve=evolve,
    words=_words,
    check=_check,
    removed=LimitRemoved,
)
