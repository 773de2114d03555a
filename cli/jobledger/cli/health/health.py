"""`jobledger health`: one check of one part of a fleet, with an exit code for the health check of a container."""

from __future__ import annotations

import socket
from typing import Annotated, cast, get_args

import typer

from jobledger.admin.role_health import Role, RoleHealth, look_at_gateway, look_at_server, look_at_workers
from jobledger.cli import options
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import DONE, FAILED, UsageError
from jobledger.cli.groups import TOP

_Role = Annotated[
    str,
    typer.Option(
        "--role", metavar="ROLE", help=f"What is looked at: {', '.join(get_args(Role))} of this machine."
    ),
]
_Queue = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="QUEUE",
        help="With `--role worker`: a queue that a worker here takes; may be given again.",
    ),
]


@command(TOP, "health")
async def health(
    cli: Cli, *, role: _Role = "server", queue: _Queue = None, gateway: options.Gateway = options.GATEWAY
) -> int:
    """Say whether the server answers, a worker of this machine is alive, or the gateway is ready; exits with 0 if so."""
    if role not in get_args(Role):
        raise UsageError(f"--role {role[:40]!r} is none: choose one of {', '.join(get_args(Role))}")
    if queue and role != "worker":
        raise UsageError("--queue says which queues a worker takes: give --role worker too")
    found = await _look(cli, cast("Role", role), queue or [], gateway)
    if cli.output.as_json:
        cli.output.object(found)
    else:
        cli.output.say(found.found, style="bold green" if found.ok else "bold red")
    return DONE if found.ok else FAILED


async def _look(cli: Cli, role: Role, queues: list[str], gateway: str) -> RoleHealth:
    if role == "gateway":
        return await look_at_gateway(gateway)
    async with cli.ledger() as ledger:
        if role == "worker":
            return await look_at_workers(ledger, socket.gethostname(), queues)
        return await look_at_server(ledger)
