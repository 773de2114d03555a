"""Who acts, under which key, and what they may do to which jobs: the authority that a command carries. Pure.

Each command is checked against the authority in its stamp, whichever way it came. One without an authority is an
operator's: it comes from a program that uses the ledger directly: an application, a worker or the command line.
"""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.ledger.model.errors import AccessDeniedError
from jobledger.ledger.model.rights.grants import Permission, Scope, matches

#: What matches every name.
EVERY: Final = ("*",)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who acts: a key, a person that logged in, or whoever sits at the machine of the gateway."""

    name: str  #: what events say in `by`: `key:<name>/<id>`, `user:<name>` or `local:<account>`
    permissions: frozenset[Permission]
    queues: tuple[str, ...] = EVERY  #: name patterns; jobs of other queues are not there for it
    tasks: tuple[str, ...] = EVERY  #: the same of tasks
    key_id: str = ""  #: "" for who needs no key
    keyed: str = ""  #: the id that the `Idempotency-Key` of their request gives to its job; "": none

    def may(self, permission: Permission, queue: str | None = None, task: str | None = None) -> bool:
        """Return whether this is allowed, in a queue and for a task where those are given.

        Without them it says whether it is allowed somewhere: callers that list or count keep only what is in `scope`.
        """
        return (
            permission in self.permissions
            and (queue is None or self.queues == EVERY or _matches(queue, self.queues))
            and (task is None or self.tasks == EVERY or _matches(task, self.tasks))
        )

    def require(self, permission: Permission, queue: str | None = None, task: str | None = None) -> None:
        """Refuse what is not allowed. Raises: AccessDeniedError."""
        if not self.may(permission, queue, task):
            of_what = " ".join(
                f"{kind} {value}" for kind, value in (("queue", queue), ("task", task)) if value is not None
            )
            where = f" for {of_what}" if of_what else ""
            raise AccessDeniedError(
                f"{self.name} lacks the permission {permission!r}{where}: ask who manages the keys for it"
            )

    def require_about(self, permission: Permission, queue: str, task: str, missing: Exception) -> None:
        """Refuse an act on something that was found in a queue and for a task.

        Who is not bound to this queue and task gets `missing`: another refusal would tell that the thing exists.

        Raises: `missing`; AccessDeniedError for who may see it and lacks the permission.
        """
        if self.may(permission, queue, task):
            return
        if not (_matches(queue, self.queues) and _matches(task, self.tasks)):
            raise missing
        self.require(permission, queue, task)

    @property
    def is_everywhere(self) -> bool:
        """Whether it is bound to no queue and no task."""
        return self.queues == EVERY and self.tasks == EVERY

    @property
    def is_of_all_tasks(self) -> bool:
        """Whether it is bound to no task. Else what counts all jobs of a queue is not for it."""
        return self.tasks == EVERY

    def require_everywhere(self, permission: Permission) -> None:
        """Refuse what belongs to no queue or task (keys, limits, routes, webhooks) to whoever is bound to some.

        Raises: AccessDeniedError.
        """
        self.require(permission)
        if not self.is_everywhere:
            raise AccessDeniedError(
                f"{self.name} is bound to some queues or tasks, and this belongs to none: "
                "ask somebody who may do it everywhere"
            )

    def require_all_tasks(self) -> None:
        """Refuse what is about the jobs of all tasks to whoever is bound to some. Raises: AccessDeniedError."""
        if not self.is_of_all_tasks:
            raise AccessDeniedError(
                f"{self.name} is bound to some tasks, and this is about the jobs of all: "
                "ask somebody who may do it for all tasks"
            )

    @property
    def scope(self) -> Scope:
        """The jobs that it may see: lists, counts and streams of events are narrowed to them."""
        return Scope(
            queues=() if self.queues == EVERY else self.queues,
            tasks=() if self.tasks == EVERY else self.tasks,
        )


def principal_of(name: str, allowed: frozenset[Permission], scope: Scope, key_id: str = "") -> Principal:
    """Return who has these permissions for the jobs of a scope."""
    return Principal(
        name=name,
        permissions=allowed,
        queues=scope.queues or EVERY,
        tasks=scope.tasks or EVERY,
        key_id=key_id,
    )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return patterns == EVERY or any(matches(pattern, name) for pattern in patterns)
