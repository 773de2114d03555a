"""A person's acts on a dead letter: requeue it, perhaps with another input, or discard it.

Everything is kept: a new input is a new fact in the `queued` event, and the old input stays in the chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, TypedDict

import msgspec

from jobledger.ledger.model.chain import JobView, load, retry_raced
from jobledger.ledger.model.commands import Requeue, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import InvalidInputError, JobNotFoundError
from jobledger.ledger.model.events import PRIORITIES, Priority
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef, is_own_queue
from jobledger.ledger.nats.payloads import Payloads
from jobledger.ledger.tasks import TaskRegistry
from jobledger.ledger.unique.holders import append_requeue, check_key

_ATTEMPTS_MAX: Final = 1_000


class Client(Protocol):
    """The part of a ledger's client that a requeue and a discard need."""

    log: Log
    inputs: Payloads

    def stamp(self, by: str = "") -> Stamp:
        """Return author and time."""
        ...


class Changes(TypedDict, total=False):
    """The changes by a requeue; see `RequeueOptions`."""

    input: Mapping[str, Any] | None
    edit: Mapping[str, Any] | None
    attempts: int
    priority: Priority | None
    reason: str
    tasks: TaskRegistry | None


class RequeueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a dead letter is requeued."""

    input: Mapping[str, Any] | None = None  #: the whole new input
    edit: Mapping[str, Any] | None = None  #: arguments to replace; the others stay as they are
    attempts: int = 1  #: how many more it may have
    priority: Priority | None = None  #: None: as before
    reason: str = ""  #: reason; kept in the ledger
    tasks: TaskRegistry | None = None  #: tasks against which a new input is checked

    def __post_init__(self) -> None:
        """Check the options that can be checked without the job.

        Raises: InvalidInputError.
        """
        if self.input is not None and self.edit is not None:
            raise InvalidInputError("give a whole new input or arguments to replace, not both")
        if type(self.attempts) is not int or not 1 <= self.attempts <= _ATTEMPTS_MAX:
            raise InvalidInputError(
                f"attempts must be a whole number from 1 to {_ATTEMPTS_MAX}, got {self.attempts!r}"
            )
        if self.priority is not None and self.priority not in PRIORITIES:
            raise InvalidInputError(f"priority must be high, normal or low, got {self.priority!r}")

    @property
    def command(self) -> Requeue:
        """The command without its input."""
        return Requeue(attempts=self.attempts, priority=self.priority, reason=self.reason)


class RequeueResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a requeue, done or planned."""

    job: Job  #: the job after it; before it, if it was only planned
    input_text: bytes | None  #: JSON text of the new input; None: the input does not change


async def plan_requeue(client: Client, ref: JobRef, how: RequeueOptions) -> RequeueResult:
    """Return the result that `requeue` would have now; nothing is written anywhere.

    Raises: as `requeue`.
    """
    chain = await load(client.log, ref)
    job = _refuse(client, chain, ref, how)
    await check_key(client.log, job, client.stamp)
    text = await _new_input(client, job, how)
    if text is not None:
        client.inputs.fits_inline(text, what=_what(job))
    return RequeueResult(job=job, input_text=text)


async def requeue(client: Client, ref: JobRef, how: RequeueOptions, *, by: str = "") -> RequeueResult:
    """Give a dead letter new attempts, perhaps with another input, in one append on condition of the chain as read.

    Raises: JobNotFoundError, IllegalTransitionError for a job that is no dead letter, InvalidInputError,
    UnknownTaskError, PayloadTooLargeError, PayloadMissingError if the old input has to be edited and is gone,
    UniqueKeyTakenError if another job got its key meanwhile, WrongSequenceError after too many lost races,
    UnreachableError.
    """

    async def attempt() -> RequeueResult:
        chain = await load(client.log, ref)
        job = _refuse(client, chain, ref, how)
        text = await _new_input(client, job, how)
        command = how.command
        if text is not None:
            value, reference = await client.inputs.put(text, what=_what(job), key=job.order.key)
            command = msgspec.structs.replace(command, input=value, input_ref=reference)
        events = decide(job, command, client.stamp(by))
        after = await append_requeue(client.log, chain, events, lambda: client.stamp(by))
        return RequeueResult(job=after, input_text=text)

    return await retry_raced(attempt)


def _refuse(client: Client, chain: JobView, ref: JobRef, how: RequeueOptions) -> Job:
    """Return the job, unless it can be refused before a look at its input."""
    if chain.job is None:
        raise JobNotFoundError(ref.job_id)
    decide(chain.job, how.command, client.stamp())
    return chain.job


async def _new_input(client: Client, job: Job, how: RequeueOptions) -> bytes | None:
    if how.input is None and how.edit is None:
        return None
    if is_own_queue(job.queue):  # its input names for whom and on which jobs it acts
        raise InvalidInputError(
            f"job {job.id} is one of the ledger's own: requeue it without another input, or discard it"
        )
    values = how.input if how.input is not None else await _edited(client, job, how.edit or {})
    if how.tasks is not None:
        return how.tasks.get(job.task).signature.encode((), values)
    return encode_value(dict(values), what=_what(job))


async def _edited(client: Client, job: Job, edit: Mapping[str, Any]) -> dict[str, Any]:
    old = await client.inputs.get(job.order.input, job.order.input_ref, key=job.order.key)
    values: Any = {}
    if old:
        try:
            values = msgspec.json.decode(old)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidInputError(
                f"the input of job {job.id} cannot be read: give a whole new one"
            ) from error
    if not isinstance(values, dict):
        raise InvalidInputError(f"the input of job {job.id} is no JSON object: give a whole new one")
    return {**values, **edit}  # pyright: ignore[reportUnknownVariableType] # an object's values are anything


def _what(job: Job) -> str:
    return f"input of job {job.id}"
