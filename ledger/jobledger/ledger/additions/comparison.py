"""The check that a job that has an id already is the one enqueued now: same task, same input. Source: ADR 040."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import InputMismatchError, InvalidInputError
from jobledger.ledger.model.events import Carried, JobEvent, order_at_first
from jobledger.ledger.model.json_text import encode_sorted
from jobledger.ledger.protocols import Values
from jobledger.ledger.signature import ReadsInput

#: Gets what would begin a job, and the first event of the job that has its id. Raises: InputMismatchError.
Compare = Callable[[Enqueue, JobEvent], Awaitable[None]]


async def require_same(
    inputs: Values, signature: ReadsInput, parent_id: str, command: Enqueue, first: JobEvent
) -> None:
    """Compare a new job with the one that has its id; `parent_id`: the job whose code made that id, if any.

    An id that a job's code made is for its own jobs only: somebody else's job of that id may run years later, or never.

    Raises: InputMismatchError; PayloadMissingError where the input of the job that exists is gone.
    """
    ref, differing = command.ref, ["task"]
    if parent_id and first.causation != parent_id and not isinstance(first, Carried):
        differing = ["parent"]
    elif first.task == command.task:
        stored, given = order_at_first(first), command.order
        if stored.input_ref is not None and stored.input_ref == given.input_ref:
            return
        before, now = [
            await inputs.get(order.input, order.input_ref, key=order.key) for order in (stored, given)
        ]
        differing = differing_arguments(signature, before, now)
    if differing:
        raise InputMismatchError(ref.job_id, ref.queue, differing, parent_id)


async def require_same_task(command: Enqueue, first: JobEvent) -> None:
    """Compare a job whose id follows from its key and its period with the one that has that id.

    The job of a period may come from any author and have any input, but must be of the same task.

    Raises: InputMismatchError.
    """
    if first.task != command.task:
        raise InputMismatchError(
            *(command.ref.job_id, command.ref.queue, ["task"]),
            remedy=f"no job of task {command.task} is made for this key in this period: see who made the other one",
        )


def differing_arguments(signature: ReadsInput, before: bytes, now: bytes) -> list[str]:
    """Return the sorted names of the arguments in which two inputs differ; [] if they are equal as JSON or to the task.

    To the task an argument that is left out equals its default, and a set is one in any order.
    """
    if before == now:
        return []
    old, new = _object(before), _object(now)
    differing = _differing(old, new)
    if not differing:
        return []
    try:
        old, new = (_as_task_gets_it(signature, text) for text in (before, now))
    except InvalidInputError:  # of another version of the task
        return differing
    return _differing(old, new)


def _differing(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    both = old.keys() & new.keys()
    return sorted((old.keys() ^ new.keys()) | {name for name in both if not equal_json(old[name], new[name])})


def _as_task_gets_it(signature: ReadsInput, text: bytes) -> dict[str, Any]:
    return _object(encode_sorted(signature.decode(text), what=signature.what))


def _object(text: bytes) -> dict[str, Any]:
    return msgspec.json.decode(text, type=dict[str, Any])


def equal_json(one: object, other: object) -> bool:
    """Return whether two JSON values are equal: in any order of names, numbers by their value, so 1 and 1.0 are equal.

    `true` and 1 are not, though they are equal in Python.
    """
    pairs: list[tuple[object, object]] = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            names, values = cast("dict[str, object]", left), cast("dict[str, object]", right)
            if names.keys() != values.keys():
                return False
            pairs += ((value, values[name]) for name, value in names.items())
        elif isinstance(left, list) and isinstance(right, list):
            if len(cast("list[object]", left)) != len(cast("list[object]", right)):
                return False
            pairs += zip(cast("list[object]", left), cast("list[object]", right), strict=True)
        elif isinstance(left, bool) is not isinstance(right, bool) or left != right:
            return False
    return True
