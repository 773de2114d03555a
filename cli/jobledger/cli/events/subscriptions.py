"""`jobledger events subscriptions`: who reads the ledger under a name, how far behind; forget one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.output import Output
from jobledger.cli.session import Target, opened, run
from jobledger.cli.text import age, plain
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.subscriptions.consumers import SubscriptionInfo

app = typer.Typer(help="See and remove durable subscriptions to events.", no_args_is_help=True)


@app.command("list")
def list_subscriptions(
    *,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """List every durable subscription: what it reads, how far it is behind, when it was last active."""
    output = Output(as_json=as_json)
    run(lambda: _list(output, Target(url=url, environment=environment)))


async def _list(output: Output, target: Target) -> None:
    async with opened(target) as ledger:
        found = await ledger.subscriptions()
        now = ledger.clock.now()
    if output.as_json:
        for info in found:
            output.object(_object(info))
        return
    if not found:
        output.say('nobody reads under a name: `ledger.events(durable="...")` does')
        return
    columns = ("name!", "events~", "lag>", "in flight>", "acknowledged>", "last active!")
    rows = [
        (
            info.name,
            info.filter.words(),
            info.lag,
            info.in_flight,
            info.acknowledged_sequence,
            "-" if info.last_active_at is None else age(info.last_active_at, now),
        )
        for info in found
    ]
    output.table(columns, rows)


def _object(info: SubscriptionInfo) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(info)
    return {**fields, "filter": msgspec.structs.asdict(info.filter), "lag": info.lag}


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose position is to be forgotten.")],
    *,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Forget a subscription and its position; whoever still reads under that name ends with an error."""
    output = Output(as_json=as_json)
    run(lambda: _remove(output, Target(url=url, environment=environment), name))


async def _remove(output: Output, target: Target, name: str) -> None:
    async with opened(target) as ledger:
        info = await ledger.delete_subscription(name)
    if output.as_json:
        output.object(_object(info))
        return
    output.say(
        f"removed {plain(info.name)}; all its events up to stream sequence {info.acknowledged_sequence} were "
        f"acknowledged: begin it anew there with from_sequence={info.acknowledged_sequence + 1}"
    )
