"""The events of a gateway's keys, the state they add up to, and what may follow: `AccessEvent`. Pure.

Each key has a chain of its own, `ledger.access.<key id>.>`, and each event but `revoked` holds the whole state, so the
newest one *is* the state. The ledger holds the sha256 of a key's secret and never the secret. A link is a key that can
only be redeemed, once, for a session. Released fields never change type, meaning or name.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, ArchiveBound, Broken
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope, Moment
from jobledger.ledger.model.errors import InvalidInputError, NotFoundError, RefusedError
from jobledger.ledger.model.inputs import check_word, keep_utc
from jobledger.ledger.model.rights.grants import (
    PERMISSIONS,
    ROLES,
    Permission,
    Role,
    Scope,
    checked_patterns,
    permissions_of,
)
from jobledger.ledger.model.times import shown_time

#: The standing of a key: it can be used; it is an unused link; its time is over; somebody ended it.
Standing = Literal["live", "link", "used", "expired", "revoked"]

NAME_MAX: Final = 64
GRACE_S_MAX: Final = 90 * 24 * 3600.0
_SHA256: Final = re.compile(r"[0-9a-f]{64}", flags=re.ASCII)


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a key."""

    key: str  #: the key's id, 12 of a-z and 0-9
    reason: str = ""  #: why, as the person said


class _Whole(_Fact, frozen=True, kw_only=True, gc=False):
    """The whole key after an event that does not end it."""

    name: str  #: its holder or purpose, in the words of the person who made it
    sha256: str  #: hex digest of the 32 random bytes of its secret
    role: Role | None = None  #: the role of its holder
    permissions: tuple[Permission, ...] = ()  #: further permissions of its holder
    queues: tuple[str, ...] = ()  #: patterns of the names of the queues it is good for; none: all
    tasks: tuple[str, ...] = ()  #: patterns of the names of the tasks it is good for; none: all
    expires_at: Moment | None = None  #: when it ends by itself; none: it does not


class KeyCreated(_Whole, frozen=True, kw_only=True, tag="created", gc=False):
    """Somebody made a key, or a link."""

    redeem_by: Moment | None = (
        None  #: of a link: the end of the time in which it can be used, once; none: it is a key
    )


class KeyRotated(_Whole, frozen=True, kw_only=True, tag="rotated", gc=False):
    """The key has another secret from here on; its id and all else stay."""

    previous: str = ""  #: sha256 of the previous secret, which is valid for a while; "": it is not
    previous_until: Moment | None = None  #: until when
    made_at: Moment  #: when the key was created
    made_by: str  #: by whom


class KeyRedeemed(_Whole, frozen=True, kw_only=True, tag="redeemed", gc=False):
    """Somebody used the link to log in. It cannot be used again; its session goes on."""

    made_at: Moment  #: when the link was created
    made_by: str  #: by whom


class KeyRevoked(_Fact, frozen=True, kw_only=True, tag="revoked", gc=False):
    """The key ended for good, with every session that was opened with it."""


AccessEvent = KeyCreated | KeyRotated | KeyRedeemed | KeyRevoked


def _is_same(one: str, other: str) -> bool:
    """Compare in constant time; as bytes, since a forged event may hold characters that `hmac` does not compare."""
    return hmac.compare_digest(one.encode(), other.encode())


class Key(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A key after its newest event."""

    key: str
    sequence: int  #: stream sequence of that event
    at: Moment  #: when that event was appended, by its appender's clock
    by: str  #: who appended it
    reason: str = ""  #: why, as that person said
    name: str = ""
    sha256: str = ""  #: "": it was revoked
    role: Role | None = None
    permissions: tuple[Permission, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    expires_at: Moment | None = None
    redeem_by: Moment | None = None
    redeemed: bool = False
    previous: str = ""
    previous_until: Moment | None = None
    made_at: Moment
    made_by: str

    @property
    def allowed(self) -> frozenset[Permission]:
        """What its holder may do."""
        return permissions_of(self.role, self.permissions)

    @property
    def scope(self) -> Scope:
        """Which jobs it is good for."""
        return Scope(queues=self.queues, tasks=self.tasks)

    @property
    def is_revoked(self) -> bool:
        """Whether somebody ended it."""
        return not self.sha256

    @property
    def is_link(self) -> bool:
        """Whether it only serves to log in once."""
        return self.redeemed or self.redeem_by is not None

    def standing(self, now: datetime) -> Standing:
        """Return its standing at a moment at or after its newest event."""
        if self.is_revoked:
            return "revoked"
        if self._is_over(now) or (self.redeem_by is not None and now >= self.redeem_by):
            return "expired"
        if self.redeemed:
            return "used"
        return "live" if self.redeem_by is None else "link"

    def opens(self, sha256: str, now: datetime) -> bool:
        """Return whether a secret with this digest belongs to the key; compared in constant time."""
        is_current = _is_same(self.sha256, sha256)
        is_previous = _is_same(self.previous, sha256)
        in_grace = self.previous_until is not None and now < self.previous_until
        return self.standing(now) == "live" and (is_current or (is_previous and in_grace))

    def redeems(self, sha256: str, now: datetime) -> bool:
        """Return whether a secret with this digest can redeem this link."""
        return self.standing(now) == "link" and _is_same(self.sha256, sha256)

    def keeps_session(self, sha256: str, now: datetime) -> bool:
        """Return whether a session that was opened with a secret of this digest goes on.

        A link has a session only after it was redeemed; the caller may not have read that event yet.
        """
        if self.is_link:
            return self.standing(now) in {"link", "used"} and _is_same(self.sha256, sha256)
        return self.opens(sha256, now)

    def _is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def words(self) -> str:
        """Return what its holder may do, for a person: `operator, queues billing-*, until ...`."""
        return _granted(self)


def _granted(said: Key | _Whole) -> str:
    allowed = [said.role or "", *said.permissions]
    parts = [" ".join(each for each in allowed if each)]
    parts += [f"queues {' '.join(said.queues)}"] if said.queues else []
    parts += [f"tasks {' '.join(said.tasks)}"] if said.tasks else []
    parts += [] if said.expires_at is None else [f"until {shown_time(said.expires_at)}"]
    return ", ".join(parts)


_WHOLE: Final = ("name", "sha256", "role", "permissions", "queues", "tasks", "expires_at")


def evolve(before: Key | None, event: AccessEvent, stream_sequence: int) -> Key:
    """Return the key after `event`; only `revoked` builds on the key before it."""
    said: dict[str, Any] = {
        "key": event.key,
        "sequence": stream_sequence,
        "at": event.at,
        "by": event.by,
        "reason": event.reason,
    }
    if isinstance(event, KeyRevoked):
        if before is None:
            return Key(**said, made_at=event.at, made_by="")
        kept = {"sha256": "", "previous": "", "previous_until": None, "redeem_by": None}
        return msgspec.structs.replace(before, **said, **kept)
    said |= {field: getattr(event, field) for field in _WHOLE}
    match event:
        case KeyCreated(redeem_by=redeem_by):
            return Key(**said, made_at=event.at, made_by=event.by, redeem_by=redeem_by)
        case KeyRotated(previous=previous, previous_until=until):
            said |= {"made_at": event.made_at, "made_by": event.made_by}
            return Key(**said, previous=previous, previous_until=until)
        case KeyRedeemed(made_at=made_at, made_by=made_by):
            return Key(**said, made_at=made_at, made_by=made_by, redeemed=True)


class CreateKey(msgspec.Struct, frozen=True, kw_only=True):
    """Make a key; with `redeem_by` a link."""

    name: str
    sha256: str
    role: Role | None = None
    permissions: tuple[Permission, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    expires_at: datetime | None = None
    redeem_by: datetime | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse a key without a name or without a permission, and put its lists in order.

        Raises: InvalidInputError.
        """
        check_word("the name of a key", self.name)
        if len(self.name) > NAME_MAX:
            raise InvalidInputError(
                f"the name of a key has {len(self.name)} characters: give at most {NAME_MAX}"
            )
        _check_allowed(self.role, self.permissions)
        check_sha256(self.sha256)
        for field in ("expires_at", "redeem_by"):
            keep_utc(self, field)
        put = msgspec.structs.force_setattr
        put(self, "permissions", tuple(each for each in PERMISSIONS if each in self.permissions))
        put(self, "queues", checked_patterns("queues", self.queues))
        put(self, "tasks", checked_patterns("tasks", self.tasks))


def _check_allowed(role: str | None, permissions: tuple[str, ...]) -> None:
    if role is not None and role not in ROLES:
        raise InvalidInputError(f"there is no role {role[:60]!a}: choose {_either(tuple(ROLES))}")
    for each in permissions:
        if each not in PERMISSIONS:
            raise InvalidInputError(f"there is no permission {each[:60]!a}: choose {_either(PERMISSIONS)}")
    if role is None and not permissions:
        raise InvalidInputError(f"a key needs a role ({_either(tuple(ROLES))}) or permissions")


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def check_sha256(value: str) -> None:
    """Refuse a text that is no digest. Raises: InvalidInputError, without the value, which may be a secret."""
    if _SHA256.fullmatch(value) is None:
        raise InvalidInputError("sha256 of a key's secret must be 64 hexadecimal digits")


class RotateKey(msgspec.Struct, frozen=True, kw_only=True):
    """Give a key another secret; the previous one is valid for `grace_s` seconds more."""

    sha256: str
    grace_s: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work. Raises: InvalidInputError."""
        check_sha256(self.sha256)
        if not 0 <= self.grace_s <= GRACE_S_MAX:
            raise InvalidInputError(f"grace_s must be from 0 to {GRACE_S_MAX:,.0f}, got {self.grace_s!r}")


class RedeemKey(msgspec.Struct, frozen=True, kw_only=True):
    """Use a link, for good."""


class RevokeKey(msgspec.Struct, frozen=True, kw_only=True):
    """End a key or a link, and the sessions that were opened with it."""

    reason: str = ""


AccessCommand = CreateKey | RotateKey | RedeemKey | RevokeKey


def decide(key: str, before: Key | None, command: AccessCommand, stamp: Stamp) -> AccessEvent:
    """Return the event that follows from a command.

    Raises: NotFoundError for a missing key; RefusedError for one that has ended, or a link in place of a key or a key
    in place of a link; InvalidInputError for a time that is past; AccessDeniedError.
    """
    stamp.require_everywhere("admin")
    fact: dict[str, Any] = {"key": key, **stamp.fact}
    if isinstance(command, CreateKey):
        return _created(before, command, fact)
    known = _living(key, before, stamp.at)
    same: dict[str, Any] = {field: getattr(known, field) for field in (*_WHOLE, "made_at", "made_by")}
    match command:
        case RotateKey(sha256=sha256, grace_s=grace_s, reason=reason):
            if known.is_link:
                raise RefusedError(f"key {key} is a link, which has no second secret: make another one")
            if known.opens(sha256, stamp.at):
                raise RefusedError(f"key {key} has this secret already: give it another one")
            grace: dict[str, Any] = {}
            if grace_s:
                grace = {"previous": known.sha256, "previous_until": stamp.at + timedelta(seconds=grace_s)}
            return KeyRotated(**fact, **{**same, "sha256": sha256}, **grace, reason=reason)
        case RedeemKey():
            if known.standing(stamp.at) != "link":
                raise RefusedError("this link was used before: ask for another one")
            return KeyRedeemed(**fact, **same)
        case RevokeKey(reason=reason):
            return KeyRevoked(**fact, reason=reason)


def _created(before: Key | None, command: CreateKey, fact: dict[str, Any]) -> KeyCreated:
    if before is not None:
        raise RefusedError(f"key {fact['key']} exists already: choose another id")
    for field in ("expires_at", "redeem_by"):
        moment: datetime | None = getattr(command, field)
        if moment is not None and moment <= fact["at"]:
            raise InvalidInputError(f"{field} {shown_time(moment)} is past: give a later time")
    return KeyCreated(**fact, **msgspec.structs.asdict(command))


def _living(key: str, before: Key | None, now: datetime) -> Key:
    """Return a key that was not ended. Raises: NotFoundError, RefusedError."""
    if before is None:
        raise NotFoundError(
            f"there is no key {key}: `jobledger keys list` shows those that are, by their ids"
        )
    standing = before.standing(now)
    if standing in {"revoked", "expired"}:
        what = "link" if before.is_link else "key"
        raise RefusedError(f"{what} {key} is {standing}: ask for another one")
    return before


def _words(event: AccessEvent) -> str:
    said: list[str] = []
    if isinstance(event, _Whole):
        said.append(f"{event.name}: {_granted(event)}")
    match event:
        case KeyCreated(redeem_by=datetime() as by):
            said.append(f"a link, to be used until {shown_time(by)}")
        case KeyRotated(previous_until=datetime() as until):
            said.append(f"the old secret until {shown_time(until)}")
        case _:
            pass
    return ", ".join([*said, *([event.reason] if event.reason else [])])


def _check(before: Key | None, event: AccessEvent, stream_sequence: int) -> Iterator[Broken]:
    """Decide the command of an event again; the result must be the same."""
    if before is None and event.prev:
        return  # the earlier events were archived
    after = evolve(before, event, stream_sequence)
    if before is not None and after == msgspec.structs.replace(before, sequence=stream_sequence):
        return  # an archive run appends the current state once more
    try:
        again = decide(
            event.key, before, _command_of(event), Stamp(at=event.at, by=event.by, trace=event.trace)
        )
    except (InvalidInputError, NotFoundError, RefusedError) as error:
        yield "transition", f"`{ACCESS.type_of(event)}` was accepted, although {error}"
        return
    if evolve(before, again, stream_sequence) != after:
        yield "transition", f"`{ACCESS.type_of(event)}` changed what the key was made with"


def _command_of(event: AccessEvent) -> AccessCommand:
    """Return the command behind an event. Raises: InvalidInputError for a command that nobody can give."""
    match event:
        case KeyCreated():
            fields = CreateKey.__struct_fields__
            return CreateKey(**{field: getattr(event, field) for field in fields})
        case KeyRotated(previous_until=until):
            grace_s = 0.0 if until is None else (until - event.at).total_seconds()
            return RotateKey(sha256=event.sha256, grace_s=grace_s, reason=event.reason)
        case KeyRedeemed():
            return RedeemKey()
        case KeyRevoked(reason=reason):
            return RevokeKey(reason=reason)


def _keeps(event: AccessEvent, stream_sequence: int) -> ArchiveBound | None:
    """Keep a valid key; the chain of a revoked or expired key may go, since an unknown key is refused, too."""
    if isinstance(event, KeyRevoked):
        return None
    what = f"key {event.key}, which is as stream sequence {stream_sequence} says"
    ends = event.redeem_by if isinstance(event, KeyCreated) and event.redeem_by else event.expires_at
    return ArchiveBound(stream_sequence, what, until=ends)


ACCESS: Aggregate[AccessEvent, Key] = Aggregate(
    "access",
    ("key",),
    AccessEvent,
    state=Key,
    evolve=evolve,
    words=_words,
    check=_check,
    keeps=_keeps,
    removed=KeyRevoked,
)
