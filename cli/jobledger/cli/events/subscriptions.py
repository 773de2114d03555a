"""`jobledger events subscriptions`: durable subscriptions, how far each is behind; remove one."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.admin.objects.fleet import subscription_shown
from jobledger.cli.command import Cli, command
from jobledger.cli.groups import SUBSCRIPTIONS
from jobledger.cli.text import age, plain


@command(SUBSCRIPTIONS, "list")
async def list_subscriptions(cli: Cli) -> None:
    """List every durable subscription: the events it reads, how far it is behind, when it was last active."""
    async with cli.ledger() as ledger:
        found = await ledger.subscriptions()
        now = ledger.clock.now()
    if cli.output.as_json:
        for info in found:
            cli.output.object(subscription_shown(info))
        return
    if not found:
        cli.output.say('no durable subscriptions; `ledger.events(durable="...")` makes one')
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
    cli.output.table(columns, rows)


@command(SUBSCRIPTIONS, "remove")
async def remove(
    cli: Cli,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the subscription.")],
) -> None:
    """Remove a subscription and its position; a reader that still uses it ends with an error."""
    async with cli.ledger() as ledger:
        info = await ledger.delete_subscription(name)
    if cli.output.as_json:
        cli.output.object(subscription_shown(info))
        return
    cli.output.say(
        f"removed {plain(info.name)}; all its events up to stream sequence {info.acknowledged_sequence} were "
        f"acknowledged: to resume there, subscribe with from_sequence={info.acknowledged_sequence + 1}"
    )
