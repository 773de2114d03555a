"""`Limit` and `Queue`: how many jobs may run at once, and which jobs share that number. For a task or a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.inputs import checked_limits
from jobledger.ledger.model.limits.definition import Terms, problem_of
from jobledger.ledger.model.subjects import check_token

#: Names whose key is the job's own queue or task.
_OWN: Final = ("queue", "task")


class _NamedLimit(Terms, frozen=True):
    name: str  #: 1 to 64 of A-Z a-z 0-9 _ and -; "queue" and "task": limits of the job's own queue or task


class Limit(_NamedLimit, frozen=True, kw_only=True):
    """A bound on the jobs that run at once, or that start in a period; with `key`, for each value of the key.

    `Limit("tenant", key="tenant_id", slots=10)`: ten jobs of each tenant at once. With `slots` or `rate` the limit is
    defined by this code: the first enqueue of a process writes it to the ledger, unless a person set it. Without them
    it only names a limit that a person sets; until then its jobs stay held. The other fields are those of `Terms`.
    """

    key: str | None = (
        None  #: an argument of the task, "metadata.<name>", or "tenant"; None: one number for all jobs
    )

    def __post_init__(self) -> None:
        """Check every field.

        Raises: InvalidTokenError, ConfigurationError.
        """
        check_token("limit", self.name)
        problem = problem_of(self.terms, {}) or self._problem()
        if problem:
            raise ConfigurationError(f"limit {self.name}: {problem}")

    def _problem(self) -> str:
        if self.name == "schedule":
            return "this name is for the limits of schedules: choose another"
        if self.key is not None and (not isinstance(cast("object", self.key), str) or not self.key):
            return f"key must be the name of an argument, metadata.<name> or tenant, got {self.key!r}"
        if self.name in _OWN and self.key is not None:
            return f"its key is the job's {self.name}: leave key= out"
        if self.is_own and self.terms.says_who:
            return f"only jobs of one {self.name} have each of its keys: leave queues= and tasks= out"
        if not self.is_defined and self.terms != Terms():
            return "give slots or rate as well, or leave all else out: then a person sets it"
        return ""

    @property
    def is_defined(self) -> bool:
        """Whether this code defines the limit, rather than only naming it."""
        return self.slots is not None or self.rate is not None

    @property
    def is_own(self) -> bool:
        """Whether the key of the limit is the job's own queue or task."""
        return self.name in _OWN


class _QueueName(msgspec.Struct, frozen=True):
    name: str  #: 1 to 64 of A-Z a-z 0-9 _ and -


class Queue(_QueueName, frozen=True, kw_only=True):
    """A queue whose jobs all have some limits, or whose workers are shared between keys: `@task(queue=Queue(...))`.

    `Queue("email", fair="tenant")`: the tenants take turns, however many jobs one of them has. The share of a tenant's
    turns follows from the weight of the limit with that name and key: `tenant:acme`.
    """

    limits: tuple[Limit | str, ...] = ()  #: limits of every job of the queue, beside those of its task
    fair: str | None = (
        None  #: key that takes turns: an argument of the task, "metadata.<name>", or "tenant"; None: none
    )

    def __post_init__(self) -> None:
        """Check every field.

        Raises: InvalidTokenError, InvalidInputError, ConfigurationError.
        """
        check_token("queue", self.name)
        divided(self.limits)
        if self.fair is not None and (not isinstance(cast("object", self.fair), str) or not self.fair):
            raise ConfigurationError(
                f"queue {self.name}: fair must be the name of an argument, metadata.<name> or tenant, got {self.fair!r}"
            )


def divided(limits: object) -> tuple[tuple[str, ...], tuple[Limit, ...]]:
    """Return the checked names of some limits, and the limits among them that are declared here.

    Raises: InvalidTokenError, InvalidInputError.
    """
    if not isinstance(limits, Iterable) or isinstance(limits, str | Mapping):
        return checked_limits(limits), ()  # pyright: ignore[reportUnknownArgumentType]
    given = tuple(cast("Iterable[object]", limits))
    declared = tuple(each for each in given if isinstance(each, Limit))
    return checked_limits([each for each in given if not isinstance(each, Limit)]), declared


def queue_of(queue: str | Queue) -> tuple[str, Queue | None]:
    """Return a queue's name, and the `Queue` that declares it, if any."""
    return (queue.name, queue) if isinstance(queue, Queue) else (queue, None)
