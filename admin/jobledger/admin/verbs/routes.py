"""Route verbs: show and remove a route, and process once more what was delivered to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from jobledger.admin.hooks.routes import (
    ChangedRoute,
    ProcessedDelivery,
    ShownRoute,
    remove_route,
    retry_delivery,
    show_route,
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
    told_changes,
    verb,
)
from jobledger.ledger.model.hooks.delivery import made_words
from jobledger.ledger.model.hooks.references import reference_words
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule

Name = Annotated[str, option("The route's name, the last word of its address /in/NAME.", "NAME")]
_WRITES: Final = ("LEDGER_BUSY", "LEDGER_FULL")


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
        if found.jobs:
            yield Table(("rule", "job"), [(job.rule, job.words) for job in found.jobs])
        made = made_words(found.jobs) if found.jobs else "no rule holds"
        yield f"delivery {found.delivery} was processed once more: {made}"

    def page_after(self, found: ProcessedDelivery) -> str:
        """Return the address of the one job that it made, else of what came in to the route."""
        if len(found.jobs) == 1:
            return self.declaration.filled("/jobs/{queue}/{job}", self, found.jobs[0])
        return super().page_after(found)
