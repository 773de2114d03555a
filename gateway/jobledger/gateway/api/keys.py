"""Keys of this gateway and of all others on the ledger: made, listed, rotated and ended by whoever may; and who one is."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from jobledger.admin.access.keys import (
    Grant,
    KeyInfo,
    MadeKey,
    ShownKey,
    create_key,
    in_order,
    list_keys,
    revoke_key,
    rotate_key,
    show_key,
)
from jobledger.gateway.api.asking import Reasoned
from jobledger.gateway.http.asked import Asked
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.ledger.model.rights.grants import Permission, Role

#: Of an answer with a secret: no cache keeps it.
_SECRET: Final = {"cache-control": "no-store"}


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what they may do."""

    name: str  #: what events say in `by`
    key: str  #: the id of the key, "" for who came without one
    permissions: tuple[Permission, ...]
    queues: tuple[str, ...]  #: patterns of queues' names; none: every queue
    tasks: tuple[str, ...]  #: patterns of tasks' names; none: every task


class KeyQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which keys."""

    ended: bool = False  #: also those that expired or were revoked


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys and links, by name."""

    items: list[KeyInfo]


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that is to be made: with a role, or permissions one by one, or both."""

    name: str  #: whose it is, or what it is for
    role: Role | None = None
    permissions: tuple[Permission, ...] = ()
    queues: tuple[str, ...] = ()  #: patterns of queues' names, such as `billing-*`; none: every queue
    tasks: tuple[str, ...] = ()  #: patterns of tasks' names; none: every task
    expires_at: datetime | None = None  #: when it ends by itself, RFC 3339
    reason: str = ""  #: kept in the ledger with who made it


class Rotation(Reasoned, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a key gets another secret."""

    grace_s: float = 0.0  #: how many seconds the old secret works on


async def show_me(asked: Asked) -> Me:
    """Return who asks."""
    principal, scope = asked.principal, asked.principal.scope
    return Me(
        name=principal.name,
        key=principal.key_id,
        permissions=in_order(principal.permissions),
        queues=scope.queues,
        tasks=scope.tasks,
    )


async def list_all_keys(asked: Asked, *, query: KeyQuery) -> Keys:
    """List keys, read from the ledger and so never stale; nothing of their secrets."""
    asked.principal.require_everywhere("admin")
    return Keys(items=await list_keys(asked.gateway.ledger, ended=query.ended))


async def show_one_key(asked: Asked, id: str) -> ShownKey:  # noqa: A002 - as in the address
    """Show a key and its history."""
    asked.principal.require_everywhere("admin")
    return await show_key(asked.gateway.ledger, id)


async def make_key(asked: Asked, *, body: NewKey) -> Answer:
    """Make a key; the answer is the one place where its secret is ever told."""
    asked.principal.require_everywhere("admin")
    grant = Grant(role=body.role, permissions=body.permissions, queues=body.queues, tasks=body.tasks)
    made = await create_key(
        asked.gateway.ledger,
        body.name,
        grant,
        expires_at=body.expires_at,
        reason=body.reason,
        by=asked.principal.name,
    )
    return Answer(value=made, headers={**_SECRET, "location": f"/v1/keys/{made.info.key}"})


async def rotate_one_key(asked: Asked, id: str, *, body: Rotation) -> Answer:  # noqa: A002 - as in the address
    """Give a key another secret."""
    asked.principal.require_everywhere("admin")
    made = await rotate_key(
        asked.gateway.ledger, id, grace_s=body.grace_s, reason=body.reason, by=asked.principal.name
    )
    return Answer(value=made, headers=_SECRET)


async def revoke_one_key(asked: Asked, id: str, *, query: Reasoned) -> KeyInfo:  # noqa: A002 - as in the address
    """End a key or a link for good, with the sessions that were opened with it."""
    asked.principal.require_everywhere("admin")
    return await revoke_key(asked.gateway.ledger, id, reason=query.reason, by=asked.principal.name)


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/v1/me",
        permission=None,
        handler=show_me,
        summary="Show who asks and what they may do",
        tag="keys",
        returns=Me,
    ),
    Endpoint(
        method="GET",
        path="/v1/keys",
        permission="admin",
        handler=list_all_keys,
        summary="List keys",
        tag="keys",
        query=KeyQuery,
        returns=Keys,
    ),
    Endpoint(
        method="POST",
        path="/v1/keys",
        permission="admin",
        handler=make_key,
        summary="Make a key; its secret is told once",
        tag="keys",
        body=NewKey,
        returns=MadeKey,
        status=201,
        problems=("JOB_INVALID_INPUT", "LEDGER_FULL"),
    ),
    Endpoint(
        method="GET",
        path="/v1/keys/{id}",
        permission="admin",
        handler=show_one_key,
        summary="Show a key and its history",
        tag="keys",
        returns=ShownKey,
        problems=("NOT_FOUND",),
    ),
    Endpoint(
        method="DELETE",
        path="/v1/keys/{id}",
        permission="admin",
        handler=revoke_one_key,
        summary="End a key for good",
        tag="keys",
        query=Reasoned,
        returns=KeyInfo,
        problems=("NOT_FOUND", "REFUSED", "LEDGER_FULL"),
    ),
    Endpoint(
        method="POST",
        path="/v1/keys/{id}/rotate",
        permission="admin",
        handler=rotate_one_key,
        summary="Give a key another secret; it is told once",
        tag="keys",
        body=Rotation,
        returns=MadeKey,
        problems=("JOB_INVALID_INPUT", "NOT_FOUND", "REFUSED", "LEDGER_FULL"),
    ),
)
