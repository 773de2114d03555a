"""Jobs with derived ids, which begin even where a job of somebody else has that id already.

That job stays as it is. The new job gets another id, derived from the first one, so it is still made only once; its
metadata and the log say which id it should have had, and `doctor` names it. Source: ADR 051.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, link, retry_raced
from jobledger.ledger.model.commands import Enqueue, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import UnreachableError, WrongSequenceError
from jobledger.ledger.model.events import Carried, JobEvent, order_at_first
from jobledger.ledger.model.log import ChainEvents, Log
from jobledger.ledger.model.reserved_ids import INSTEAD_OF, instead_of
from jobledger.ledger.model.subjects import JobRef

logger = logging.getLogger(__name__)

#: The test whether the first event of an existing job is that of the job to be made.
IsOwn = Callable[[JobEvent], bool]
#: Pauses before a chain is read again that a lagging replica does not show yet.
_LAGS_S: Final = (0.0, 0.02, 0.05, 0.1, 0.3, 1.0)


class DerivedJob(NamedTuple):
    """The job that was made, or existed before."""

    ref: JobRef
    sequence: int  #: stream sequence of its first event
    created: bool  #: whether this call made it


def author_of(first: JobEvent) -> str:
    """Return the author of the first event of a chain; "" if that event is in an archive, and its author not known."""
    return first.job_state.created_by if isinstance(first, Carried) else first.by


def is_of_tick(command: Enqueue) -> IsOwn:
    """Return the test for the job of a schedule: only schedules write a job's tick, or begin jobs of their hooks."""
    tick = command.order.tick
    if tick:
        return lambda first: order_at_first(first).tick == tick
    return lambda first: first.task == command.task


def is_of_run(command: Enqueue, run_id: str) -> IsOwn:
    """Return the test for a run's callback job: that run is its causation, unless an archive run carried the job."""
    return lambda first: (
        first.task == command.task and (isinstance(first, Carried) or first.causation == run_id)
    )


async def begin_derived(log: Log, command: Enqueue, stamp: Callable[[], Stamp], is_own: IsOwn) -> DerivedJob:
    """Append the first event of a job whose id was derived; a job that was made before does not change.

    Raises: LedgerFullError, UnreachableError, also if the job that has the id cannot be read yet.
    """
    while True:
        found = await _begin(log, command, stamp, is_own)
        if found is not None:
            return DerivedJob(command.ref, *found)
        command = moved(command)


def moved(command: Enqueue) -> Enqueue:
    """Return the command that begins a job under another id because its own is taken; write a line in the log."""
    ref, other = command.ref, instead_of(command.ref)
    logger.error(
        "job %s of queue %s is not the %s job that is to have this id: that one is job %s; somebody gave away an id of a "
        "form that is kept, see docs/access.md",
        ref.job_id,
        ref.queue,
        command.task,
        other.job_id,
    )
    if command.order.key:  # its metadata is sealed, and no key is at hand here
        return replace(command, ref=other)
    metadata = {**command.order.metadata, INSTEAD_OF: ref.job_id}
    return replace(command, ref=other, order=replace(command.order, metadata=metadata))


async def _begin(
    log: Log, command: Enqueue, stamp: Callable[[], Stamp], is_own: IsOwn
) -> tuple[int, bool] | None:
    """Begin a job, or find it; None: another job has its id."""
    view = EMPTY_CHAIN

    async def attempt() -> tuple[int, bool] | None:
        nonlocal view
        linked = link(view, decide(None, command, stamp()), log.names)
        try:
            return await log.append(linked.entries), True
        except WrongSequenceError:
            events = await _shown(log, command.ref)
            if events:
                return (events[0].stream_sequence, False) if is_own(events[0].event) else None
            view = JobView(
                last_sequence=events.last_sequence
            )  # the chain has only messages that are no events
            raise

    return await retry_raced(attempt)


async def _shown(log: Log, ref: JobRef) -> ChainEvents:
    for lag_s in _LAGS_S:
        await asyncio.sleep(lag_s)
        events = await log.read_chain(log.names.chain(ref))
        if events.last_sequence:
            return events
    raise UnreachableError(f"job {ref.job_id} exists and cannot be read yet: try again")
