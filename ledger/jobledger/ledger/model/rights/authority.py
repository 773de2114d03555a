"""The authority in a command: who acts, under which key, with which permissions for which jobs. Pure.

Each command is checked against the authority in its stamp, whichever way it came. A command without an authority has
an operator's rights: it comes from a program that uses the ledger directly (an application, a worker, the command
line).
"""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.ledger.model.errors import AccessDeniedError
from jobledger.ledger.model.rights.grants import Permission, Scope, matches

#: The patterns that match every name.
EVERY: Final = ("*",)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The one who acts: a key, a person that logged in, or the user of the gateway's machine."""

    name: str  #: what events say in `by`: `key:<name>/<id>`, `user:<name>` or `local:<account>`
    permissions: frozenset[Permission]
    queues: tuple[str, ...] = EVERY  #: patterns of names; jobs in other queues do not exist for it
    tasks: tuple[str, ...] = EVERY  #: the same for tasks
    key_id: str = ""  #: "": it needs no key
    keyed: str = ""  #: the job id derived from the `Idempotency-Key` of its request; "": none

    def may(self, permission: Permission, queue: str | None = None, task: str | None = None) -> bool:
        """Return whether this is allowed, in a queue and for a task if these are given.

        Without them: whether it is allowed somewhere. Callers that list or count then keep only jobs in `scope`.
        """
        return (
            permission in self.permissions
            and (queue is None or self.queues == EVERY or _matches(queue, self.queues))
            and (task is None or self.tasks == EVERY or _matches(task, self.tasks))
        )

    def require(self, permission: Permission, queue: str | None = None, task: str | None = None) -> None:
        """Refuse an act that is not allowed. Raises: AccessDeniedError."""
        if not self.may(permission, queue, task):
            of_what = " ".join(
                f"{kind} {value}" for kind, value in (("queue", queue), ("task", task)) if value is not None
            )
            where = f" for {of_what}" if of_what else ""
            raise AccessDeniedError(
                f"{self.name} lacks the permission {permission!r}{where}: ask who manages the keys for it"
            )

    def require_about(self, permission: Permission, queue: str, task: str, missing: Exception) -> None:
        """Refuse an act on an object that belongs to a queue and a task.

        A principal without rights to this queue and task gets `missing`: another refusal would reveal that the object
        exists.

        Raises: `missing`; AccessDeniedError for a principal that may see the object and lacks the permission.
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
        """Whether it is bound to no task. Else it may not see counts of all jobs of a queue."""
        return self.tasks == EVERY

    def require_everywhere(self, permission: Permission) -> None:
        """Refuse an act on keys, limits, routes or webhooks to a principal that is bound to queues or tasks.

        Raises: AccessDeniedError.
        """
        self.require(permission)
        if not self.is_everywhere:
            raise AccessDeniedError(
                f"{self.name} is bound to some queues or tasks, and this belongs to none: "
                "ask somebody who may do it everywhere"
            )

    def require_all_tasks(self) -> None:
        """Refuse an act on the jobs of all tasks to a principal that is bound to some. Raises: AccessDeniedError."""
        if not self.is_of_all_tasks:
            raise AccessDeniedError(
                f"{self.name} is bound to some tasks, and this is about the jobs of all: "
                "ask somebody who may do it for all tasks"
            )

    @property
    def scope(self) -> Scope:
        """The jobs that it may see: lists, counts and streams of events have only these."""
        return Scope(
            queues=() if self.queues == EVERY else self.queues,
            tasks=() if self.tasks == EVERY else self.tasks,
        )


def principal_of(name: str, allowed: frozenset[Permission], scope: Scope, key_id: str = "") -> Principal:
    """Return a principal with these permissions for the jobs of a scope."""
    return Principal(
        name=name,
        permissions=allowed,
        queues=scope.queues or EVERY,
        tasks=scope.tasks or EVERY,
        key_id=key_id,
    )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return patterns == EVERY or any(matches(pattern, name) for pattern in patterns)
