"""The rights of people whom a proxy or a provider names: a file of users and groups, read again when it changes.

[users."dana@shop.example"]
role = "operator"
queues = ["billing-*"]

[groups.ops]
role = "admin"

[everyone]
role = "viewer"
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from jobledger.ledger.files import open_file
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError
from jobledger.ledger.model.rights.authority import Principal, principal_of
from jobledger.ledger.model.rights.grants import Permission, Role, Scope, checked_patterns, permissions_of

_FILE_BYTES_MAX: Final = 1 << 20
_LOOK_EVERY_S: Final = 1.0
_log = logging.getLogger("jobledger.gateway.people")


class _Allowance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rights of one user or group."""

    role: Role | None = None
    permissions: tuple[Permission, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


class _Book(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    users: dict[str, _Allowance] = {}
    groups: dict[str, _Allowance] = {}
    everyone: _Allowance | None = None


class People:
    """The file of people in its present content."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Read it. Raises: ConfigurationError."""
        self._path = path
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._book = _Book()
        self._looked_at = clock.monotonic()
        self._read()

    def principal(self, user: str, groups: Sequence[str] = ()) -> Principal | None:
        """Return a user's principal, by the rights of the user, else the first group, else everyone; or None.

        A change of the file counts within a second; a file that is wrong or missing lets in nobody.
        """
        now = self._clock.monotonic()
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            try:
                self._read()
            except ConfigurationError as error:
                if self._seen is not None:
                    _log.warning("nobody whom it names is let in: %s", error)
                self._seen, self._book = None, _Book()
        book = self._book
        found = book.users.get(user) or next(
            (book.groups[group] for group in groups if group in book.groups), book.everyone
        )
        if found is None:
            return None
        scope = Scope(queues=found.queues, tasks=found.tasks)
        return principal_of(f"user:{user}", permissions_of(found.role, found.permissions), scope)

    def known(self, groups: Sequence[str]) -> tuple[str, ...]:
        """Return those of a person's groups that the file names, for the session to store."""
        return tuple(group for group in groups if group in self._book.groups)

    def _read(self) -> None:
        try:
            with open_file(self._path, bytes_max=_FILE_BYTES_MAX) as file:
                status = self._path.stat()
                seen = (status.st_mtime_ns, status.st_size, status.st_ino)
                if seen == self._seen:
                    return
                book = msgspec.convert(tomllib.loads(file.read().decode()), _Book)
            self._book, self._seen = _checked(book), seen
        except (OSError, ValueError, msgspec.ValidationError, InvalidInputError) as error:
            raise ConfigurationError(f"{self._path} does not say what people may do: {error}") from error


def _checked(book: _Book) -> _Book:
    """Sort patterns; where one matches everything, return none. Raises: InvalidInputError."""
    return _Book(
        users={name: _in_order(each) for name, each in book.users.items()},
        groups={name: _in_order(each) for name, each in book.groups.items()},
        everyone=None if book.everyone is None else _in_order(book.everyone),
    )


def _in_order(allowed: _Allowance) -> _Allowance:
    if allowed.role is None and not allowed.permissions:
        raise InvalidInputError(
            "somebody has neither a role nor permissions: give one, or leave the entry out"
        )
    return msgspec.structs.replace(
        allowed,
        queues=checked_patterns("queues", allowed.queues),
        tasks=checked_patterns("tasks", allowed.tasks),
    )
