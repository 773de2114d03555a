"""The events of a route, the state they add up to, and what may follow: `RouteEvent`, `evolve`, `decide`. Pure.

A route is an address to which others send webhooks, with a scheme that verifies their requests and rules that make
jobs of them. Each of its events holds the whole state. A request is no fact about the route: see `delivery`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, cast

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, Broken
from jobledger.ledger.model.commands import GiveSignal, Remove, Stamp
from jobledger.ledger.model.envelope import TIME_MAX, TIME_MIN, Envelope, Moment, Priority, Whole
from jobledger.ledger.model.errors import InvalidError, InvalidInputError
from jobledger.ledger.model.forms import SEALED_FORM
from jobledger.ledger.model.hooks.errors import RouteNotFoundError
from jobledger.ledger.model.hooks.match import (
    SECRET_HEADERS,
    RuleInput,
    build_input,
    check_condition,
    check_input,
    check_source,
    headers_named,
    is_constant,
    source_value,
)
from jobledger.ledger.model.hooks.references import check_reference
from jobledger.ledger.model.hooks.schemes import PRESETS, Scheme, check_scheme
from jobledger.ledger.model.inputs import (
    check_finite,
    check_whole,
    check_word,
    checked_limits,
    checked_metadata,
)
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.limits.definition import Source
from jobledger.ledger.model.limits.names import joined
from jobledger.ledger.model.reserved_ids import check_unreserved
from jobledger.ledger.model.rights.marks import PAYLOAD, PAYLOADS
from jobledger.ledger.model.seals import OWNER_DEFAULT, check_owner
from jobledger.ledger.model.subjects import check_token, check_users_queue, check_users_task

#: Most jobs of one delivery: with `received` they are one batch, and the server takes batches of up to 1,000.
RULES_MAX: Final = 900
SECRETS_MAX: Final = 8
#: The scheme of a route that takes no requests: programs with a client emit its deliveries.
INTERNAL: Final = "internal"
_DEFINITION_BYTES_MAX: Final = 256 << 10
_BODY_BYTES_MAX: Final = 16 << 20
_TOLERANCE_S_MAX: Final = 24 * 3600
_KEEP_DAYS_MAX: Final = 366
_DELAY_S_MAX: Final = 366 * 24 * 3600.0
#: Fields of a rule for the run that its task begins, not for a run that exists.
_STARTS: Final = (
    "input",
    "priority",
    "max_attempts",
    "timeout_s",
    "delay_s",
    "tenant",
    "owner",
    "run_at",
    "metadata",
    "limits",
)


class RouteRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rule that makes a job of some deliveries, of a task or a run of a stored graph, or sends a run a signal.

    A source is a pointer into the body, a constant, or one of `{"at": pointer}`, `{"header": name}` and
    `{"value": any JSON}`. A value that the delivery lacks, or that does not fit its field, is left out.
    """

    name: str  #: unique among the route's rules; it is part of the job's id
    task: str = ""  #: the task of the job; "": a graph
    when: dict[str, Any] = {}  #: the condition; empty: every delivery
    input: Annotated[
        dict[str, Any], PAYLOADS
    ] = {}  #: the job's parameters: pointers into the body, or constants
    queue: str = ""  #: the job's queue; "": the task's own queue
    priority: Priority | None = None  #: none: as in the task
    max_attempts: Whole = 0  #: 0: as in the task
    timeout_s: float | None = None  #: time limit of one attempt; none: as in the task
    delay_s: float = 0.0  #: seconds before the job is queued
    graph: str = ""  #: the stored graph to run with the input, in its newest version; "": a task
    id: Any = None  #: source of the job's id, whose job is not made again if it exists; none: a derived id
    tenant: Any = None  #: source of the job's tenant
    #: Source of the job's owner, such as `person:17`, under whose key its values are sealed; none: as in the task. If
    #: the delivery lacks it, the owner is `ledger:default`.
    owner: Any = None
    run_at: Any = None  #: source of the earliest start, a moment with a time zone
    metadata: dict[str, Any] = {}  #: sources of words about the job, by their keys
    limits: dict[str, Any] = {}  #: limits beside those of the task: sources of their keys; "": without a key
    signal: str = ""  #: the signal for the run of this `id`; a `task` begins that run if it is missing
    value: Annotated[Any, PAYLOAD] = (
        None  #: source of the signal's value, or `{"object": sources by their names}`; none: the whole body
    )
    signal_id: Any = (
        None  #: source of the signal's id, which counts once for a run; none: derived from the delivery
    )

    @property
    def sources(self) -> list[Any]:
        """All sources, which look at a delivery beside the condition."""
        own = (
            each
            for each in (self.id, self.tenant, self.owner, self.run_at, self.signal_id)
            if each is not None
        )
        said = (self.value,) if self.composed is None else self.composed.values()
        return [*self.input.values(), *own, *self.metadata.values(), *self.limits.values(), *said]

    @property
    def composed(self) -> dict[str, Any] | None:
        """The sources of the members of the signal's value; None if one source gives the whole value."""
        if not isinstance(self.value, dict) or "object" not in self.value:
            return None
        return cast("dict[str, dict[str, Any]]", self.value)["object"]

    @property
    def target(self) -> str:
        """The task, graph or signal, for a person."""
        if self.signal:
            return f"signal {self.signal} to {self.task}" if self.task else f"signal {self.signal}"
        return self.task or f"graph {self.graph}"


class RouteDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a route does."""

    scheme: (
        str | Scheme
    )  #: github, stripe, slack, standard, gitlab-token, bearer or internal; or one of its own
    secrets: tuple[str, ...] = ()  #: references to the valid secrets, `env:NAME` or `file:PATH`, at most 8
    rules: tuple[RouteRule, ...] = ()  #: each rule that matches makes a job
    tolerance_s: Whole = (
        300  #: most seconds from a request's time to now; an equal body is a repeat for twice as long
    )
    body_bytes_max: Whole = 1 << 20  #: larger requests are refused
    keep_bodies_days: Whole = 7  #: days for which the bytes of a request are kept; 0: they are not

    @property
    def signature(self) -> Scheme | None:
        """The scheme that verifies its requests; None: it takes no requests."""
        return PRESETS.get(self.scheme) if isinstance(self.scheme, str) else self.scheme

    @property
    def scheme_name(self) -> str:
        """The name of its scheme: that of a provider, or `own`."""
        return self.scheme if isinstance(self.scheme, str) else "own"


def headers_kept(definition: RouteDefinition) -> set[str]:
    """Return the names, in lower case, of the headers that rules look at, which become part of `received`."""
    found = {"content-type"}
    for rule in definition.rules:
        found |= headers_named(rule.when, rule.sources)
    return found - _secret_headers(definition)


def _secret_headers(definition: RouteDefinition) -> frozenset[str]:
    scheme = definition.signature
    own = frozenset[str]() if scheme is None else frozenset({scheme.header.lower()})
    return SECRET_HEADERS | own


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a route."""

    route: str  #: its name, the last word of its address `/in/<route>`
    reason: str = ""  #: why, as the person said


class RouteSet(_Fact, frozen=True, kw_only=True, tag="set", gc=False):
    """From here on the route does what this event says, whatever it did before."""

    definition: RouteDefinition  #: what it does
    source: Source = "operator"  #: author: the application's code, or a person, whom code never overrides


class RouteRemoved(_Fact, frozen=True, kw_only=True, tag="removed", gc=False):
    """The route takes no request any more. Its deliveries stay, and the name may be set again."""


RouteEvent = RouteSet | RouteRemoved


class Route(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A route after its newest event."""

    name: str
    definition: RouteDefinition | None  #: None: it was removed
    at: Moment
    by: str
    reason: str = ""
    sequence: int  #: stream sequence of that event
    source: Source = "operator"  #: author of the definition


def evolve(_before: Route | None, event: RouteEvent, stream_sequence: int) -> Route:
    """Return the route after `event`, whatever came before it."""
    return Route(
        name=event.route,
        definition=event.definition if isinstance(event, RouteSet) else None,
        at=event.at,
        by=event.by,
        reason=event.reason,
        sequence=stream_sequence,
        source=event.source if isinstance(event, RouteSet) else "operator",
    )


class SetRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Define a route, or replace its definition."""

    definition: RouteDefinition
    reason: str = ""
    source: Source = "operator"

    def __post_init__(self) -> None:
        """Refuse a definition that cannot work. Raises: InvalidInputError, InvalidTokenError."""
        check_definition(self.definition)


RouteCommand = SetRoute | Remove


def decide(name: str, before: Route | None, command: RouteCommand, stamp: Stamp) -> RouteEvent | None:
    """Return the event that follows from a command; None: nothing would change.

    It is also None if code would change a person's definition.

    Raises: RouteNotFoundError for the removal of a missing route; AccessDeniedError, also for rules by a principal
    that may not enqueue.
    """
    if stamp.authority is not None:
        stamp.authority.require_everywhere("manage")
        if isinstance(command, SetRoute) and command.definition.rules:
            stamp.authority.require("queue")
    fact: dict[str, Any] = {"route": name, **stamp.fact}
    definition = None if before is None else before.definition
    match command:
        case SetRoute():
            if before is not None and definition is not None:
                is_same = definition == command.definition and before.source == command.source
                if is_same or (command.source == "code" and before.source == "operator"):
                    return None
            if any(rule.owner is not None for rule in command.definition.rules):
                stamp.require_form(SEALED_FORM, f"the owner in a rule of route {name}")
            return RouteSet(
                **fact, definition=command.definition, reason=command.reason, source=command.source
            )
        case Remove():
            if definition is None:
                raise RouteNotFoundError(name)
            return RouteRemoved(**fact, reason=command.reason)


def check_definition(definition: RouteDefinition) -> None:
    """Refuse a definition that cannot work.

    Raises: InvalidInputError, which names the rule if it is about one; InvalidTokenError.
    """
    _check_scheme(definition)
    for field, least, most in (
        ("tolerance_s", 1, _TOLERANCE_S_MAX),
        ("body_bytes_max", 1, _BODY_BYTES_MAX),
        ("keep_bodies_days", 0, _KEEP_DAYS_MAX),
    ):
        value = getattr(definition, field)
        if not least <= value <= most:
            raise InvalidInputError(f"{field} must be a whole number from {least} to {most:,}, got {value:,}")
    rules = definition.rules
    if len(rules) > RULES_MAX:
        raise InvalidInputError(
            f"the route has {len(rules):,} rules: at most {RULES_MAX} can make jobs at once"
        )
    events = len(rules) + sum(bool(rule.signal and rule.task) for rule in rules)
    if events > RULES_MAX:
        raise InvalidInputError(
            f"the rules may add {events:,} events, two for a signal with a task: at most {RULES_MAX} go into one batch"
        )
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            raise InvalidInputError(f"two rules are called {rule.name}: give each a name of its own")
        seen.add(check_token("rule", rule.name))
        try:
            _check_rule(rule, _secret_headers(definition))
        except InvalidError as error:
            raise InvalidInputError(f"rule {rule.name}: {error}") from None
    size = len(encode_value(definition, what="route"))
    if size > _DEFINITION_BYTES_MAX:
        raise InvalidInputError(f"the route has {size:,} bytes: at most {_DEFINITION_BYTES_MAX:,} are kept")


def _check_scheme(definition: RouteDefinition) -> None:
    scheme, secrets = definition.scheme, definition.secrets
    if isinstance(scheme, str) and scheme not in PRESETS and scheme != INTERNAL:
        raise InvalidInputError(
            f"there is no scheme {ascii(scheme)[:80]}: give {', '.join(PRESETS)} or {INTERNAL}, or describe one"
        )
    if isinstance(scheme, Scheme):
        check_scheme(scheme)
    for reference in secrets:
        check_reference("a secret of the route", reference)
    if scheme == INTERNAL and secrets:
        raise InvalidInputError("an internal route takes no requests: leave its secrets out")
    if scheme != INTERNAL and not 0 < len(secrets) <= SECRETS_MAX:
        raise InvalidInputError(f"the route has {len(secrets)} secrets: give 1 to {SECRETS_MAX}")


def _check_rule(rule: RouteRule, secret_headers: frozenset[str]) -> None:
    _check_signal(rule, secret_headers)
    if bool(rule.task) == bool(rule.graph) and not rule.signal:
        raise InvalidInputError("say what it runs: give either task or graph")
    if rule.graph:
        _check_of_graph(rule)
    elif rule.task:
        check_users_task(rule.task)
    if rule.queue:
        check_users_queue(rule.queue)
    check_whole("max_attempts", rule.max_attempts)
    check_finite("timeout_s", rule.timeout_s)
    check_finite("delay_s", rule.delay_s)
    if rule.timeout_s is not None and rule.timeout_s <= 0:
        raise InvalidInputError("timeout_s must be above 0")
    if not 0 <= rule.delay_s <= _DELAY_S_MAX:
        raise InvalidInputError(f"delay_s must be from 0 to {_DELAY_S_MAX:,.0f}")
    check_condition(rule.when, secret_headers=secret_headers)
    check_input(rule.input, secret_headers=secret_headers)
    _check_order(rule, secret_headers)


def _check_signal(rule: RouteRule, secret_headers: frozenset[str]) -> None:
    """Refuse a signal that no run can get, and its fields without it. Raises: InvalidInputError, InvalidTokenError."""
    if not rule.signal:
        if rule.value is not None or rule.signal_id is not None:
            raise InvalidInputError("value and signal_id are those of a signal: name it by signal")
        return
    check_token("signal", rule.signal)
    if rule.id is None:
        raise InvalidInputError(f"say which run is sent signal {rule.signal}: give the source of its id")
    if rule.graph:
        raise InvalidInputError(
            "a run of a graph waits for no signals: give a task whose runs do, or leave it out"
        )
    if not rule.task and any(getattr(rule, name) not in _NOT_SAID for name in _STARTS):
        raise InvalidInputError(
            f"without a task signal {rule.signal} begins no run: leave out {', '.join(_STARTS)}, or give the task"
        )
    try:
        _check_value(rule, secret_headers)
    except InvalidInputError as error:
        raise InvalidInputError(f"value: {error}") from None


def _check_value(rule: RouteRule, secret_headers: frozenset[str]) -> None:
    if rule.composed is None:
        check_source(rule.value, secret_headers)
        return
    if len(rule.value) > 1:
        raise InvalidInputError("object stands alone: give the members of the value within it")
    check_input(rule.composed, secret_headers=secret_headers)


#: Default values of the fields of a rule.
_NOT_SAID: Final[tuple[Any, ...]] = (None, 0, {})


def _check_of_graph(rule: RouteRule) -> None:
    check_token("graph", rule.graph)
    if rule.queue or rule.priority or rule.max_attempts or rule.timeout_s is not None or rule.limits:
        raise InvalidInputError(
            "the nodes of a graph say how their jobs are tried: leave queue, priority, max_attempts, timeout_s and limits out"
        )


def _check_order(rule: RouteRule, secret_headers: frozenset[str]) -> None:
    """Refuse invalid sources, and constants that do not fit their field. Raises: InvalidInputError."""
    if rule.delay_s and rule.run_at is not None:
        raise InvalidInputError("give delay_s or run_at, not both")
    for field, source, fits in _order_sources(rule):
        try:
            check_source(source, secret_headers)
            if is_constant(source):
                fits(_text(source_value(source, RuleInput())))
        except InvalidInputError as error:
            raise InvalidInputError(f"{field}: {error}") from None
    checked_metadata(dict.fromkeys(rule.metadata, ""))
    checked_limits(list(rule.limits))


def _order_sources(rule: RouteRule) -> Iterator[tuple[str, Any, Callable[[str], Any]]]:
    """Yield the sources of a job's order: the field, the source, and the function that reads or refuses its text."""
    for field, fits in _FITS.items():
        if (source := getattr(rule, field)) is not None:
            yield field, source, fits
    for key, source in rule.metadata.items():
        yield f"metadata, {key}", source, functools.partial(_word_of, key)
    for name, source in rule.limits.items():
        yield f"limits, {name}", source, functools.partial(_limit_of, name)


def order_for(rule: RouteRule, delivered: RuleInput) -> dict[str, Any]:
    """Return the options of a rule's job, by name, that a delivery has and that fit."""
    found: dict[str, Any] = {}
    for field, source, fits in _order_sources(rule):
        of, _, key = field.partition(", ")
        try:
            value = fits(_text(source_value(source, delivered)))
            if field == "id" and not rule.signal:  # a signal may go to any run
                check_unreserved(value)
        except InvalidError:
            # A job without a value for the limit's key waits for the bare limit; a job without one for the owner is
            # sealed, too.
            value = key if of == "limits" else OWNER_DEFAULT if field == "owner" else None
        if value is None:
            continue
        if of == "metadata":
            found.setdefault(of, {})[key] = value
        elif of == "limits":
            found[of] = (*found.get(of, ()), value)
        else:
            found[of] = value
    return found


def value_for(rule: RouteRule, delivered: RuleInput) -> Any:
    """Return the value of a rule's signal in a delivery; `NOTHING` if the delivery lacks it."""
    if rule.composed is not None:
        return build_input(rule.composed, delivered)
    return source_value("/" if rule.value is None else rule.value, delivered)


def _text(value: object) -> str:
    """Return a value as a text: whole numbers are written out, as ids and times of providers often are numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidInputError("it is no text and no whole number")
    return value


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(f"{ascii(text)[:60]} is no time: write it as 2026-01-31T08:00:00Z") from None
    if found.utcoffset() is None or not TIME_MIN <= found <= TIME_MAX:
        raise InvalidInputError(
            f"{ascii(text)[:60]} has no time zone, or lies outside of the years 1970 to 9999"
        )
    return found.astimezone(UTC)


def _word_of(key: str, text: str) -> str:
    return checked_metadata({key: text})[key]


def _limit_of(name: str, key: str) -> str:
    return checked_limits([joined(name, key) if key else name])[0]


def _signal_id(text: str) -> str:
    return GiveSignal(name="any", id=text).id


_FITS: Final[dict[str, Callable[[str], Any]]] = {
    "signal_id": _signal_id,
    "id": functools.partial(check_token, "job id"),
    "tenant": functools.partial(check_word, "tenant"),
    "owner": check_owner,
    "run_at": _moment,
}


def _words(event: RouteEvent) -> str:
    why = f": {event.reason}" if event.reason else ""
    if isinstance(event, RouteRemoved):
        return event.reason
    rules = len(event.definition.rules)
    return f"{event.definition.scheme_name}, {rules:,} rule{'' if rules == 1 else 's'}{why}"


def _check(before: Route | None, event: RouteEvent, _stream_sequence: int) -> Iterator[Broken]:
    """Check that the definition could be set, and that only a set route is removed."""
    if isinstance(event, RouteRemoved):
        if before is None or before.definition is None:
            yield "transition", f"`removed` was accepted, although route {event.route} was not there"
        return
    try:
        check_definition(event.definition)
    except InvalidError as error:
        yield "transition", f"`set` was accepted, although {error}"


ROUTE: Aggregate[RouteEvent, Route] = Aggregate(
    "route",
    ("route",),
    RouteEvent,
    state=Route,
    evolve=evolve,
    words=_words,
    check=_check,
    removed=RouteRemoved,
)
