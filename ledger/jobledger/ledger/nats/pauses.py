"""The pause of a queue, as the ledger records it, applied to the consumers that hand out the queue's work.

The newest event of the queue decides. The server applies it, also for a worker that does not know pauses: a paused
consumer delivers nothing, and ends its pause by the server's clock. The process that records a pause or its end
updates the consumers; one that creates a missing consumer creates it paused; the reconciler compares.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, Final

from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import LedgerError, PermissionRefusedError, UnreachableError
from jobledger.ledger.model.events import PRIORITIES, Priority
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.queue_pause import QUEUE, QueueState
from jobledger.ledger.model.subjects import JobRef, leaves_of
from jobledger.ledger.model.times import server_time, time_text
from jobledger.ledger.nats import api
from jobledger.ledger.nats.durables import Maker, make_consumer
from jobledger.ledger.nats.floors import Note, make_bucket, mark_of, read_floor, write_floor
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import ConsumerInfo

# The beginning of a consumer of work that is made again: the oldest dispatch that still counts.
# After a restore, or when somebody deleted a consumer, the ledger holds every dispatch there ever was. If a consumer
# delivered all of them, workers would refuse each job that is over, which takes the server milliseconds per job.


async def begin_at_living(log: Log, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer of work that begins at the first dispatch that still counts in its lane.

    It returns the given settings if that is the first dispatch of all, so a new queue keeps its settings; also if the
    user may not read the ledger, since requests to the consumer then show the missing right.

    Raises: CorruptLedgerError, UnreachableError.
    """
    if await log.last(config["filter_subject"]) is None:
        return config
    with contextlib.suppress(PermissionRefusedError):
        begin = await _begin(log, config["filter_subject"])
        return config if begin is None else _beginning(config, begin)
    return config


async def note_living(
    inbox: Inbox,
    log: Log,
    lanes: Collection[tuple[str, Priority]],
    *,
    replicas: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Note where the consumers of some lanes begin, so that no worker has to look for the first job that waits.

    `lanes`: each a queue and a priority. `on_progress` gets how many lanes of all were looked at. If notes cannot be written,
    as for a user without the right, workers look themselves.

    Raises: CorruptLedgerError, UnreachableError.
    """
    if not lanes or not await make_bucket(inbox, log.names, replicas=replicas):
        return
    for number, (queue, priority) in enumerate(sorted(lanes), start=1):
        begin = await _begin(log, log.names.dispatches(queue, priority))
        if begin is not None and begin > 1:
            note = Note(settled=begin - 1, mark=await mark_of(log))
            try:
                await write_floor(inbox, log.names, log.names.consumer(queue, priority), note)
            except UnreachableError:
                raise
            except LedgerError:  # the bucket takes no note: workers look themselves
                return
        on_progress(number, len(lanes))


def _beginning(config: dict[str, Any], begin: int) -> dict[str, Any]:
    """Return the settings of a consumer that begins at a stream sequence."""
    return {**config, "deliver_policy": "by_start_sequence", "opt_start_seq": begin}


async def _begin(log: Log, lane: str) -> int | None:
    """Return the stream sequence of the first dispatch that counts, of the next event for none; None if none is before it."""
    begin, ends = (await log.head()).last_sequence + 1, dict[str, int]()
    async with contextlib.aclosing(log.read(subject=lane)) as batches:
        async for batch in batches:
            if not ends and await _counts(log, batch[0]):
                return None
            ends = ends or await _ends(log, lane)
            for each in batch:
                is_over = ends.get(each.event.job, 0) > each.stream_sequence
                if not is_over and await _counts(log, each):
                    return each.stream_sequence
    return begin if ends else None


async def _ends(log: Log, lane: str) -> dict[str, int]:
    """Return the sequences at which jobs of a lane's queue completed or were cancelled, by job, from the ledger."""
    found = {"": 0}
    jobs = lane.rpartition(".queued.")[0]
    for leaf in (*leaves_of("completed"), *leaves_of("cancelled")):
        async with contextlib.aclosing(log.read(subject=f"{jobs}.{leaf}")) as batches:
            async for batch in batches:
                found.update((each.event.job, each.stream_sequence) for each in batch)
    return found


async def _counts(log: Log, dispatch: StoredEvent) -> bool:
    """Return whether a dispatch is the newest one of a job that waits for a worker or has one."""
    job = (await load(log, JobRef(queue=dispatch.event.queue, job_id=dispatch.event.job))).job
    if job is None or job.dispatch_sequence != dispatch.stream_sequence:
        return job is None
    return job.state in (JobState.QUEUED, JobState.RUNNING)


#: The end of an endless pause for the server: it needs one, and forgets a pause that is over.
_NO_END: Final = "2200-01-01T00:00:00Z"
_TRIES_MAX: Final = 8
_WORK: Final = "work_"
_CLOCKS_APART: Final = timedelta(minutes=1)


async def queue_state(log: Log, queue: str) -> QueueState:
    """Return the state of a queue after its newest event. Raises: UnreachableError, UnknownEventError."""
    view = QUEUE.view(*await end_of_chain(log, QUEUE.chain(log.names, queue)))
    return view.state or QueueState()


async def bring_in_line(inbox: Inbox, log: Log, queue: str, known: QueueState | None = None) -> QueueState:
    """Apply a queue's newest event to its consumers, again if a newer one came; return the state that was applied.

    The last process to update them reads the newest event after that, so a race never leaves them wrong. `known`: the
    state after an event that the caller has just stored, which a lagging replica may not show.

    Raises: UnreachableError, LedgerError, PermissionRefusedError.
    """
    state = known or await queue_state(log, queue)
    for _ in range(_TRIES_MAX):
        for priority in PRIORITIES:
            with contextlib.suppress(api.MissingError):  # the process that makes the consumer makes it paused
                await api.pause_consumer(
                    inbox, log.names.ledger_stream, log.names.consumer(queue, priority), _until(state)
                )
        newest = await queue_state(log, queue)
        if newest.sequence <= state.sequence:
            break
        state = newest
    return state


def _until(state: QueueState) -> str:
    """Return the end of a pause in the server's form; "" for none."""
    if not state.paused:
        return ""
    return _NO_END if state.until is None else time_text(state.until)


def agrees(info: ConsumerInfo, state: QueueState, now: datetime) -> bool:
    """Whether a consumer of work is paused as its queue is; always true for a queue without events."""
    if not state.sequence:
        return True
    if state.until is not None and abs(now - state.until) < _CLOCKS_APART:
        return True  # the server ends a pause by its own clock
    told = str(info.config.get("pause_until", "")) if info.paused else ""
    wanted = _until(state) if state.is_paused(now) else ""
    return bool(told) == bool(wanted) and (not told or server_time(told) == server_time(wanted))


def queue_of_work(consumer: str) -> str:
    """Return the queue whose work a consumer of this name hands out; "" for any other consumer."""
    return consumer.removeprefix(_WORK).rpartition("_")[0] if consumer.startswith(_WORK) else ""


def work_maker(log: Log, queue: str) -> Maker:
    """Return the function that creates the consumers of a queue's work: `make_consumer`, and paused if the queue is.

    A consumer begins after the newest note of settled work; without a note, at the first job that needs a worker.
    """

    async def make(inbox: Inbox, stream: str, name: str, config: dict[str, Any]) -> ConsumerInfo:
        settled = await read_floor(inbox, log, name)
        begun = await begin_at_living(log, config) if settled is None else _beginning(config, settled + 1)
        state = await queue_state(log, queue)
        until = _until(state)
        made = await make_consumer(inbox, stream, name, {**begun, "pause_until": until} if until else begun)
        if await queue_state(log, queue) != state:  # the queue changed before this consumer existed
            await bring_in_line(inbox, log, queue)
        return made

    return make
