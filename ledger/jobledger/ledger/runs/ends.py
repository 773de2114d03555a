"""The end of a run, as its callback receives it, and the job that delivers it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import ConfigurationError, KeyUnavailableError, PermissionRefusedError
from jobledger.ledger.model.event_words import error_words
from jobledger.ledger.model.events import Cancelled, DeadLettered, ErrorInfo, Order, PayloadRef
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import Callback, of_run, short_id
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.model.seals import ValueKey, owner_of, seal_words, unseal_raw
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.protocols import Client


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: the input of `on_success` and `on_fail` of its workflow."""

    id: str
    queue: str
    task: str
    state: Literal["completed", "dead_lettered", "cancelled"]
    error: str = ""  #: error of a dead letter as a sentence, or the reason of a cancellation
    #: Result of a completed run; None if it is too large to be included. A callback with another owner than its run gets
    #: neither result nor error: job `id` in `queue` has them until its owner's data is erased.
    result: Any = None
    result_ref: PayloadRef | None = None  #: place of a large result, that of job `id` in `queue`


def end_id(run: JobRef, callback: Callback) -> str:
    """Return the id of the job that receives a run's end: `<run id>-end`, or a digest of that if it is too long.

    If it has another queue than the run, the id ends with the run's queue, since two queues may have runs of one id.
    """
    tells_queue = callback.tells_queue and callback.queue != run.queue
    return short_id(of_run(f"{run.job_id}-end", run.queue if tells_queue else ""), "e")


def sentence_of(error: ErrorInfo | None) -> str:
    """Return an error in the form for a callback."""
    return "" if error is None else error_words(error)


def end_of(event: Cancelled | DeadLettered) -> RunEnd:
    """Return the end of a run that did not complete, from its last event."""
    if isinstance(event, Cancelled):
        return RunEnd(id=event.job, queue=event.queue, task=event.task, state="cancelled", error=event.reason)
    error = sentence_of(event.error) or event.reason
    return RunEnd(id=event.job, queue=event.queue, task=event.task, state="dead_lettered", error=error)


async def callback_for(client: Client, run: Job, end: RunEnd) -> Enqueue | None:
    """Return the command that enqueues the callback of a run's end, None without a callback; stores a large input.

    `end`: the result of a run that has an owner is sealed in it. A callback with another owner gets no value of the run:
    they would outlive the key of the run's owner.

    Raises: PayloadTooLargeError, LedgerFullError, UnreachableError; ErasedError, OwnerErasingError, KeyUnavailableError.
    """
    on = "success" if end.state == "completed" else "fail"
    callback = next((each for each in run.order.on_end if each.on == on), None)
    if callback is None:
        return None
    key, metadata = run.order.key, callback.metadata
    if key:
        if callback.owner in {"", owner_of(key)}:
            seals = await client.keys.key(key)
        else:
            seals = await _key_for(client, callback.owner)
            key, end = seals.id, msgspec.structs.replace(end, error="", result=None, result_ref=None)
        metadata = seal_words(seals, metadata)
        if isinstance(end.result, msgspec.Raw):  # as the run's last event has it
            end = msgspec.structs.replace(end, result=unseal_raw(seals, end.result))
    text = msgspec.json.encode({callback.argument: end})
    stored, reference = await client.inputs.put(text, what=f"input of task {callback.task}", key=key)
    order = copied(
        Order,
        callback,
        input=stored,
        input_ref=reference,
        tenant=callback.tenant or run.order.tenant,
        correlation=callback.correlation or run.order.correlation or run.id,
        trace=run.trace,
        key=key,
        metadata=metadata,
    )
    job_id = end_id(JobRef(queue=run.queue, job_id=run.id), callback)
    return Enqueue(ref=JobRef(queue=callback.queue, job_id=job_id), task=callback.task, order=order)


async def _key_for(client: Client, owner: str) -> ValueKey:
    try:
        return await client.keys.key_for(owner)
    except (ConfigurationError, PermissionRefusedError) as error:  # another process may have a master key
        raise KeyUnavailableError(str(error)) from error
