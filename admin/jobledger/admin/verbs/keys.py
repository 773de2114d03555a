"""Key verbs: make, list, show, rotate and revoke keys of the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final

from jobledger.admin.keys import (
    Grant,
    KeyInfo,
    Keys,
    MadeKey,
    ShownKey,
    allowed_words,
    create_key,
    list_keys,
    revoke_key,
    rotate_key,
    show_key,
)
from jobledger.admin.verbs.kit import (
    Facts,
    Heading,
    Note,
    Place,
    Reason,
    Table,
    Told,
    Verb,
    option,
    told_changes,
    verb,
)
from jobledger.ledger.model.rights.grants import PERMISSIONS, ROLES, Permission, Role
from jobledger.ledger.model.times import shown_time

Id = Annotated[str, option("The key's id, as `keys list` shows it.", "ID")]
_ENDED: Final = ("NOT_FOUND", "REFUSED", "LEDGER_FULL")
_KEEP: Final = "Keep it now: nobody can show it again"


@verb(
    "keys list",
    "GET /v1/keys",
    permission="admin",
    summary="List keys",
    is_list=True,
)
class ListKeys(Verb[Keys], frozen=True, kw_only=True):
    """List the keys and links that can be used: what they allow, when they were used last and when they expire."""

    ended: Annotated[bool, option("Also those that ended.", flag="--all")] = False

    async def do(self, place: Place) -> Keys:
        """List them as the ledger says now; nothing of their secrets. Raises: as `list_keys`."""
        return Keys(items=await list_keys(place.ledger, ended=self.ended))

    def say(self, found: Keys) -> Iterator[Told]:
        """Yield a table of them."""
        if not found.items:
            yield "there is no key; make one with `jobledger keys create NAME --role viewer`"
            return
        yield Table(
            ("id", "name", "allows", "stands", "used!", "expires!"),
            [
                (
                    each.key,
                    each.name,
                    allowed_words(each),
                    each.standing,
                    each.last_used_at,
                    None if each.expires_at is None else shown_time(each.expires_at)[:10],
                )
                for each in found.items
            ],
        )


@verb(
    "keys create",
    "POST /v1/keys",
    permission="admin",
    summary="Make a key; its secret is told once",
    problems=("JOB_INVALID_INPUT", "LEDGER_FULL"),
    status=201,
    location="/v1/keys/{key}",
    form="/keys/create",
    creates=True,
)
class CreateKey(Verb[MadeKey], frozen=True, kw_only=True):
    """Make a key for the gateway. It is shown once, on stdout, and kept nowhere: the ledger has only its sha256."""

    name: Annotated[str, option("Whose it is, or what it is for.", "NAME", is_argument=True)]
    role: Annotated[Role | None, option(f"What it allows: {', '.join(ROLES)}.", "ROLE")] = None
    permissions: Annotated[
        tuple[Permission, ...],
        option(f"Allow this too; may be given again: {', '.join(PERMISSIONS)}.", "WORD", flag="--permission"),
    ] = ()
    queues: Annotated[
        tuple[str, ...],
        option(
            "Only these queues, such as 'billing-*'; may be given again.",
            "PATTERN",
            flag="--queue",
        ),
    ] = ()
    tasks: Annotated[
        tuple[str, ...], option("Only these tasks; may be given again.", "PATTERN", flag="--task")
    ] = ()
    expires_at: Annotated[
        datetime | None,
        option("End it at this time, or after a span such as 90d.", "TIME", flag="--expires"),
    ] = None
    reason: Reason = ""

    async def do(self, place: Place) -> MadeKey:
        """Make it. Raises: as `create_key`."""
        grant = Grant(role=self.role, permissions=self.permissions, queues=self.queues, tasks=self.tasks)
        return await create_key(
            place.ledger, self.name, grant, expires_at=self.expires_at, reason=self.reason, by=place.by
        )

    def say(self, found: MadeKey) -> Iterator[Told]:
        """Yield the secret alone, for whoever puts it into a file."""
        info = found.info
        yield found.secret
        yield Note(f"key {info.key} of {info.name} is made: {allowed_words(info)}. {_KEEP}")


@verb(
    "keys show",
    "GET /v1/keys/{id}",
    permission="admin",
    summary="Show a key and its history",
    problems=("NOT_FOUND",),
)
class ShowKey(Verb[ShownKey], frozen=True, kw_only=True):
    """Show a key: what it allows, who made it, when it was used last, and its history."""

    id: Id

    async def do(self, place: Place) -> ShownKey:
        """Read its chain. Raises: as `show_key`."""
        return await show_key(place.ledger, self.id)

    def say(self, found: ShownKey) -> Iterator[Told]:
        """Yield what is known of it, and its changes."""
        info = found.info
        yield Heading(f"key {info.key}")
        yield Facts(
            [
                ("name", info.name),
                ("stands", info.standing),
                ("allows", allowed_words(info)),
                ("made", info.created_at),
                ("made by", info.created_by),
                ("expires", None if info.expires_at is None else shown_time(info.expires_at)),
                ("old secret", None if info.grace_until is None else f"until {shown_time(info.grace_until)}"),
                ("last used", info.last_used_at),
                ("last used from", info.last_used_from or None),
            ]
        )
        yield from told_changes(found.history)


@verb(
    "keys revoke",
    "DELETE /v1/keys/{id}",
    permission="admin",
    summary="End a key for good",
    problems=_ENDED,
    form="/keys/{id}/revoke",
    then="/keys",
)
class RevokeKey(Verb[KeyInfo], frozen=True, kw_only=True):
    """End a key or a link for good, with the sessions that were opened with it: gateways refuse it within a second."""

    id: Id
    reason: Reason = ""

    async def do(self, place: Place) -> KeyInfo:
        """End it. Raises: as `revoke_key`."""
        return await revoke_key(place.ledger, self.id, reason=self.reason, by=place.by)

    def say(self, found: KeyInfo) -> Iterator[Told]:
        """Say that it is revoked."""
        yield f"key {found.key} of {found.name} is revoked"


@verb(
    "keys rotate",
    "POST /v1/keys/{id}/rotate",
    permission="admin",
    summary="Give a key another secret; it is told once",
    problems=("JOB_INVALID_INPUT", *_ENDED),
    form="/keys/{id}/rotate",
)
class RotateKey(Verb[MadeKey], frozen=True, kw_only=True):
    """Give a key another secret, shown once. The old one ends at once, or after --grace, to let programs change over."""

    id: Id
    grace_s: Annotated[float, option("Let the old secret work this long.", "SPAN")] = 0.0
    reason: Reason = ""

    async def do(self, place: Place) -> MadeKey:
        """Give it another one. Raises: as `rotate_key`."""
        return await rotate_key(place.ledger, self.id, grace_s=self.grace_s, reason=self.reason, by=place.by)

    def say(self, found: MadeKey) -> Iterator[Told]:
        """Yield the secret alone, for whoever puts it into a file."""
        until = found.info.grace_until
        old = "is refused from now on" if until is None else f"works until {shown_time(until)}"
        yield found.secret
        yield Note(f"key {found.key} has another secret; the old one {old}. {_KEEP}")
