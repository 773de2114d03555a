"""`jobledger keys link`: an address for one log-in to the dashboard of a gateway."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from jobledger.admin.keys import LINK_S, LINK_S_MAX, Grant, allowed_words, create_link
from jobledger.cli import options
from jobledger.cli.bulk import Why
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import KEYS
from jobledger.cli.session import operator
from jobledger.cli.times import seconds
from jobledger.ledger.model.rights.grants import PERMISSIONS, ROLES, Permission, Role

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is, or what it is for.")]
_Role = Annotated[
    str | None, typer.Option("--role", metavar="ROLE", help=f"What it allows: {', '.join(ROLES)}.")
]
_Permission = Annotated[
    list[str] | None,
    typer.Option(
        "--permission",
        metavar="WORD",
        help=f"Allow this too; may be given again: {', '.join(PERMISSIONS)}.",
    ),
]
_Queue = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", metavar="PATTERN", help="Only these queues, such as 'billing-*'; may be given again."
    ),
]
_Task = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="PATTERN", help="Only these tasks; may be given again."),
]
_Valid = Annotated[
    float,
    typer.Option(
        "--valid", metavar="SPAN", parser=seconds(1.0, LINK_S_MAX), help="Until when the link can be used."
    ),
]


@command(KEYS, "link")
async def link(
    cli: Cli,
    *,
    name: _Name,
    role: _Role = None,
    permission: _Permission = None,
    queue: _Queue = None,
    task: _Task = None,
    valid: _Valid = LINK_S,
    gateway: options.Gateway = options.GATEWAY,
    reason: Why = "",
) -> None:
    """Make a link that logs somebody in to the dashboard, once. `keys revoke` ends the session that it opens."""
    if not gateway.startswith(("http://", "https://")):
        raise UsageError(f"--gateway {gateway[:80]!r} is no address: write http://HOST:PORT or https://HOST")
    grant = Grant(  # unknown words are refused when the key is made
        role=cast("Role | None", role),
        permissions=cast("tuple[Permission, ...]", tuple(permission or ())),
        queues=tuple(queue or ()),
        tasks=tuple(task or ()),
    )
    async with cli.ledger() as ledger:
        made = await create_link(ledger, name, grant, valid_s=valid, reason=reason, by=operator())
    address = f"{gateway.rstrip('/')}/login?link={made.secret}"
    if cli.output.as_json:
        cli.output.object({"info": made.info, "link": address})
        return
    cli.output.say(address)
    cli.output.note(
        f"the link logs {name} in once within {valid:g} s: {allowed_words(made.info)}; for another "
        "gateway give --gateway URL"
    )
