"""From a call to its key: which arguments make jobs the same, as one hash, and what the call wishes. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.json_text import encode_sorted
from jobledger.ledger.model.seals import ValueKey
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.unique import KeyRef, Take, Until
from jobledger.ledger.signature import ReadsInput
from jobledger.ledger.unique.rule import Unique

#: Characters of a hash: 160 bits, so no two keys have the same by chance.
_DIGITS: Final = 40
_ID_MAX: Final = 64
_ARGUMENTS_BYTES_MAX: Final = 1_024


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """An enqueue of a unique job."""

    command: Enqueue  #: it begins the job, where it is to be made
    rule: Unique
    key: KeyRef
    arguments: msgspec.Raw  #: JSON object of those that make the key; absent where it is too large
    debounce: timedelta | None
    max_wait: timedelta | None
    by: str = ""  #: who enqueues it; "": the client

    def take(self, owner: JobRef, now: datetime) -> Take:
        """Return the command that gives the key to a job."""
        for_s = self.rule.for_s
        until: Until = "due" if self.debounce is not None else self.rule.until or "ended"
        return Take(
            owner=owner,
            until=until,
            expires_at=None if for_s is None else now + timedelta(seconds=for_s),
            tenant=self.command.order.tenant,
            arguments=self.arguments,
        )


def wish_for(
    signature: ReadsInput,
    rule: Unique,
    command: Enqueue,
    text: bytes,
    *,
    now: datetime,
    debounce_s: float | None = None,
    max_wait_s: float | None = None,
    by: str = "",
    seals: ValueKey | None = None,
) -> Wish:
    """Return what an enqueue wishes; `text` is the input's JSON text, `now` decides in which period it is.

    `seals`: the key of the job's owner, which then makes the hash, and nothing else is kept of the arguments.

    Raises: InvalidInputError for a name in `Unique.args` that is no argument of the task.
    """
    chosen = chosen_arguments(signature, rule, command.task, text)
    words: list[Any] = [command.task, command.order.tenant, msgspec.Raw(chosen)]
    if rule.is_by_id:
        for_s = rule.for_s or 1.0
        # As JSON 3600 and 3600.0 are two words, and they are one period.
        words += [int(for_s) if for_s == int(for_s) else for_s, int(now.timestamp() // for_s)]
    assert (seals is not None) == bool(command.order.key), "a job that has an owner has the owner's key"
    whole = msgspec.json.encode(words)
    key = (hashlib.sha256(whole).hexdigest() if seals is None else seals.index(whole))[:_DIGITS]
    if rule.is_by_id:
        ref = JobRef(queue=command.ref.queue, job_id=period_id(command.task, key))
        command = msgspec.structs.replace(command, ref=ref)
    else:
        order = msgspec.structs.replace(command.order, unique=key)
        command = msgspec.structs.replace(command, order=order)
    return Wish(
        command=command,
        rule=rule,
        key=KeyRef(task=command.task, key=key),
        arguments=msgspec.Raw(chosen) if seals is None and len(chosen) <= _ARGUMENTS_BYTES_MAX else NO_VALUE,
        debounce=_span(debounce_s),
        max_wait=_span(max_wait_s),
        by=by,
    )


def sealed_wish(wish: Wish, seals: ValueKey) -> Wish:
    """Return a wish that was written without the key of the job's owner as who has that key would have wished it.

    Raises: InvalidInputError where the job's id follows from its arguments, or where these were not written.
    """
    command = wish.command
    if wish.rule.is_by_id or wish.arguments is NO_VALUE:
        raise InvalidInputError(
            f"the key of job {command.ref.job_id} of task {command.task} cannot be made of what is written: "
            "enqueue it in the ledger itself"
        )
    words = msgspec.json.encode([command.task, command.order.tenant, wish.arguments])
    key = seals.index(words)[:_DIGITS]
    order = msgspec.structs.replace(command.order, unique=key)
    return msgspec.structs.replace(
        wish,
        command=msgspec.structs.replace(command, order=order),
        key=KeyRef(task=command.task, key=key),
        arguments=NO_VALUE,
    )


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def chosen_arguments(signature: ReadsInput, rule: Unique, task: str, text: bytes) -> bytes:
    """Return the arguments that make the key, as the task would get them, as JSON text with sorted names.

    Raises: InvalidInputError.
    """
    values = signature.decode(text)  # with the defaults of what is left out
    if rule.args is not None:
        unknown = sorted(set(rule.args) - values.keys())
        if unknown:
            known = ", ".join(values) or "none"
            raise InvalidInputError(
                f"task {task} has no argument {unknown[0]!r} for its key; its arguments: {known}"
            )
        values = {name: values[name] for name in rule.args}
    return encode_sorted(values, what=f"key of task {task}")


def period_id(task: str, key: str) -> str:
    """Return the id of the one job of a period."""
    whole = f"{task}-{key}"
    return whole if len(whole) <= _ID_MAX else f"u{key}"
