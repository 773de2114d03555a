"""The limits of a new job, and their keys: from its input, its metadata or its tenant. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from jobledger.ledger.limits.declarations import Limit, Queue
from jobledger.ledger.model.errors import InvalidInputError, TaskDefinitionError
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.foreign_types import to_builtin
from jobledger.ledger.model.inputs import check_word, checked_limits
from jobledger.ledger.model.limits.names import joined

METADATA: Final = "metadata."  #: how a source of a key begins that is a word about the job
_TENANT: Final = "tenant"
_INDEX_DIGITS: Final = 16


class InputArguments:
    """The arguments of a task in an input, defaults included; decoded when a key first needs them."""

    __slots__ = ("_decode", "_found", "_text")

    def __init__(self, decode: Callable[[bytes], Mapping[str, Any]], text: bytes) -> None:
        self._decode = decode
        self._text = text
        self._found: Mapping[str, Any] | None = None

    def __call__(self) -> Mapping[str, Any]:
        """Return the arguments. Raises: as `decode`."""
        if self._found is None:
            self._found = self._decode(self._text)
        return self._found


class KeySource(msgspec.Struct, frozen=True):
    """A new job, as the source of its keys."""

    task: str
    queue: str
    order: Order
    arguments: Callable[
        [], Mapping[str, Any]
    ]  #: returns the input, defaults included; called only if a key needs it
    #: Makes a key from a value of a job with an owner, whose values are sealed. None: the value itself is the key.
    index: Callable[[bytes], str] | None = None

    def key(self, of: str, source: str) -> str:
        """Return the key that `source` names; `of`: words for the thing that needs it, such as "limit tenant".

        Raises: InvalidInputError if the job has no such value, or one that cannot be a key.
        """
        if source.startswith(METADATA):
            name = source.removeprefix(METADATA)
            return self._checked(of, source, self.order.metadata.get(name), f"metadata={{{name!r}: ...}}")
        arguments = self.arguments()
        if source in arguments:
            value = arguments[source]
            if type(value) is not str:
                value = msgspec.to_builtins(value, enc_hook=to_builtin)
            return self._checked(of, source, value, "a text or a whole number")
        if source == _TENANT:
            return self._checked(of, source, self.order.tenant or None, "tenant=...")
        raise InvalidInputError(_no_argument(of, self.task, source, arguments))

    def _checked(self, of: str, source: str, value: object, wanted: str) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            what = "has none" if value is None else f"has {value!r:.60}"
            raise InvalidInputError(
                f"{of} of task {self.task} takes its key from {source}, and the job {what}: give {wanted}"
            )
        word = check_word(f"{source} of task {self.task}, the key of {of},", value)
        if self.index is None or source == _TENANT:
            return word
        return f"~{self.index(word.encode())[:_INDEX_DIGITS]}"


def check_keys(
    task: str, arguments: Sequence[str], limits: Sequence[Limit | str], queue: Queue | None
) -> None:
    """Refuse a key that no job of a task can have, when the task is loaded.

    Raises: TaskDefinitionError.
    """
    asked = [(f"limit {each.name}", each.key) for each in _all_of(limits, queue) if isinstance(each, Limit)]
    if queue is not None:
        asked.append((f"queue {queue.name}", queue.fair))
    for of, source in asked:
        if source is not None:
            check_source(of, task, source, arguments)


def check_source(of: str, task: str, source: str, arguments: Collection[str]) -> None:
    """Refuse a source of a key that no job of a task can have; `of`: as in `key`. Raises: TaskDefinitionError."""
    if source not in (_TENANT, *arguments) and not source.startswith(METADATA):
        raise TaskDefinitionError(_no_argument(of, task, source, arguments))


def _all_of(limits: Sequence[Limit | str], queue: Queue | None) -> tuple[Limit | str, ...]:
    return (*limits, *(() if queue is None else queue.limits))


def _no_argument(of: str, task: str, source: str, arguments: Iterable[str]) -> str:
    known = ", ".join(arguments) or "none"
    return (
        f"{of} of task {task} takes its key from {source!r}, and the task has no such argument "
        f"(its arguments: {known}): name one of them, metadata.<name> or tenant"
    )


def with_limits(job: KeySource, limits: Sequence[Limit | str], queue: Queue | None) -> Order:
    """Return the job's order with the limits of its task, its queue and its options, and its key of fairness.

    Raises: InvalidTokenError, InvalidInputError.
    """
    fair = ""
    found = [_name(job, limit) for limit in _all_of(limits, queue)]
    if queue is not None and queue.fair is not None:
        # The key has the form of a limit, so that `limits set tenant:acme --weight 3` decides how often it has its
        # turn.
        key = job.key(f"queue {queue.name}", queue.fair)
        fair = check_word(f"the turn in queue {queue.name}", joined(queue.fair.removeprefix(METADATA), key))
        found.append(joined("queue", queue.name))
    return msgspec.structs.replace(job.order, limits=checked_limits([*job.order.limits, *found]), fair=fair)


def _name(job: KeySource, limit: Limit | str) -> str:
    if isinstance(limit, str):
        return limit
    if limit.is_own:
        return joined(limit.name, own_key(limit, job.task, job.queue))
    return limit.name if limit.key is None else joined(limit.name, job.key(f"limit {limit.name}", limit.key))


def own_key(limit: Limit, task: str, queue: str) -> str:
    """Return the key of a limit of the job's own queue or task; "" for any other limit."""
    if not limit.is_own:
        return ""
    return task if limit.name == "task" else queue
