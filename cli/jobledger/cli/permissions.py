"""`jobledger permissions`: what a role may do on the NATS server, for its user in a nats.conf."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from jobledger.admin.permissions import BOUND, ROLES, allowed, as_configuration
from jobledger.cli.command import OFFLINE, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import TOP
from jobledger.ledger.model.subjects import Names, check_users_queue
from jobledger.ledger.nats.access import inbox_of
from jobledger.ledger.variables import variable

_ROLES: Final = ", ".join(ROLES)
_Role = Annotated[str, typer.Argument(metavar="ROLE", help=f"One of {_ROLES}.")]
_Queue = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", metavar="NAME", help="Only this queue, for a producer or a worker; may be repeated."
    ),
]
_User = Annotated[
    str | None,
    typer.Option(
        "--of",
        metavar="USER",
        help="The NATS user, whose inbox gets the answers. (default: named as the role)",
    ),
]
_Enqueues = Annotated[
    bool, typer.Option("--enqueues", metavar="", help="Of a worker: its tasks enqueue jobs.")
]
_Locks = Annotated[
    bool, typer.Option("--locks", metavar="", help="Of a producer or a worker: it holds locks.")
]
_Limits = Annotated[
    bool, typer.Option("--limits", metavar="", help="Of a producer or a worker: its code defines limits.")
]
_Environment = Annotated[
    str | None,
    typer.Option(
        "--environment",
        metavar="NAME",
        envvar=variable("environment"),
        show_envvar=False,
        help="Prefix of streams and subjects, where several environments share a server.",
    ),
]


@command(TOP, "permissions", takes=OFFLINE)
def permissions(
    cli: Cli,
    *,
    role: _Role,
    queue: _Queue = None,
    of: _User = None,
    enqueues: _Enqueues = False,
    locks: _Locks = False,
    limits: _Limits = False,
    environment: _Environment = None,
) -> None:
    """Print what a role may publish and subscribe to, as the entry `permissions` of its user in a nats.conf.

    All else is refused to that user. No server is asked.
    """
    if role not in ROLES:
        raise UsageError(f"there is no role {role[:40]!r}: the roles are {_ROLES}")
    if queue and role not in BOUND:
        raise UsageError(f"--queue is for {' and '.join(BOUND)}: {role} sees to every queue")
    more = [part for part, given in (("Producer", enqueues), ("Locks", locks), ("Limits", limits)) if given]
    if more and role not in BOUND:
        raise UsageError(f"--enqueues, --locks and --limits are for {' and '.join(BOUND)}")
    queues = [check_users_queue(each) for each in queue or ()]
    inbox = inbox_of(of or role)
    allow = allowed(role, Names(environment or ""), queues=queues, inbox_prefix=inbox, more=more)
    if cli.output.as_json:
        cli.output.object(allow._asdict())
    else:
        for line in as_configuration(allow).splitlines():
            cli.output.say(line)
