"""`jobledger webhooks list` and `show`: which webhooks there are, and one of them with its history."""

from __future__ import annotations

import msgspec

from jobledger.admin.hooks.webhooks import WebhookInfo, list_webhooks, show_webhook
from jobledger.cli.changes import tell_changes
from jobledger.cli.command import Cli, command
from jobledger.cli.groups import WEBHOOKS
from jobledger.cli.output import Output
from jobledger.cli.text import age, colored, moment, plain, shortened
from jobledger.cli.webhooks.change import Name


@command(WEBHOOKS, "list")
async def list_(cli: Cli) -> None:
    """List the webhooks: whether they are active, which events go where, and since when one fails."""
    async with cli.ledger() as ledger:
        found, now = await list_webhooks(ledger), ledger.clock.now()
    output = cli.output
    if output.as_json:
        for each in found:
            output.object(msgspec.to_builtins(each))
    elif not found:
        output.say(
            "there is no webhook; make one with "
            "`jobledger webhooks set NAME --to URL --event completed --secret env:NAME`"
        )
    else:
        output.table(
            ("webhook!", "status!", "events", "to"),
            [
                (
                    each.webhook,
                    colored(each.status)
                    if each.failing_since is None
                    else f"{each.status}, failing since {age(each.failing_since, now)}",
                    shortened(each.sends, 60),
                    shortened(each.to, 80),
                )
                for each in found
            ],
        )


@command(WEBHOOKS, "show")
async def show(cli: Cli, *, name: Name) -> None:
    """Show a webhook: what it does, since when it fails or why it stopped, and who changed it."""
    async with cli.ledger() as ledger:
        found, now = await show_webhook(ledger, name), ledger.clock.now()
    output = cli.output
    if output.as_json:
        output.object(msgspec.to_builtins(found))
        return
    _tell(output, found.info)
    if found.info.failing_since is not None:
        output.facts([("failing", f"since {moment(found.info.failing_since, now)}")])
    tell_changes(output, found.history)


def _tell(output: Output, info: WebhookInfo) -> None:
    terms = info.definition
    output.say(f"webhook {info.webhook}", style="bold")
    why = f": {info.reason}" if info.reason and info.status != "active" else ""
    headers = ", ".join(f"{name}: {value}" for name, value in terms.headers.items())
    output.facts(
        [
            ("status", plain(f"{info.status}{why}")),
            ("events", plain(info.sends)),
            ("to", plain(info.to)),
            ("includes", ", ".join(terms.include) or None),
            ("format", terms.format if terms.target.url else None),
            ("secrets", plain(", ".join(terms.secrets)) or None),
            ("headers", plain(headers) or None),
        ]
    )
