"""What a person does to routes and sees of them: set, show and remove one, test it, see and retry what was delivered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, cast

import msgspec

from jobledger.admin.events.changes import Change, state_and_changes
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.hooks.delivery import DELIVERY, DeliveryEvent, MatchedJob
from jobledger.ledger.model.hooks.errors import DeliveryNotFoundError, RouteNotFoundError
from jobledger.ledger.model.hooks.pointers import NOTHING
from jobledger.ledger.model.hooks.route import ROUTE, Route, RouteDefinition, RouteRule
from jobledger.ledger.model.hooks.schemes import Scheme
from jobledger.ledger.model.log import events_among
from jobledger.ledger.model.rights.marks import PAYLOAD, PAYLOADS, SAID_HEADERS
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.webhooks.receiver import Arrival, Outcome

_TASKS_LOOKED_AT: Final = 100


class ChangedRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A route after an act."""

    route: str
    definition: RouteDefinition | None  #: None: it takes nothing any more
    changed: bool  #: False: it was so already
    sequence: int  #: stream sequence of the event that records it; 0: it is a plan


class ShownRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A route as it is, and how it became so."""

    route: str
    address: str  #: the path to which requests are sent; "" for one that takes none
    definition: RouteDefinition | None  #: None: it was removed
    by: str
    reason: str
    sequence: int  #: stream sequence of its newest event
    history: tuple[Change, ...]  #: the newest first, at most twenty
    source: str = "operator"  #: `code`: a process declared it; `operator`: a person set it


class DeliverySaid(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a delivery's chain: how it was received, or processed again."""

    stream_sequence: int
    at: Moment  #: by the server's clock
    event: str  #: `received` or `retried`
    by: str
    number: int  #: how often it had been processed by then, from 1
    definition: int  #: stream sequence of the route's `set` whose rules were matched
    matched: tuple[MatchedJob, ...]  #: the jobs that it made
    reason: str = ""


class ShownDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery, read from its chain."""

    route: str
    delivery: str
    given: str  #: the provider's id, if `delivery` is another
    scheme: str  #: the scheme of its proof; "": it was emitted
    secret: int  #: the number of the secret that fitted; 0: none was asked for
    sha256: str  #: digest of its body
    size_bytes: int
    kept_until: Moment | None  #: how long its body is kept; none: it is not
    headers: Annotated[dict[str, str], SAID_HEADERS]  #: headers that rules look at
    history: tuple[DeliverySaid, ...]  #: the oldest first


class RuleTried(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that would make a job of a delivery."""

    rule: str
    task: str  #: "": a graph
    queue: str  #: "": the task's own
    input: Annotated[dict[str, Any], PAYLOADS]
    graph: str = ""  #: the stored graph that would be run; "": a task
    order: dict[str, Any] = {}  #: fields of the job's order from the delivery, such as its id and tenant
    signal: str = ""  #: the signal that the run with the id of `order` would be sent; "": none
    value: Annotated[Any, PAYLOAD] = None  #: the signal's value; none also if the delivery lacks it


class RouteTried(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs would be made; none was."""

    items: list[RuleTried]


class EmittedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """What became of data that was emitted to a route."""

    route: str
    delivery: str
    jobs: tuple[MatchedJob, ...]  #: made by it; for a repeat, those that were made the first time
    repeated: bool  #: whether the route had a delivery of that id already
    sequence: int  #: stream sequence of the event that records it; 0: it is a repeat


class ProcessedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a delivery that was processed."""

    route: str
    delivery: str
    jobs: tuple[MatchedJob, ...]
    sequence: int  #: stream sequence of the event that says so


def definition_of(given: object) -> RouteDefinition:
    """Return a definition as a person writes it, in JSON or TOML. Raises: InvalidInputError, also for unknown fields."""
    try:
        definition = msgspec.convert(given, RouteDefinition)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"the definition of the route is not as it must be: {error}") from error
    fields = cast("Mapping[str, Any]", given)
    _refuse_unknown("the route", fields, RouteDefinition)
    for rule in cast("Iterable[Mapping[str, Any]]", fields.get("rules", ())):
        _refuse_unknown(f"rule {rule['name']}", rule, RouteRule)
    if isinstance(definition.scheme, Scheme):
        _refuse_unknown("the scheme", fields["scheme"], Scheme)
    return definition


def _refuse_unknown(what: str, given: Mapping[str, Any], kind: type[msgspec.Struct]) -> None:
    for name in given.keys() - set(kind.__struct_fields__):
        known = ", ".join(kind.__struct_fields__)
        raise InvalidInputError(f"{what} has no field {ascii(name)[:80]}: known are {known}")


async def set_route(
    ledger: Ledger,
    name: str,
    definition: RouteDefinition,
    *,
    reason: str = "",
    by: str,
    plan: bool = False,
) -> ChangedRoute:
    """Set a route's definition, whatever it was before. `plan`: change nothing.

    Raises: InvalidTokenError, InvalidInputError, LedgerFullError, UnreachableError.
    """
    done = await ledger.routes.set(name, definition, reason=reason, by=by, plan=plan)
    return _changed(done.state, changed=done.changed)


async def tasks_unheard_of(ledger: Ledger, definition: RouteDefinition) -> list[str]:
    """Return the tasks of rules without a queue that no worker ever announced: their jobs would wait in `default`.

    Looks at the first hundred. Raises: UnreachableError.
    """
    names = dict.fromkeys(rule.task for rule in definition.rules if rule.task and not rule.queue)
    return [name for name in list(names)[:_TASKS_LOOKED_AT] if await ledger.find_task(name) is None]


async def remove_route(
    ledger: Ledger, name: str, *, reason: str = "", by: str, plan: bool = False
) -> ChangedRoute:
    """Take a route away; what came in stays. Raises: RouteNotFoundError, InvalidTokenError, UnreachableError."""
    done = await ledger.routes.remove(name, reason=reason, by=by, plan=plan)
    return _changed(done.state, changed=done.changed)


def _changed(route: Route, *, changed: bool) -> ChangedRoute:
    return ChangedRoute(
        route=route.name, definition=route.definition, changed=changed, sequence=route.sequence
    )


async def show_route(ledger: Ledger, name: str) -> ShownRoute:
    """Return a route as its chain says now.

    Raises: InvalidTokenError, RouteNotFoundError if it was never set, UnreachableError.
    """
    check_token("route", name)
    missing = RouteNotFoundError(name)
    route, history = await state_and_changes(ledger.log, ROUTE, name, missing=missing)
    definition = route.definition
    takes = definition is not None and definition.signature is not None
    return ShownRoute(
        route=name,
        address=f"/in/{name}" if takes else "",
        definition=definition,
        by=route.by,
        reason=route.reason,
        sequence=route.sequence,
        history=history,
        source=route.source,
    )


async def show_delivery(ledger: Ledger, route: str, delivery: str) -> ShownDelivery:
    """Return a delivery with each time it was processed.

    Raises: InvalidTokenError, DeliveryNotFoundError, UnreachableError.
    """
    chain = DELIVERY.chain(ledger.names, check_token("route", route), check_token("delivery", delivery))
    newest: DeliveryEvent | None = None
    said: list[DeliverySaid] = []
    async with contextlib.aclosing(ledger.log.read_messages(subject=chain)) as batches:
        async for batch in batches:
            for message in events_among(batch):
                newest = DELIVERY.decode(message)
                said.append(
                    DeliverySaid(
                        stream_sequence=message.stream_sequence,
                        at=message.stored_at,
                        event=DELIVERY.type_of(newest),
                        by=newest.by,
                        number=newest.number,
                        definition=newest.definition,
                        matched=newest.matched,
                        reason=getattr(newest, "reason", ""),
                    )
                )
    if newest is None:
        raise DeliveryNotFoundError(route, delivery)
    return ShownDelivery(
        route=route,
        delivery=delivery,
        given=newest.given,
        scheme=newest.scheme,
        secret=newest.secret,
        sha256=newest.sha256,
        size_bytes=newest.size_bytes,
        kept_until=newest.kept_until,
        headers=dict(newest.headers),
        history=tuple(said),
    )


async def try_route(ledger: Ledger, route: str, arrival: Arrival) -> RouteTried:
    """Return what a route would make of a delivery; nothing is changed.

    Raises: RouteNotFoundError, InvalidTokenError, UnreachableError.
    """
    found = [
        RuleTried(
            rule=match.rule.name,
            task=match.rule.task,
            queue=match.rule.queue,
            input=match.input,
            graph=match.rule.graph,
            order=match.said,
            signal=match.rule.signal,
            value=None if match.value is NOTHING else match.value,
        )
        for match in await ledger.routes.test(route, arrival)
    ]
    return RouteTried(items=found)


async def emit_delivery(
    ledger: Ledger, route: str, data: Any, *, delivery_id: str | None = None, by: str
) -> EmittedDelivery:
    """Hand data to a route as a delivery. Raises: as `Ledger.emit`."""
    done = await ledger.emit(route, data, by=by, id=delivery_id)
    return EmittedDelivery(
        route=done.route,
        delivery=done.delivery,
        jobs=done.matched,
        repeated=done.repeated,
        sequence=done.sequence,
    )


async def retry_delivery(
    ledger: Ledger, route: str, delivery: str, *, reason: str = "", by: str
) -> ProcessedDelivery:
    """Have a delivery processed once more, by the rules as they are now; its jobs have ids of their own.

    Raises: RouteNotFoundError, DeliveryNotFoundError, InvalidTokenError, PayloadMissingError once its body is gone,
        LedgerFullError, UnreachableError.
    """
    return processed(await ledger.routes.retry(route, delivery, reason=reason, by=by))


def processed(outcome: Outcome) -> ProcessedDelivery:
    """Return what became of a delivery, as it is shown."""
    return ProcessedDelivery(
        route=outcome.route, delivery=outcome.delivery, jobs=outcome.matched, sequence=outcome.sequence
    )
