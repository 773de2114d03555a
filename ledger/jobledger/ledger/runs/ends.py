"""The end of a run, as its callback receives it, and the job that delivers it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.event_words import error_words
from jobledger.ledger.model.events import Cancelled, DeadLettered, ErrorInfo, Order, PayloadRef
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import Callback, of_run, short_id
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.model.seals import seal_words
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.parts import Client


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: the input of `on_success` and `on_fail` of its workflow."""

    id: str
    queue: str
    task: str
    state: Literal["completed", "dead_lettered", "cancelled"]
    error: str = ""  #: of a dead letter, as a sentence; the reason of one that was cancelled
    result: Any = (
        None  #: what a run that completed returned; None where that is too large to be carried along
    )
    result_ref: PayloadRef | None = None  #: where a large result lies: the result of job `id` in `queue`


def end_id(run: JobRef, callback: Callback) -> str:
    """Return the id of the job that receives a run's end: `<run id>-end`, or a digest of it where that is too long.

    Where it waits in another queue than the run did, the run's queue follows: runs of one id in two queues are two.
    """
    tells_queue = callback.tells_queue and callback.queue != run.queue
    return short_id(of_run(f"{run.job_id}-end", run.queue if tells_queue else ""), "e")


def sentence_of(error: ErrorInfo | None) -> str:
    """Return an error as a callback is told it."""
    return "" if error is None else error_words(error)


def end_of(event: Cancelled | DeadLettered) -> RunEnd:
    """Return what the last event of a run that did not complete says of its end."""
    if isinstance(event, Cancelled):
        return RunEnd(id=event.job, queue=event.queue, task=event.task, state="cancelled", error=event.reason)
    error = sentence_of(event.error) or event.reason
    return RunEnd(id=event.job, queue=event.queue, task=event.task, state="dead_lettered", error=error)


async def callback_for(client: Client, run: Job, end: RunEnd) -> Enqueue | None:
    """Return what enqueues the job that is told of the end of a run, None where nobody is; stores a large input.

    Raises: PayloadTooLargeError, LedgerFullError, UnreachableError.
    """
    on = "success" if end.state == "completed" else "fail"
    callback = next((each for each in run.order.on_end if each.on == on), None)
    if callback is None:
        return None
    text, key, metadata = msgspec.json.encode({callback.argument: end}), run.order.key, callback.metadata
    if key and metadata:
        metadata = seal_words(await client.keys.key(key), metadata)
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
