"""`jobledger routes list` and `deliveries`: the routes, and the deliveries to them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from jobledger.admin.hooks.routes import ShownDelivery, show_delivery
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import ROUTES
from jobledger.cli.output import Output
from jobledger.cli.past import asked, rows_begin, viewed
from jobledger.cli.text import Cell, age, plain, shortened
from jobledger.ledger.model.times import shown_time
from jobledger.projections.tables.routes import DeliveryRow, RouteRow, read_deliveries, read_routes

_DELIVERIES_MAX = 1_000

_Route = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Only those to this route. (default: all)")
]
_Delivery = Annotated[
    str | None, typer.Option("--id", metavar="DELIVERY", help="This one, with each time it was processed.")
]
_Limit = Annotated[
    int,
    typer.Option(
        "--limit", min=1, max=_DELIVERIES_MAX, metavar="N", help="At most this many, the newest first."
    ),
]
_Unmatched = Annotated[bool, typer.Option("--unmatched", metavar="", help="Only those that made no job.")]


@command(ROUTES, "list", takes=ROWS)
async def list_routes(cli: Cli, *, at: options.At = None, sequence: options.Sequence = None) -> None:
    """List the routes that are set, with their rules, now or in the past."""
    output = cli.output
    async with viewed(cli, asked(at, sequence)) as view:
        rows = read_routes(view.store.select)
    if output.as_json:
        for row in rows:
            output.object(row, **rows_begin(view))
    elif not rows:
        output.say(
            "no route is set; set one with `jobledger routes set NAME --scheme github --secret env:NAME --task TASK`"
        )
    else:
        columns = ("route", "scheme", "rules>", "set by", "since!")
        output.table(columns, [_route_cells(row, view.now) for row in rows])


def _route_cells(row: RouteRow, now: datetime) -> tuple[Cell, ...]:
    since = datetime.fromisoformat(row.set_at)
    return (row.name, row.scheme, row.rules, shortened(row.set_by, 30), age(since, max(now, since)))


@command(ROUTES, "deliveries", takes=ROWS)
async def deliveries(
    cli: Cli,
    *,
    name: _Route = None,
    delivery: _Delivery = None,
    unmatched: _Unmatched = False,
    limit: _Limit = 50,
    at: options.At = None,
    sequence: options.Sequence = None,
) -> None:
    """List deliveries, the newest first; with --id one delivery of a route and each time it was processed."""
    output = cli.output
    if delivery is not None:
        if name is None:
            raise UsageError("--id needs the route: `jobledger routes deliveries NAME --id DELIVERY`")
        async with cli.ledger() as ledger:
            found = await show_delivery(ledger, name, delivery)
        if output.as_json:
            output.object(found)
        else:
            _tell_delivery(output, found)
        return
    async with viewed(cli, asked(at, sequence)) as view:
        matched = False if unmatched else None
        rows = read_deliveries(view.store.select, route=name or "", matched=matched, limit=limit)
    if output.as_json:
        for row in rows:
            output.object(row, **rows_begin(view))
    elif not rows:
        at_route = f" at route {name}" if name else ""
        output.say(f"nothing came in{at_route}" + (" that made no job" if unmatched else ""))
        if name:
            output.note("`jobledger routes list` shows the routes that are set")
    else:
        output.table(
            ("route", "delivery", "proven by", "jobs>", "received!"),
            [_delivery_cells(row, view.now) for row in rows],
        )


def _delivery_cells(row: DeliveryRow, now: datetime) -> tuple[Cell, ...]:
    received = datetime.fromisoformat(row.received_at)
    proven = f"{row.scheme}, secret {row.secret}" if row.scheme else "emitted"
    return (row.route, row.name, proven, row.jobs, age(received, max(now, received)))


def _tell_delivery(output: Output, found: ShownDelivery) -> None:
    output.say(f"delivery {found.delivery} of route {found.route}", style="bold")
    output.facts(
        [
            ("id", shortened(found.given, 80) or None),
            (
                "proven by",
                f"{found.scheme}, secret {found.secret}" if found.scheme else "nothing: it was emitted",
            ),
            ("body", f"{found.size_bytes:,} bytes, sha256 {found.sha256}"),
            ("kept until", "it was not kept" if found.kept_until is None else shown_time(found.kept_until)),
        ]
    )
    for each in found.history:
        why = f": {plain(each.reason)}" if each.reason else ""
        output.say(f"{each.stream_sequence:>6} {shown_time(each.at)} {each.event} by {plain(each.by)}{why}")
        rows = [(job.rule, job.words) for job in each.matched]
        if rows:
            output.table(("rule", "job"), rows)
        else:
            output.say("       no rule holds")
