"""How the reactor of the limits begins: from the newest snapshot, or from the first event where there is none."""

from __future__ import annotations

import contextlib

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import MalformedEventError
from jobledger.ledger.model.events import Held
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.limits.definition import LIMIT
from jobledger.ledger.model.limits.flow import MAIN, Snapshotted
from jobledger.ledger.model.queues.pause import QUEUE
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.reactors.flow.folding import Folding
from jobledger.workers.reactors.flow.place import Chain
from jobledger.workers.reactors.flow.reading import read
from jobledger.workers.reactors.flow.snapshots import (
    FlowState,
    WaitingState,
    decode,
    prepare,
    restore,
    state_of,
    waiting_of,
)


async def begin(ledger: Ledger, chain: Chain, folding: Folding) -> None:
    """Fold what is stored, so that `folding` goes on behind it.

    Raises: CorruptLedgerError, PayloadMissingError for a snapshot whose state is gone, ScratchSpaceError,
        UnreachableError.
    """
    head = await ledger.log.head()
    snapshot = await chain.newest_snapshot()
    state, first, through = FlowState(), head.first_sequence, 0
    if snapshot is not None:
        state, through = await _state(ledger, snapshot), snapshot.through
        first = max(first, snapshot.low)
        await _fold_definitions(ledger, folding)
        prepare(folding.granter, state)
        for each in state.waiting:
            await _fold_waiting(ledger, folding, each)
    is_restored = snapshot is None
    if first <= head.last_sequence:
        async with contextlib.aclosing(read(ledger, first, head.last_sequence)) as batches:
            async for batch in batches:
                for message in batch:
                    if not is_restored and message.stream_sequence > through:
                        restore(folding.granter, state, through)
                        is_restored = True
                    folding.fold(message)
    if not is_restored:
        restore(folding.granter, state, through)
    folding.position = folding.granter.through = max(folding.position, head.last_sequence)


async def _state(ledger: Ledger, snapshot: Snapshotted) -> FlowState:
    try:
        return decode(await ledger.inputs.get(snapshot.state, snapshot.state_ref))
    except msgspec.MsgspecError as error:
        raise MalformedEventError(f"the newest snapshot of the limits cannot be read: {error}") from error


async def _fold_waiting(ledger: Ledger, folding: Folding, waiting: WaitingState) -> None:
    """Fold the `held` of a job that a snapshot names; where an archive run took it, what the job's chain still says."""
    stored = await ledger.log.get(waiting.held)
    if isinstance(stored, StoredEvent) and isinstance(stored.event, Held):
        folding.fold(stored)
        return
    job = (await load(ledger.log, JobRef(queue=waiting.queue, job_id=waiting.job))).job
    if job is not None and job.state is JobState.HELD and job.wait_sequence == waiting.held:
        folding.wait(job)


async def _fold_definitions(ledger: Ledger, folding: Folding) -> None:
    """Fold what is said of limits and queues from the first event on: it may be older than all else that counts."""
    for aggregate in (LIMIT, QUEUE):
        subject = aggregate.everything(ledger.names)
        async with contextlib.aclosing(ledger.log.read_messages(subject=subject)) as batches:
            async for batch in batches:
                for message in batch:
                    folding.fold(message)


async def snapshot(ledger: Ledger, chain: Chain, folding: Folding, *, by: str) -> int:
    """Append a snapshot of what was folded; return its stream sequence.

    Raises: WrongSequenceError when another reactor was faster, PayloadTooLargeError, LedgerFullError, UnreachableError.
    """
    granter, before = folding.granter, chain.view.state
    now = ledger.clock.now()
    waiting, low = waiting_of(granter)
    state = msgspec.json.encode(state_of(granter, waiting))
    value, reference = await ledger.inputs.put(state, what="snapshot")
    event = Snapshotted(
        shard=MAIN,
        at=now if before is None else max(now, before.at),
        by=by,
        through=granter.through,
        limits_sequence=granter.definitions.sequence,
        low=low,
        granted=0 if before is None else before.granted,
        state=value,
        state_ref=reference,
    )
    return await chain.append(event)
