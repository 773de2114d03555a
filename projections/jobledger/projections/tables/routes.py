"""The tables of the routes that are set, and of all deliveries."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.hooks.delivery import DELIVERY, MatchedJob
from jobledger.ledger.model.hooks.route import ROUTE, Route, RouteDefinition
from jobledger.ledger.model.rights.marks import JsonOf
from jobledger.ledger.model.times import time_text
from jobledger.projections.table import (
    AggregateTables,
    CacheLimits,
    Index,
    Row,
    Rows,
    Table,
    integer,
    named_tables,
    text,
    timestamp,
)

ROUTES: Final = Table(
    name="routes",
    row="[route](webhooks.md#in) that is set",
    columns={
        "name": text("the route's name, the last word of its address"),
        "scheme": text("how its requests are proven"),
        "rules": integer("how many rules it has"),
        "definition": text("all that it was told, as JSON; of secrets where they are"),
        "set_by": text("who said so"),
        "set_at": timestamp("when, by the server's time"),
        "reason": text("why, as the person said; or empty"),
        "last_sequence": integer("the stream sequence of the `set` that says so"),
    },
    key=("name",),
    sequence="last_sequence",
)
DELIVERIES: Final = Table(
    name="deliveries",
    row="[delivery](webhooks.md#in) to a route: what proved it, and the jobs that it made",
    columns={
        "route": text("the route it came to"),
        "name": text("the provider's id where that can be a word of a subject, else a hash of it"),
        "given": text("the provider's id, where the name is another; or empty"),
        "number": integer("how often it was processed"),
        "scheme": text("how it was proven; empty: it was emitted"),
        "secret": integer("the number of the secret that fitted; 0: none was asked for"),
        "sha256": text("of its body"),
        "size_bytes": integer("of its body"),
        "kept_until": timestamp("how long its body is kept; NULL: it is not"),
        "definition": integer("the stream sequence of the route's `set` whose rules were matched last"),
        "jobs": integer("how many jobs it made when it was processed last"),
        "matched": text("these jobs, as JSON: rule, queue, job"),
        "received_at": timestamp("when it was processed last, by the server's time"),
        "received_by": text("the process or person that recorded it then"),
        "last_sequence": integer("the stream sequence of the event that says so"),
    },
    key=("route", "name"),
    indexes=(Index(("route", "last_sequence")), Index(("last_sequence",))),
    sequence="last_sequence",
)
_PUT_DELIVERY: Final = DELIVERIES.putting()
_ROUTE_COLUMNS: Final = ", ".join(ROUTES.columns)
_DELIVERY_COLUMNS: Final = ", ".join(DELIVERIES.columns)

Select = Callable[[str, Sequence[object]], Sequence[Sequence[Any]]]


class RouteRow(msgspec.Struct, frozen=True, kw_only=True):
    """A route that is set. Times are ISO-8601 text in UTC."""

    name: str
    scheme: str
    rules: int
    definition: Annotated[msgspec.Raw, JsonOf(RouteDefinition)]
    set_by: str
    set_at: str
    reason: str
    last_sequence: int


class DeliveryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery as it was processed last. Times are ISO-8601 text in UTC."""

    route: str
    name: str
    given: str
    number: int
    scheme: str
    secret: int
    sha256: str
    size_bytes: int
    kept_until: str | None
    definition: int
    jobs: int
    matched: tuple[MatchedJob, ...]
    received_at: str
    received_by: str
    last_sequence: int


def read_routes(select: Select) -> list[RouteRow]:
    """Return every route that is set, by name; `select` runs a statement on a projection's file."""
    rows = select(f"SELECT {_ROUTE_COLUMNS} FROM routes ORDER BY name", ())  # noqa: S608 - names of columns
    return [_row(RouteRow, row, definition=lambda value: msgspec.Raw(value.encode())) for row in rows]


def read_deliveries(
    select: Select, *, route: str = "", matched: bool | None = None, before: int | None = None, limit: int
) -> list[DeliveryRow]:
    """Return deliveries, the newest first: to one route or all, with jobs or without, before a stream sequence."""
    conditions, values = ["1"], list[object]()
    if route:
        conditions.append("route = ?")
        values.append(route)
    if matched is not None:
        conditions.append("jobs > 0" if matched else "jobs = 0")
    if before is not None:
        conditions.append("last_sequence < ?")
        values.append(before)
    sql = (
        f"SELECT {_DELIVERY_COLUMNS} FROM deliveries WHERE {' AND '.join(conditions)} "  # noqa: S608 - names of columns
        "ORDER BY last_sequence DESC LIMIT ?"
    )
    decode = msgspec.json.Decoder(tuple[MatchedJob, ...]).decode
    return [_row(DeliveryRow, row, matched=decode) for row in select(sql, (*values, limit))]


def _row(kind: Any, row: Sequence[Any], **read: Callable[[Any], Any]) -> Any:
    values = dict(zip(kind.__struct_fields__, row, strict=True))
    return kind(**{name: read[name](value) if name in read else value for name, value in values.items()})


def _route_values(route: Route, at: str) -> Row | None:
    if route.definition is None:
        return None
    definition = msgspec.json.encode(route.definition).decode()
    what = (route.definition.scheme_name, len(route.definition.rules), definition)
    return (*what, route.by, at, route.reason, route.sequence)


class DeliveryRows(Rows):
    """The rows of deliveries: each event has the whole row."""

    def __init__(self, connection: sqlite3.Connection, _cache: CacheLimits) -> None:
        self._connection = connection

    def apply(self, messages: Sequence[Message]) -> None:
        """Bring the rows forward; see `table.Rows`."""
        self._connection.executemany(_PUT_DELIVERY, map(_values, messages))


def _values(message: Message) -> tuple[Any, ...]:
    each = DELIVERY.evolve(None, DELIVERY.decode(message), message.stream_sequence)
    return (
        each.route,
        each.delivery,
        each.given,
        each.number,
        each.scheme,
        each.secret,
        each.sha256,
        each.size_bytes,
        None if each.kept_until is None else time_text(each.kept_until),
        each.definition,
        len(each.matched),
        msgspec.json.encode(each.matched).decode(),
        time_text(message.stored_at),
        each.by,
        message.stream_sequence,
    )


ROUTE_TABLES: Final = named_tables(ROUTE, 1, ROUTES, _route_values)
DELIVERY_TABLES: Final = AggregateTables(
    aggregate=DELIVERY.name, version=1, tables=(DELIVERIES,), rows=DeliveryRows
)
