"""Ending the jobs of a batch that was ended before its client had added all of them.

The batch does not know then which jobs it has, so they are looked for by their places in it. The reactor of children
does that when it hears of the end, and the client when it has added the last job, or is called again: between them no
job is left out, unless a client that was still adding jobs dies and nobody calls it again.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from jobledger.ledger.graphs.batch_run import BatchSpec
from jobledger.ledger.handle import tell
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import CancelJob
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import BATCH_CLOSED, BATCH_STEP, ITEMS_MAX, Count, child_id
from jobledger.ledger.model.runs.steps import next_signal
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.protocols import Client

#: How many jobs are looked for and cancelled at a time.
_AT_ONCE: Final = 64
#: How many places in a row without a job end the search: clients add jobs in their order, so gaps are rare and small.
_GAP_MAX: Final = 512


async def spec_of(client: Client, job: Job) -> BatchSpec:
    """Return what is stored of a batch. Raises: PayloadMissingError, UnreachableError."""
    text = await client.inputs.get(job.order.input, job.order.input_ref, key=job.order.key)
    return msgspec.json.decode(text, type=dict[str, BatchSpec])["batch"]


def count_of(job: Job) -> int | None:
    """Return how many jobs a batch has; None until its client has closed it with a number."""
    step = job.steps.get(BATCH_STEP)
    if step is not None and step.count is not None:
        return step.count
    taken, said = job.steps.get(BATCH_CLOSED), next_signal(job.signals, BATCH_CLOSED)
    value = None if said is None else said.value
    # Its run may have read the signal, and have been killed before it acted on it.
    if taken is not None and taken.state == "completed":
        value = taken.result
    try:
        return None if value is None else msgspec.json.decode(bytes(value), type=Count)
    except msgspec.MsgspecError:
        # Who is connected to the server may send this signal without a number: the run of the batch fails by it.
        return None


async def end_jobs(client: Client, ref: JobRef) -> None:
    """Cancel the jobs that a batch has by now, if it was ended before its run knew how many there are.

    Safe to repeat.

    Raises: WrongSequenceError where a replica does not show a job yet: try again later; PayloadMissingError,
        LedgerFullError, UnreachableError.
    """
    view = await load(client.log, ref)
    job = view.job
    if job is None or not job.is_final:  # in an archive, requeued meanwhile, or read from a replica that lags
        chain = client.log.names.chain(ref)
        if await client.log.newest_sequence(chain) > view.last_sequence:
            raise WrongSequenceError(chain, view.last_sequence)
        return
    step = job.steps.get(BATCH_STEP)
    if step is not None and step.count is not None:  # its jobs end as the children of any run
        return
    queue = (await spec_of(client, job)).queue
    command = CancelJob(reason=f"its batch {ref.job_id} was ended before all its jobs were added")
    gap = 0
    for first in range(0, ITEMS_MAX, _AT_ONCE):
        refs = [JobRef(queue=queue, job_id=child_id(ref.job_id, 1, first + each)) for each in range(_AT_ONCE)]
        found = await asyncio.gather(
            *(tell(client, each, command, of=ref) for each in refs), return_exceptions=True
        )
        for each in found:
            if isinstance(each, BaseException):
                raise each
        gap = 0 if any(found) else gap + _AT_ONCE
        if gap >= _GAP_MAX:
            return
