"""Route verbs: show, try and remove a route, hand it data, and process once more what was delivered to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from jobledger.admin.hooks.routes import (
    ChangedRoute,
    EmittedDelivery,
    ProcessedDelivery,
    RouteTried,
    RuleTried,
    ShownRoute,
    emit_delivery,
    remove_route,
    retry_delivery,
    show_route,
    try_route,
)
from jobledger.admin.verbs.kit import (
    Facts,
    Heading,
    Place,
    Plan,
    Reason,
    Table,
    Told,
    Verb,
    option,
    shortened,
    told_changes,
    verb,
)
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.hooks.delivery import MatchedJob, made_words
from jobledger.ledger.model.hooks.references import reference_words
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.webhooks.receiver import Arrival

Name = Annotated[str, option("The route's name, the last word of its address /in/NAME.", "NAME")]
_WRITES: Final = ("LEDGER_BUSY", "LEDGER_FULL")
_BODY_BYTES_MAX: Final = 16 << 20
_HEADERS_MAX: Final = 100
_INPUT_SHOWN_MAX: Final = 200


@verb(
    "routes show",
    "GET /v1/routes/{route}",
    permission="view",
    summary="Show a route",
    problems=("NOT_FOUND",),
)
class ShowRoute(Verb[ShownRoute], frozen=True, kw_only=True):
    """Show a route: how its requests are proven, its rules, who set it and when."""

    route: Name

    async def do(self, place: Place) -> ShownRoute:
        """Read its chain. Raises: as `show_route`."""
        return await show_route(place.ledger, self.route)

    def say(self, found: ShownRoute) -> Iterator[Told]:
        """Yield what is known of it, its rules, and its changes."""
        definition = found.definition
        yield Heading(f"route {found.route}")
        if definition is None:
            facts, who = [], "removed by"
        else:
            facts = _facts(found.address, definition)
            who = "declared by the code of" if found.source == "code" else "set by"
        yield Facts(
            [*facts, (who, found.by), ("since", found.history[0].at), ("reason", found.reason or None)]
        )
        if definition is not None and definition.rules:
            yield Table(("rule", "does", "queue", "when"), list(map(_cells, definition.rules)), title="rules")
        yield from told_changes(found.history)


def _facts(address: str, definition: RouteDefinition) -> list[tuple[str, str | None]]:
    return [
        ("address", address or "none: programs emit to it"),
        ("scheme", definition.scheme_name),
        ("secrets", ", ".join(map(reference_words, definition.secrets)) or None),
        ("tolerance", f"{definition.tolerance_s:,} s"),
        ("largest body", f"{definition.body_bytes_max:,} bytes"),
        ("bodies kept", f"{definition.keep_bodies_days:,} days"),
    ]


def _cells(rule: RouteRule) -> tuple[str, ...]:
    when = msgspec.json.encode(rule.when).decode() if rule.when else "always"
    return (rule.name, rule.target, rule.queue or "its own", when)


@verb(
    "routes remove",
    "DELETE /v1/routes/{route}",
    permission="manage",
    summary="Take a route away",
    problems=("NOT_FOUND", *_WRITES),
)
class RemoveRoute(Verb[ChangedRoute], frozen=True, kw_only=True):
    """Take a route away: requests to it are refused from then on. What came in stays."""

    route: Name
    reason: Reason = ""
    plan: Plan = False

    async def do(self, place: Place) -> ChangedRoute:
        """Take it away. Raises: as `remove_route`."""
        return await remove_route(place.ledger, self.route, reason=self.reason, by=place.by, plan=self.plan)

    def say(self, found: ChangedRoute) -> Iterator[Told]:
        """Say that it is removed."""
        yield f"route {found.route} {'would be' if self.plan else 'is'} removed"
        if self.plan:
            yield "nothing was changed"


@verb(
    "routes retry",
    "POST /v1/routes/{route}/deliveries/{delivery}/retry",
    permission="manage",
    summary="Process a delivery once more",
    problems=("NOT_FOUND", "PAYLOAD_GONE", *_WRITES),
    form="/webhooks/in/{route}/{delivery}/retry",
    then="/webhooks?route={route}",
)
class RetryDelivery(Verb[ProcessedDelivery], frozen=True, kw_only=True):
    """Process a delivery once more, by the rules as they are now: its jobs have ids of their own."""

    route: Name
    delivery: Annotated[str, option("As `routes deliveries` shows it.", "DELIVERY")]
    reason: Reason = ""

    async def do(self, place: Place) -> ProcessedDelivery:
        """Process it. Raises: as `retry_delivery`."""
        return await retry_delivery(place.ledger, self.route, self.delivery, reason=self.reason, by=place.by)

    def say(self, found: ProcessedDelivery) -> Iterator[Told]:
        """Say which jobs it made."""
        yield from _jobs(found.jobs)
        made = made_words(found.jobs) if found.jobs else "no rule holds"
        yield f"delivery {found.delivery} was processed once more: {made}"

    def page_after(self, found: ProcessedDelivery) -> str:
        """Return the address of the one job that it made, else of the route's deliveries."""
        if len(found.jobs) == 1:
            return self.declaration.filled("/jobs/{queue}/{job}", self, found.jobs[0])
        return super().page_after(found)


@verb(
    "routes test",
    "POST /v1/routes/{route}/test",
    permission="manage",
    summary="Tell what a route would make of a delivery",
    problems=("NOT_FOUND", "PAYLOAD_GONE"),
    is_list=True,
)
class TestRoute(Verb[RouteTried], frozen=True, kw_only=True):
    """Show which jobs a route would make of a delivery or of a body, without a signature and without making any."""

    route: Name
    delivery: Annotated[
        str | None, option("A delivery that came in, as it was kept.", "DELIVERY", flag="--id")
    ] = None
    body: Annotated[
        Annotated[bytes, msgspec.Meta(max_length=_BODY_BYTES_MAX)] | None,
        option("A body, which HTTP has in base64.", file="--body"),
    ] = None
    headers: Annotated[
        dict[str, str],
        option(
            "A header beside the body; may be given again.",
            "NAME=VALUE",
            flag="--header",
            max_length=_HEADERS_MAX,
        ),
    ] = msgspec.field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        """Refuse what names no delivery, or two. Raises: InvalidInputError."""
        if (self.delivery is None) == (self.body is None) or (self.headers and self.body is None):
            raise InvalidInputError("say what to try: a delivery that was kept, or a body with its headers")

    async def do(self, place: Place) -> RouteTried:
        """Try it. Raises: as `try_route`; DeliveryNotFoundError, PayloadMissingError."""
        if self.body is None:
            arrival = await place.ledger.routes.stored(self.route, self.delivery or "")
        else:
            headers = {name.lower(): value for name, value in self.headers.items()}
            arrival = Arrival(body=self.body, headers=headers)
        return await try_route(place.ledger, self.route, arrival)

    def say(self, found: RouteTried) -> Iterator[Told]:
        """Yield a line for each rule that holds."""
        if not found.items:
            yield "no rule holds: it would be recorded, and make no job"
            return
        yield Table(("rule", "task", "queue", "input"), list(map(_tried, found.items)))
        jobs = sum(not each.signal for each in found.items)
        left = len(found.items) - jobs
        signals = f" and send {left:,} signal(s)" if left else ""
        yield f"it would make {jobs:,} job{'' if jobs == 1 else 's'}{signals}; nothing was made"


def _tried(each: RuleTried) -> tuple[str, str, str, str]:
    text = msgspec.json.encode(each.value if each.signal else each.input).decode()
    what = each.task or f"graph {each.graph}"
    if each.signal:
        what = f"signal {each.signal} to {each.order.get('id', 'no run')}"
    return each.rule, what, each.queue or "its own", shortened(text, _INPUT_SHOWN_MAX)


@verb(
    "routes emit",
    "POST /v1/routes/{route}/emit",
    permission="queue",
    summary="Hand data to a route",
    problems=("NOT_FOUND", "JOB_INVALID_INPUT", *_WRITES),
)
class EmitToRoute(Verb[EmittedDelivery], frozen=True, kw_only=True):
    """Hand data to a route as a delivery: it is recorded with the jobs that the rules make, or nothing is.

    The caller must be allowed to add jobs anywhere, since the rules choose the jobs.
    """

    route: Name
    data: Annotated[Any, option("The data, any JSON.", "JSON", file="--body")]
    id: Annotated[
        str | None, option("Its id: emitted again, it makes nothing. (default: a new one)", "ID")
    ] = None

    async def do(self, place: Place) -> EmittedDelivery:
        """Hand it over. Raises: as `emit_delivery`."""
        return await emit_delivery(place.ledger, self.route, self.data, delivery_id=self.id, by=place.by)

    def say(self, found: EmittedDelivery) -> Iterator[Told]:
        """Say which jobs it made."""
        yield from _jobs(found.jobs)
        yield (
            f"delivery {found.delivery} {'was there already, with' if found.repeated else 'made'} "
            f"{made_words(found.jobs)}"
        )


def _jobs(made: Sequence[MatchedJob]) -> Iterator[Table]:
    if made:
        yield Table(("rule", "job"), [(job.rule, job.words) for job in made])
