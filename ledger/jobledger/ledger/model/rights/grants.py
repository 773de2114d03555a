"""Permissions, and the jobs that they are for: `Permission`, `ROLES` and `Scope`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from jobledger.ledger.model.errors import InvalidInputError

#: `view`: see jobs, queues and events, without inputs and results; `payloads`: see those, too; `queue`: add jobs;
#: `run`: have jobs run now; `cancel`: cancel and retry; `review`: requeue and discard dead letters; `manage`: pause
#: queues, set limits, schedules and webhooks; `erase`: erase and hold the data of owners; `admin`: make and revoke
#: keys.
Permission = Literal["view", "payloads", "queue", "run", "cancel", "review", "manage", "erase", "admin"]
Role = Literal["viewer", "enqueuer", "operator", "admin"]

PERMISSIONS: Final[tuple[Permission, ...]] = get_args(Permission)
ROLES: Final[Mapping[Role, frozenset[Permission]]] = {
    "viewer": frozenset({"view"}),
    "enqueuer": frozenset({"queue"}),
    "operator": frozenset(PERMISSIONS) - {"erase", "admin"},
    "admin": frozenset(PERMISSIONS),
}
#: The most patterns of one kind in a scope.
PATTERNS_MAX: Final = 50
_PATTERN: Final = re.compile(r"[A-Za-z0-9_*-]{1,64}", flags=re.ASCII)


class Scope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The jobs that rights are for: their queue and their task both match a pattern. `*` stands for any characters."""

    queues: tuple[str, ...] = ()  #: patterns of queues' names; none: every queue
    tasks: tuple[str, ...] = ()  #: patterns of tasks' names; none: every task

    @property
    def is_everything(self) -> bool:
        """Whether it contains every job."""
        return not (self.queues or self.tasks)

    def has(self, queue: str, task: str) -> bool:
        """Return whether a job of this queue and task is in the scope."""
        return self.has_queue(queue) and self.has_task(task)

    def has_queue(self, queue: str) -> bool:
        """Return whether jobs of this queue may be in it, depending on their tasks."""
        return not self.queues or any(matches(each, queue) for each in self.queues)

    def has_task(self, task: str) -> bool:
        """Return whether jobs of this task may be in it, depending on their queues."""
        return not self.tasks or any(matches(each, task) for each in self.tasks)


EVERYTHING: Final = Scope()


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, in time that grows at most with the product of their lengths."""
    if "*" not in pattern:
        return pattern == name
    first, *middle, last = pattern.split("*")
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def checked_patterns(field: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return patterns of names, each once, in order; () if one of them matches every name.

    Raises: InvalidInputError, naming `field`.
    """
    for each in given:
        if _PATTERN.fullmatch(each) is None:
            raise InvalidInputError(
                f"{field} must be patterns of 1 to 64 of A-Z a-z 0-9 _ - and *, got {each[:60]!a}"
            )
    if len(given) > PATTERNS_MAX:
        raise InvalidInputError(f"{field} has {len(given)} patterns: give at most {PATTERNS_MAX}")
    found = set(given)
    return () if any(not each.strip("*") for each in found) else tuple(sorted(found))


def permissions_of(role: Role | None, more: Sequence[Permission]) -> frozenset[Permission]:
    """Return the permissions of a role together with further ones."""
    return frozenset(more) if role is None else ROLES[role].union(more)
