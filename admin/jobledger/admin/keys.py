"""What a person does with keys of the gateway: make, list, rotate and revoke them, and links that serve once."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from jobledger.admin.events.changes import Change, state_and_changes
from jobledger.ledger.access.keys import all_keys, change_key
from jobledger.ledger.access.secret import new_key, read_key
from jobledger.ledger.client import Ledger
from jobledger.ledger.files import make_folder, open_file, write_once
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError, NotFoundError, RefusedError
from jobledger.ledger.model.key import ACCESS, CreateKey, Key, RevokeKey, RotateKey, Standing
from jobledger.ledger.model.rights.grants import PERMISSIONS, ROLES, Permission, Role
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.nats.books.key_uses import KeyUse, read_uses

#: How long a link can be used by default and at most, and how long the session that it opens lasts.
LINK_S: Final = 600.0
LINK_S_MAX: Final = 7 * 24 * 3600.0
SESSION_S: Final = 12 * 3600.0
_FILE_BYTES_MAX: Final = 1_024


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What the holder of a key may do, and to which jobs."""

    role: Role | None = None  #: a name for a set of permissions
    permissions: tuple[Permission, ...] = ()  #: permissions beside the role's
    queues: tuple[str, ...] = ()  #: patterns of queues' names; none: every queue
    tasks: tuple[str, ...] = ()  #: patterns of tasks' names; none: every task


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it stands; nothing of its secret."""

    key: str  #: its id
    name: str
    standing: Standing  #: live, link (to be used once), used (a link), expired or revoked
    role: Role | None
    permissions: tuple[Permission, ...]  #: all permissions, with those of the role
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    created_at: Moment
    created_by: str
    expires_at: Moment | None
    grace_until: Moment | None  #: until when the secret before the last rotation is good
    last_used_at: Moment | None  #: exact to a minute; none: no gateway saw it
    last_used_from: str  #: the address of that use
    changed_at: Moment  #: when its newest event was appended
    changed_by: str
    reason: str  #: why, as that person said


class ShownKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and its newest changes."""

    info: KeyInfo
    history: tuple[Change, ...]  #: the newest first


class MadeKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was made, or has another secret. `secret` is stored nowhere: the caller has to keep it."""

    info: KeyInfo
    secret: str  #: the whole text, `jl_<id>_<secret>`

    @property
    def key(self) -> str:
        """Its id."""
        return self.info.key


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys and links, by name."""

    items: list[KeyInfo]


async def create_key(
    ledger: Ledger,
    name: str,
    grant: Grant,
    *,
    expires_at: datetime | None = None,
    reason: str = "",
    by: str,
) -> MadeKey:
    """Make a key. Raises: InvalidInputError, RefusedError, LedgerFullError, ServerUnreachableError."""
    made = new_key()
    command = CreateKey(
        name=name, sha256=made.sha256, **msgspec.structs.asdict(grant), expires_at=expires_at, reason=reason
    )
    return MadeKey(info=_info(await change_key(ledger, made.key, command, by=by), ledger), secret=made.text)


async def ensure_first_key(ledger: Ledger, file: Path, *, by: str) -> KeyInfo | None:
    """Give a ledger without keys its first one, which may do everything, from a file that holds its text.

    A file that is missing is made, with a new key, for its owner alone. Return None if the ledger has keys, also ended
    ones: then it gets no key, so that the same call can be made at each start.

    Raises: ConfigurationError for a file that cannot be read or made, or holds no key; as `create_key`.
    """
    text = _read_or_make(file)
    shown = read_key(text)
    if shown is None:
        raise ConfigurationError(
            f"{file} holds no key, which is jl_ID_SECRET: delete it, and a key is made and kept there"
        )
    if await all_keys(ledger.log):
        return None
    command = CreateKey(name="first", sha256=shown.sha256, role="admin", reason="the first key, from a file")
    try:
        return _info(await change_key(ledger, shown.key, command, by=by), ledger)
    except RefusedError:  # another process made it meanwhile
        return None


def _read_or_make(file: Path) -> str:
    """Return what a file holds, after making a missing one with a new key. Raises: ConfigurationError."""
    try:
        if not file.exists():
            make_folder(file.parent)
            write_once(file, f"{new_key().text}\n".encode())
        with open_file(file, bytes_max=_FILE_BYTES_MAX) as opened:
            return opened.read().decode(errors="replace").strip()
    except OSError as error:
        raise ConfigurationError(
            f"the first key cannot be kept in {file}: {error.strerror or error}"
        ) from error


async def create_link(
    ledger: Ledger,
    name: str,
    grant: Grant,
    *,
    valid_s: float = LINK_S,
    session_s: float = SESSION_S,
    reason: str = "",
    by: str,
) -> MadeKey:
    """Make a link: a key that logs somebody in once within `valid_s` seconds; its session lasts `session_s` at the most.

    Raises: as `create_key`.
    """
    if not 0 < valid_s <= LINK_S_MAX:
        raise InvalidInputError(f"a link can be valid for up to {LINK_S_MAX:,.0f} s, got {valid_s:g}")
    made, now = new_key(), ledger.clock.now()
    redeem_by = now + timedelta(seconds=valid_s)
    command = CreateKey(
        name=name,
        sha256=made.sha256,
        **msgspec.structs.asdict(grant),
        redeem_by=redeem_by,
        expires_at=redeem_by + timedelta(seconds=session_s),
        reason=reason,
    )
    return MadeKey(info=_info(await change_key(ledger, made.key, command, by=by), ledger), secret=made.text)


async def rotate_key(ledger: Ledger, key: str, *, grace_s: float = 0.0, reason: str = "", by: str) -> MadeKey:
    """Give a key another secret; the old one works for `grace_s` seconds more, so that programs can change over.

    Raises: InvalidInputError, InvalidTokenError, NotFoundError, RefusedError, LedgerFullError, ServerUnreachableError.
    """
    made = new_key(key)
    command = RotateKey(sha256=made.sha256, grace_s=grace_s, reason=reason)
    return MadeKey(info=_info(await change_key(ledger, key, command, by=by), ledger), secret=made.text)


async def revoke_key(ledger: Ledger, key: str, *, reason: str = "", by: str) -> KeyInfo:
    """End a key or a link: every gateway refuses it within a second, and the sessions that were opened with it.

    Raises: InvalidTokenError, NotFoundError, RefusedError for one that has ended, LedgerFullError,
        ServerUnreachableError.
    """
    return _info(await change_key(ledger, key, RevokeKey(reason=reason), by=by), ledger)


async def list_keys(ledger: Ledger, *, ended: bool = False) -> list[KeyInfo]:
    """Return the keys that are not expired or revoked, by name; with `ended` return those, too.

    Read from the ledger, so never stale. Raises: CorruptLedgerError, UnreachableError.
    """
    keys = await all_keys(ledger.log)
    uses = await read_uses(ledger.connection, ledger.inbox, ledger.names, list(keys))
    infos = [_info(key, ledger, uses.get(key.key)) for key in keys.values()]
    chosen = (each for each in infos if ended or each.standing not in {"expired", "revoked"})
    return sorted(chosen, key=lambda each: (each.name, each.created_at))


async def show_key(ledger: Ledger, key: str) -> ShownKey:
    """Return a key as its chain says now, and its newest events. Raises: InvalidTokenError, NotFoundError, UnreachableError."""
    check_token("id of a key", key)
    missing = NotFoundError(
        f"there is no key {key}: `jobledger keys list --all` shows those that are, by their ids"
    )
    found, history = await state_and_changes(ledger.log, ACCESS, key, missing=missing)
    uses = await read_uses(ledger.connection, ledger.inbox, ledger.names, [key])
    return ShownKey(info=_info(found, ledger, uses.get(key)), history=history)


def _info(key: Key, ledger: Ledger, use: KeyUse | None = None) -> KeyInfo:
    now = ledger.clock.now()
    in_grace = key.previous_until is not None and now < key.previous_until
    return KeyInfo(
        key=key.key,
        name=key.name,
        standing=key.standing(now),
        role=key.role,
        permissions=in_order(key.allowed),
        queues=key.queues,
        tasks=key.tasks,
        created_at=key.made_at,
        created_by=key.made_by,
        expires_at=key.expires_at,
        grace_until=key.previous_until if in_grace else None,
        last_used_at=None if use is None else use.at,
        last_used_from="" if use is None else use.client,
        changed_at=key.at,
        changed_by=key.by,
        reason=key.reason,
    )


def in_order(permissions: Collection[Permission]) -> tuple[Permission, ...]:
    """Return permissions in the order in which they are always listed."""
    return tuple(each for each in PERMISSIONS if each in permissions)


def allowed_words(info: KeyInfo) -> str:
    """Return what a key allows: role, further permissions, queues and tasks."""
    of_role = ROLES[info.role] if info.role is not None else frozenset[Permission]()
    words = [info.role or "", *(each for each in info.permissions if each not in of_role)]
    parts = [" ".join(each for each in words if each)]
    parts += [f"queues {' '.join(info.queues)}"] if info.queues else []
    parts += [f"tasks {' '.join(info.tasks)}"] if info.tasks else []
    return ", ".join(parts)
