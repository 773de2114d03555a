"""What a person does to keys; a secret is told once, on the page that answers."""

from __future__ import annotations

from typing import cast, get_args

from jobledger.admin.access.keys import Grant, create_key, revoke_key, rotate_key
from jobledger.gateway.pages.page import Fields, Sent, Told
from jobledger.gateway.pages.views.keys import shown
from jobledger.ledger.model.rights.grants import PERMISSIONS, Role


async def make_key(sent: Sent) -> Told:
    """Make a key. Raises: ProblemError, and as `create_key`."""
    sent.principal.require_everywhere("admin")
    fields = sent.fields
    role = fields.one("role")
    grant = Grant(
        role=cast("Role", role) if role in get_args(Role) else None,
        permissions=tuple(each for each in PERMISSIONS if each in fields.many("permission")),
        queues=_patterns(fields, "queues"),
        tasks=_patterns(fields, "tasks"),
    )
    made = await create_key(
        sent.gateway.ledger,
        fields.one("name"),
        grant,
        reason=fields.reason(),
        by=sent.principal.name,
    )
    return Told("keys.html", await shown(sent.looked, made=made))


def _patterns(fields: Fields, name: str) -> tuple[str, ...]:
    return tuple(fields.one(name).replace(",", " ").split())


async def rotate(sent: Sent, key: str) -> Told:
    """Give a key another secret. Raises: ProblemError, and as `rotate_key`."""
    sent.principal.require_everywhere("admin")
    grace_s = 60 * (sent.fields.number("grace_min") or 0.0)
    made = await rotate_key(
        sent.gateway.ledger, key, grace_s=grace_s, reason=sent.fields.reason(), by=sent.principal.name
    )
    return Told("keys.html", await shown(sent.looked, made=made))


async def revoke(sent: Sent, key: str) -> str:
    """End a key for good, with its sessions. Raises: ProblemError, and as `revoke_key`."""
    sent.principal.require_everywhere("admin")
    await revoke_key(sent.gateway.ledger, key, reason=sent.fields.reason(), by=sent.principal.name)
    return "/keys"
