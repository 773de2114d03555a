"""The start of the reactor of the limits: from the newest snapshot, or from the first event without a whole one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import StoredEvent, Unreadable
from jobledger.ledger.model.errors import MalformedEventError, PayloadMissingError
from jobledger.ledger.model.events import Held
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.limits.definition import LIMIT
from jobledger.ledger.model.limits.flow import MAIN, Snapshotted
from jobledger.ledger.model.queue_pause import QUEUE
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.reactors.flow.chain import Chain
from jobledger.workers.reactors.flow.fold import GrantFold
from jobledger.workers.reactors.flow.snapshots import (
    FlowState,
    WaitingState,
    decode,
    prepare,
    restore,
    state_of,
    waiting_of,
)
from jobledger.workers.reactors.flow.source import read

#: At most this many of the jobs that a snapshot names are read at once.
_NAMED_AT_ONCE: Final = 100


async def begin(ledger: Ledger, chain: Chain, folding: GrantFold) -> None:
    """Fold the stored events, so that `folding` can go on after them.

    If the state of the newest snapshot is gone, as in a ledger restored from an export, the events from the first one
    on are folded instead.

    Raises: CorruptLedgerError, PayloadMissingError for a missing state if the first events are in an archive,
        ScratchSpaceError, UnreachableError.
    """
    found = await chain.newest_snapshot()
    head = await ledger.log.head()  # read after the snapshot, so that it is not before it
    snapshot = None if found is None else found[1]
    folding.began = head.last_sequence
    try:
        state = await fold_up_to(ledger, folding, snapshot, head.first_sequence, head.last_sequence)
    except PayloadMissingError:
        if await chain.newest_snapshot() != found:
            await begin(ledger, chain, folding)  # it was removed meanwhile, so there are two newer ones
            return
        if head.first_sequence > 1:
            raise
        state = await fold_up_to(ledger, folding, None, head.first_sequence, head.last_sequence)
    chain.states.update(state.earlier)


async def fold_up_to(
    ledger: Ledger, folding: GrantFold, snapshot: Snapshotted | None, first: int, last: int
) -> FlowState:
    """Fold a snapshot and the events after it up to `last`; None: from `first` on. Return the snapshot's state.

    Raises: as `begin`; nothing is folded if the state of the snapshot is gone.
    """
    state, through = FlowState(), 0
    if snapshot is not None:
        state, through = await state_in(ledger, snapshot), snapshot.through
        first = max(first, snapshot.low)
        await _fold_definitions(ledger, folding, last)
        prepare(folding.granter, state)
        for begin_at in range(0, len(state.waiting), _NAMED_AT_ONCE):
            await _fold_waiting(ledger, folding, state.waiting[begin_at : begin_at + _NAMED_AT_ONCE])
    is_restored, fold = snapshot is None, folding.fold
    if first <= last:
        async with contextlib.aclosing(read(ledger, first, last)) as batches:
            async for batch in batches:
                for message in batch:
                    if not is_restored and message.stream_sequence > through:
                        restore(folding.granter, state, through)
                        is_restored = True
                    fold(message)
    if not is_restored:
        restore(folding.granter, state, through)
    folding.position = folding.granter.through = max(folding.position, last)
    return state


async def state_in(ledger: Ledger, snapshot: Snapshotted) -> FlowState:
    """Return the state in a snapshot, or the one it refers to.

    Raises: PayloadMissingError, MalformedEventError, UnreachableError.
    """
    try:
        return decode(await ledger.inputs.get(snapshot.state, snapshot.state_ref, key=""))
    except msgspec.MsgspecError as error:
        raise MalformedEventError(f"the newest snapshot of the limits cannot be read: {error}") from error


async def _fold_waiting(ledger: Ledger, folding: GrantFold, waiting: tuple[WaitingState, ...]) -> None:
    """Fold the `held` of jobs that a snapshot names; if an archive run removed it, the job from its chain."""
    found = await asyncio.gather(*(ledger.log.get(each.held) for each in waiting))
    for each, stored in zip(waiting, found, strict=True):
        if isinstance(stored, StoredEvent) and isinstance(stored.event, Held):
            folding.fold(stored)
            continue
        job = (await load(ledger.log, JobRef(queue=each.queue, job_id=each.job))).job
        if job is not None and job.state is JobState.HELD and job.wait_sequence == each.held:
            folding.wait(job)


async def _fold_definitions(ledger: Ledger, folding: GrantFold, last: int) -> None:
    """Fold the events of limits and queues from the first one on: they may be older than all other events needed.

    An event after `last` is folded if an archive run stored it again there and removed the earlier ones.
    """
    for aggregate in (LIMIT, QUEUE):
        subject, known = aggregate.everything(ledger.names), set[tuple[str, ...]]()
        async with contextlib.aclosing(ledger.log.read_messages(subject=subject)) as batches:
            async for batch in batches:
                for message in batch:
                    key, is_event = aggregate.key_in(message.subject), not isinstance(message, Unreadable)
                    if message.stream_sequence <= last or (
                        is_event and key not in known and aggregate.decode(message).prev
                    ):
                        folding.fold(message)
                    known.add(key)


async def snapshot(ledger: Ledger, chain: Chain, folding: GrantFold, *, by: str) -> int:
    """Append a snapshot of the folded state; return its stream sequence.

    Raises: WrongSequenceError if another reactor was faster, PayloadTooLargeError, LedgerFullError, UnreachableError.
    """
    granter, before = folding.granter, chain.view.state
    now = ledger.clock.now()
    waiting, low = waiting_of(granter)
    state = msgspec.structs.replace(
        state_of(granter, waiting), earlier=tuple(chain.states.items()), by=by, after=chain.view.last_sequence
    )
    value, reference = await ledger.inputs.put(msgspec.json.encode(state), what="snapshot", key="")
    event = Snapshotted(
        shard=MAIN,
        at=now if before is None else max(now, before.at),
        by=by,
        through=granter.through,
        limits_sequence=granter.definitions.sequence,
        began=folding.began,
        low=low,
        granted=0 if before is None else before.granted,
        state=value,
        state_ref=reference,
    )
    return await chain.append(event)


async def tidy(ledger: Ledger, chain: Chain) -> None:
    """Remove the states of snapshots that no reader begins with any more; a failed removal is tried again later.

    Raises: UnreachableError, PermissionRefusedError.
    """
    for reference in chain.superseded():
        await ledger.inputs.remove(reference)
        chain.forget(reference)
