"""Who asks, and what they may do: permissions, the roles that are made of them, and the scope they hold in. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, Literal, get_args

import msgspec

from jobledger.gateway.problems import ProblemError

Permission = Literal["view", "payloads", "queue", "run", "cancel", "review", "manage", "admin"]
PERMISSIONS: Final[tuple[Permission, ...]] = get_args(Permission)

#: What each role may do. `payloads`: see inputs, results and checkpoints. `review`: requeue and discard dead letters.
ROLES: Final[dict[str, frozenset[Permission]]] = {
    "viewer": frozenset({"view"}),
    "enqueuer": frozenset({"queue"}),
    "operator": frozenset(PERMISSIONS) - {"admin"},
    "admin": frozenset(PERMISSIONS),
}


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: a key, a person that logged in, or whoever sits at this machine."""

    name: str  #: what events say in `by`
    permissions: frozenset[Permission]
    queues: tuple[str, ...] = (
        "*",
    )  #: name patterns, as in a shell; jobs of other queues are not there for it
    tasks: tuple[str, ...] = ("*",)
    key_id: str = ""  #: "" for who needs no key

    def may(self, permission: Permission, queue: str | None = None, task: str | None = None) -> bool:
        """Return whether this is allowed, in a queue and for a task where those are given."""
        return (
            permission in self.permissions
            and (queue is None or _matches(queue, self.queues))
            and (task is None or _matches(task, self.tasks))
        )

    def require(self, permission: Permission, queue: str | None = None, task: str | None = None) -> None:
        """Refuse what is not allowed. Raises: ProblemError (JOB_ACCESS_DENIED)."""
        if not self.may(permission, queue, task):
            of_what = " ".join(
                f"{kind} {value}" for kind, value in (("queue", queue), ("task", task)) if value is not None
            )
            where = f" for {of_what}" if of_what else ""
            raise ProblemError(
                "JOB_ACCESS_DENIED",
                f"{self.name} lacks the permission {permission!r}{where}: ask who manages the keys for it",
            )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(pattern == "*" or fnmatchcase(name, pattern) for pattern in patterns)
