"""`jobledger permissions`: the rights of a role on the NATS server, for its user in a nats.conf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from jobledger.admin.permissions import BOUND, ROLES, allowed, as_configuration, parts_of
from jobledger.cli.command import OFFLINE, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import TOP
from jobledger.ledger.model.subjects import Names, check_token, check_users_queue
from jobledger.ledger.model.version import VERSION
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
        help="The name of the NATS user, whose inbox gets the answers. (default: that of the role)",
    ),
]
_Enqueues = Annotated[
    list[str] | None,
    typer.Option(
        "--enqueues", metavar="NAME", help="Of a worker: a queue that its tasks enqueue to; may be repeated."
    ),
]
_Subscription = Annotated[
    list[str] | None,
    typer.Option(
        "--subscription",
        metavar="NAME",
        help="Of a subscriber: a named subscription that it follows; may be repeated.",
    ),
]
_Reactors = Annotated[
    bool, typer.Option("--reactors", metavar="", help="Of a worker: it hosts the reactors, too.")
]
_Locks = Annotated[
    bool, typer.Option("--locks", metavar="", help="Of a producer or a worker: it holds locks.")
]
_Limits = Annotated[
    bool, typer.Option("--limits", metavar="", help="Of a producer or a worker: its code defines limits.")
]
_Owners = Annotated[
    bool,
    typer.Option(
        "--owners", metavar="", help="Of a producer, a worker or reactors: jobs that it makes have owners."
    ),
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
    reactors: _Reactors = False,
    enqueues: _Enqueues = None,
    subscription: _Subscription = None,
    locks: _Locks = False,
    limits: _Limits = False,
    owners: _Owners = False,
    environment: _Environment = None,
) -> None:
    """Print what a role may publish and subscribe to, as the entry `permissions` of its user in a nats.conf.

    The server refuses everything else to that user. The command asks no server.
    """
    if role not in ROLES:
        raise UsageError(f"there is no role {role[:40]!r}: the roles are {_ROLES}")
    for option, given, roles in (
        ("--queue", queue, BOUND),
        ("--locks", locks, BOUND),
        ("--limits", limits, BOUND),
        ("--owners", owners, (*BOUND, "reactors")),
        ("--reactors", reactors, ("worker",)),
        ("--enqueues", enqueues, ("worker",)),
        ("--subscription", subscription, ("subscriber",)),
    ):
        if given and role not in roles:
            raise UsageError(f"{option} is for the role {' and '.join(roles)}, not for {role}")
    queues = [check_users_queue(each) for each in queue or ()]
    more: list[tuple[str, Sequence[str]]] = [
        ("Producer", [check_users_queue(each)]) for each in enqueues or ()
    ]
    parts = (("Locks", locks), ("Limits", limits), ("Owners", owners))
    more += [(part, queues) for part, given in parts if given]
    more += parts_of(("Reactors",)) if reactors else ()
    if subscription:
        more.append(("Named subscription", [check_token("subscription", each) for each in subscription]))
    user = check_token("user", role if of is None else of)
    inbox = inbox_of(user)
    allow = allowed(role, Names(environment or ""), queues=queues, inbox_prefix=inbox, more=more)
    if cli.output.as_json:
        cli.output.object(allow._asdict())
        return
    where = f"queue {', '.join(queues)}" if queues else "every queue"
    about = f"jobledger {VERSION}: {role}, {where}; answers come to {inbox}"
    for line in as_configuration(allow, about=about).splitlines():
        cli.output.say(line)
