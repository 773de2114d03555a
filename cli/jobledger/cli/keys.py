"""`jobledger keys create`, `link`, `list`, `show`, `rotate` and `revoke`: who may use the gateway."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, get_args

import typer

from jobledger.admin.access.keys import (
    LINK_S,
    LINK_S_MAX,
    Grant,
    KeyInfo,
    MadeKey,
    create_key,
    create_link,
    list_keys,
    revoke_key,
    rotate_key,
    show_key,
)
from jobledger.cli.bulk import Why
from jobledger.cli.changes import tell_changes
from jobledger.cli.command import CREATES, LEDGER, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import KEYS
from jobledger.cli.output import Output
from jobledger.cli.session import operator
from jobledger.cli.text import age, moment, plain, shortened
from jobledger.cli.times import seconds, time_of
from jobledger.ledger.model.access.key import GRACE_S_MAX
from jobledger.ledger.model.rights.grants import PERMISSIONS, ROLES, Permission, Role
from jobledger.ledger.model.times import shown_time

_GATEWAY: Final = "http://127.0.0.1:8080"

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is, or what it is for.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `keys list` shows it.")]
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
_Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="TIME", help="End it at this time, or after a span such as 90d."),
]
_Grace = Annotated[
    float,
    typer.Option(
        "--grace", metavar="SPAN", parser=seconds(0.0, GRACE_S_MAX), help="Let the old secret work this long."
    ),
]
_Valid = Annotated[
    float,
    typer.Option(
        "--valid", metavar="SPAN", parser=seconds(1.0, LINK_S_MAX), help="Until when the link can be used."
    ),
]
_Address = Annotated[
    str,
    typer.Option("--gateway", metavar="URL", envvar="JOBLEDGER_GATEWAY", help="Address of the gateway."),
]
_All = Annotated[bool, typer.Option("--all", metavar="", help="Also those that ended.")]


@command(KEYS, "create", takes=(*LEDGER, CREATES))
async def create(
    cli: Cli,
    *,
    name: _Name,
    role: _Role = None,
    permission: _Permission = None,
    queue: _Queue = None,
    task: _Task = None,
    expires: _Expires = None,
    reason: Why = "",
) -> None:
    """Make a key for the gateway. It is shown once, on stdout, and kept nowhere: the ledger has only its sha256."""
    end = time_of("--expires", expires, ahead=True)
    grant = _grant(role, permission, queue, task)
    async with cli.ledger() as ledger:
        made = await create_key(ledger, name, grant, expires_at=end, reason=reason, by=operator())
    _tell_secret(cli.output, made, f"key {made.info.key} of {plain(name)} is made: {_may(made.info)}")


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
    gateway: _Address = _GATEWAY,
    reason: Why = "",
) -> None:
    """Make a link that logs somebody in to the dashboard, once. What it opens can be ended with `keys revoke`."""
    if not gateway.startswith(("http://", "https://")):
        raise UsageError(f"--gateway {gateway[:80]!r} is no address: write http://HOST:PORT or https://HOST")
    grant = _grant(role, permission, queue, task)
    async with cli.ledger() as ledger:
        made = await create_link(ledger, name, grant, valid_s=valid, reason=reason, by=operator())
    address = f"{gateway.rstrip('/')}/login?link={made.secret}"
    if cli.output.as_json:
        cli.output.object({**_object(made.info), "link": address})
        return
    cli.output.say(address)
    cli.output.note(
        f"the link logs {plain(name)} in once within {valid:g} s: {_may(made.info)}; for another "
        "gateway give --gateway URL"
    )


@command(KEYS, "list")
async def list_(cli: Cli, *, all_: _All = False) -> None:
    """List the keys and links that can be used: what they allow, when they were used last and when they expire."""
    async with cli.ledger() as ledger:
        found, now = await list_keys(ledger, ended=all_), ledger.clock.now()
    if cli.output.as_json:
        for each in found:
            cli.output.object(_object(each))
    elif not found:
        cli.output.say("there is no key; make one with `jobledger keys create NAME --role viewer`")
    else:
        columns = ("id", "name", "allows", "stands", "used!", "expires!")
        cli.output.table(columns, [_cells(each, now) for each in found])


def _cells(info: KeyInfo, now: datetime) -> tuple[str, ...]:
    used = "" if info.last_used_at is None else age(info.last_used_at, max(now, info.last_used_at))
    expires = "" if info.expires_at is None else shown_time(info.expires_at)[:10]
    return (info.key, shortened(info.name, 30), _may(info, short=True), info.standing, used, expires)


@command(KEYS, "show")
async def show(cli: Cli, *, key: _Id) -> None:
    """Show a key: what it allows, who made it, when it was used last, and its history."""
    async with cli.ledger() as ledger:
        found, now = await show_key(ledger, key), ledger.clock.now()
    output, info = cli.output, found.info
    if output.as_json:
        output.object({**_object(info), "history": found.history})
        return
    output.say(f"key {info.key}", style="bold")
    used = f" from {plain(info.last_used_from)}" if info.last_used_from else ""
    output.facts(
        [
            ("name", plain(info.name)),
            ("stands", info.standing),
            ("allows", _may(info)),
            ("made", f"{moment(info.created_at, now)}, by {plain(info.created_by)}"),
            ("expires", None if info.expires_at is None else shown_time(info.expires_at)),
            ("old secret", None if info.grace_until is None else f"until {shown_time(info.grace_until)}"),
            ("last used", None if info.last_used_at is None else f"{moment(info.last_used_at, now)}{used}"),
        ]
    )
    tell_changes(output, found.history)


@command(KEYS, "rotate")
async def rotate(cli: Cli, *, key: _Id, grace: _Grace = 0.0, reason: Why = "") -> None:
    """Give a key another secret, shown once. The old one ends at once, or after --grace, in which programs are told."""
    async with cli.ledger() as ledger:
        made = await rotate_key(ledger, key, grace_s=grace, reason=reason, by=operator())
    until = made.info.grace_until
    old = "is refused from now on" if until is None else f"works until {shown_time(until)}"
    _tell_secret(cli.output, made, f"key {key} has another secret; the old one {old}")


@command(KEYS, "revoke")
async def revoke(cli: Cli, *, key: _Id, reason: Why = "") -> None:
    """End a key or a link for good, with the sessions that were opened with it: gateways refuse it within a second."""
    async with cli.ledger() as ledger:
        info = await revoke_key(ledger, key, reason=reason, by=operator())
    if cli.output.as_json:
        cli.output.object(_object(info))
    else:
        cli.output.say(f"key {info.key} of {plain(info.name)} is revoked")


def _grant(
    role: str | None, permissions: list[str] | None, queues: list[str] | None, tasks: list[str] | None
) -> Grant:
    """Read what a key is to allow. Raises: UsageError."""
    if role is not None and role not in ROLES:
        raise UsageError(f"--role {role[:40]!r} is none of {', '.join(ROLES)}")
    wrong = next((each for each in permissions or () if each not in PERMISSIONS), None)
    if wrong is not None:
        raise UsageError(f"--permission {wrong[:40]!r} is none of {', '.join(PERMISSIONS)}")
    if role is None and not permissions:
        raise UsageError(f"say what it allows: --role ({', '.join(ROLES)}), or --permission")
    known: tuple[Permission, ...] = tuple(each for each in PERMISSIONS if each in (permissions or ()))
    roles: tuple[Role, ...] = get_args(Role)
    return Grant(
        role=next((each for each in roles if each == role), None),
        permissions=known,
        queues=tuple(queues or ()),
        tasks=tuple(tasks or ()),
    )


def _tell_secret(output: Output, made: MadeKey, words: str) -> None:
    if output.as_json:
        output.object({**_object(made.info), "secret": made.secret})
        return
    output.say(made.secret)
    output.note(f"{words}. Keep it now: nobody can show it again")


def _may(info: KeyInfo, *, short: bool = False) -> str:
    """Return what a key allows: its role, what is beside that, and where."""
    of_role = ROLES[info.role] if info.role is not None else frozenset[Permission]()
    words = [info.role or "", *(each for each in info.permissions if each not in of_role)]
    parts = [" ".join(each for each in words if each)]
    parts += [f"queues {' '.join(info.queues)}"] if info.queues else []
    parts += [f"tasks {' '.join(info.tasks)}"] if info.tasks else []
    whole = ", ".join(parts)
    return shortened(whole, 40) if short else whole


def _object(info: KeyInfo) -> dict[str, Any]:
    return {field: getattr(info, field) for field in KeyInfo.__struct_fields__}
