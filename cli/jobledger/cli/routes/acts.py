"""`jobledger routes test` and `emit`: what a route would make of a delivery, and handing it data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from jobledger.admin.hooks.routes import RuleTried, emit_delivery, try_route
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import ROUTES
from jobledger.cli.pairs import pairs
from jobledger.cli.routes.change import Name
from jobledger.cli.session import operator
from jobledger.cli.text import shortened
from jobledger.ledger.files import open_file
from jobledger.ledger.model.hooks.delivery import made_words
from jobledger.ledger.model.json_text import check_text
from jobledger.ledger.webhooks.receiver import Arrival

_BODY_BYTES_MAX: Final = 16 << 20
_INPUT_MAX: Final = 200

_Delivery = Annotated[
    str | None, typer.Option("--id", metavar="DELIVERY", help="A delivery that came in, as it was kept.")
]
_Body = Annotated[
    str | None, typer.Option("--body", metavar="FILE", help="A file with a body; - reads it from stdin.")
]
_Data = Annotated[str | None, typer.Option("--data", metavar="JSON", help="The data, any JSON.")]
_EmittedId = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="Its id: emitted again, it makes nothing. (default: a new one)"),
]
_Header = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="A header beside --body; may be given again."),
]


@command(ROUTES, "test")
async def try_(
    cli: Cli, *, name: Name, delivery: _Delivery = None, body: _Body = None, header: _Header = None
) -> None:
    """Show which jobs a route would make of a delivery or of a body, without a signature and without making any."""
    if (delivery is None) == (body is None) or (header and body is None):
        raise UsageError(
            "say what to try: --id DELIVERY, or --body FILE with a --header NAME=VALUE for each header"
        )
    given = pairs(header, "--header") if header else {}
    text = None if body is None else _read(body)
    async with cli.ledger() as ledger:
        if text is None:
            arrival = await ledger.routes.stored(name, delivery or "")
        else:
            arrival = Arrival(body=text, headers={key.lower(): value for key, value in given.items()})
        found = await try_route(ledger, name, arrival)
    output = cli.output
    if output.as_json:
        for each in found:
            output.object(each)
    elif not found:
        output.say("no rule holds: it would be recorded, and make no job")
    else:
        output.table(("rule", "task", "queue", "input"), [_cells(each) for each in found])
        jobs = sum(not each.signal for each in found)
        signals = f" and send {len(found) - jobs:,} signal(s)" if jobs < len(found) else ""
        output.say(f"it would make {jobs:,} job{'' if jobs == 1 else 's'}{signals}; nothing was made")


def _cells(each: RuleTried) -> tuple[str, str, str, str]:
    text = msgspec.json.encode(each.value if each.signal else each.input).decode()
    what = each.task or f"graph {each.graph}"
    if each.signal:
        what = f"signal {each.signal} to {each.order.get('id', 'no run')}"
    return each.rule, what, each.queue or "its own", shortened(text, _INPUT_MAX)


@command(ROUTES, "emit")
async def emit(
    cli: Cli, *, name: Name, data: _Data = None, body: _Body = None, delivery: _EmittedId = None
) -> None:
    """Hand data to a route as a delivery: it is recorded with the jobs that the rules make, or nothing is."""
    if (data is None) == (body is None):
        raise UsageError("say what to emit: --data JSON, or --body FILE")
    text = (data or "").encode("utf-8", "surrogateescape") if body is None else _read(body)
    value = msgspec.json.decode(check_text(text, what="JSON of --data" if body is None else f"file {body}"))
    async with cli.ledger() as ledger:
        done = await emit_delivery(ledger, name, value, delivery_id=delivery, by=operator())
    output = cli.output
    if output.as_json:
        output.object(done)
        return
    if done.jobs:
        output.table(("rule", "job"), [(job.rule, job.words) for job in done.jobs])
    verb = "was there already, with" if done.repeated else "made"
    output.say(f"delivery {done.delivery} {verb} {made_words(done.jobs)}")


def _read(body: str) -> bytes:
    """Read a body. Raises: UsageError beyond the largest that a route can take; OSError."""
    if body != "-":
        with open_file(Path(body), bytes_max=_BODY_BYTES_MAX) as file:
            return file.read()
    text = sys.stdin.buffer.read(_BODY_BYTES_MAX + 1)
    if len(text) > _BODY_BYTES_MAX:
        raise UsageError(f"the body on stdin is larger than {_BODY_BYTES_MAX:,} bytes, which no route takes")
    return text
