"""What people did to jobs: cancel, retry, requeue, discard, each with who, when and why, as the ledger has it.

Only the types of event that can be such an act are read. An act carries the name its caller gave (`by`); the ledger
records it and cannot prove it. Exports have no index of types and chains: they are read from end to end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from jobledger.audit.export.log import ExportLog, JoinedLog
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Cancelled, CancelRequested, Discarded, Queued
from jobledger.ledger.model.job import WAITING_STATES, Job, JobState, evolve
from jobledger.ledger.model.lifecycle import lean
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef

ActName = Literal["cancel", "retry", "requeue", "discard"]

#: Chains read at once, to tell whose wish a `cancelled` was.
_CHAINS_AT_ONCE: Final = 32
#: Acts that wait for such a look where it takes reading everything once more.
_WAITING_MAX: Final = 10_000


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that somebody did to one job."""

    stream_sequence: int  #: of the event that records it
    at: datetime  #: the server's clock, UTC
    by: str  #: an operator's name, or the identity of the program that acted without naming one
    act: ActName  #: `retry` ends a wait early, `requeue` gives a dead letter new attempts
    queue: str
    job: str
    task: str
    reason: str
    new_input: bool = False  #: of a requeue that replaced the job's input


async def acts(
    log: Log,
    *,
    by: str | None = None,
    since: datetime | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> AsyncGenerator[Act, None]:
    """Yield the acts in stream order, up to the ledger's head as it is at the call; memory stays bounded.

    `since` is a server time, `by` one actor. `on_progress` gets the sequence reached and the head's. Close the
    iterator (`contextlib.aclosing`) when leaving early. Of a ledger whose beginning was archived, `log` holds the
    acts since: `archive.chain.with_past` puts the others before them.

    Raises: InvalidInputError, CorruptLedgerError, UnreachableError.
    """
    if since is not None and since.utcoffset() is None:
        raise InvalidInputError("since has no time zone: give an aware datetime, such as datetime.now(UTC)")
    head = (await log.head()).last_sequence
    if isinstance(log, ExportLog | JoinedLog):
        async with contextlib.aclosing(_all_read(log, by, since, head, on_progress)) as found:
            async for act in found:
                yield act
        return
    names = log.names
    filters = [names.all_of_type(each) for each in ("cancel_requested", "cancelled", "discarded")]
    async with contextlib.AsyncExitStack() as stack:

        async def source(subject: str, told: Callable[[int, int], None] | None) -> AsyncGenerator[Act, None]:
            batches = log.read(from_time=since, subject=subject)
            found = _acts_of(log, batches, by, None if told is None else lambda at: told(at, head))
            return await stack.enter_async_context(contextlib.aclosing(found))

        # There are more dispatches than anything else, so they tell how far the whole is.
        sources = [await source(names.all_dispatches, on_progress)]
        sources += [await source(subject, None) for subject in filters]
        merged = await stack.enter_async_context(contextlib.aclosing(_merged(sources)))
        async for act in merged:
            yield act


async def _acts_of(
    log: Log,
    batches: AsyncGenerator[list[StoredEvent], None],
    by: str | None,
    on_progress: Callable[[int], None] | None,
) -> AsyncGenerator[Act, None]:
    """Pick the acts out of the events of one type."""
    async with contextlib.aclosing(batches):
        async for batch in batches:
            chosen = [stored for stored in batch if by in (None, stored.event.by) and _may_be_an_act(stored)]
            for start in range(0, len(chosen), _CHAINS_AT_ONCE):
                part = chosen[start : start + _CHAINS_AT_ONCE]
                for act in await asyncio.gather(*(_act(log, stored) for stored in part)):
                    if act is not None:
                        yield act
            if on_progress is not None:
                on_progress(batch[-1].stream_sequence)


class _Found(NamedTuple):
    act: Act
    is_certain: bool  #: else a cancel whose chain has to be looked at


async def _all_read(
    log: Log,
    by: str | None,
    since: datetime | None,
    head: int,
    on_progress: Callable[[int, int], None] | None,
) -> AsyncGenerator[Act, None]:
    """Read every event, and those before once more for each part that has cancels in it."""
    part: list[_Found] = []
    async with contextlib.aclosing(log.read(from_time=since)) as batches:
        async for batch in batches:
            for stored in batch:
                if by in (None, stored.event.by) and stored.stream_sequence <= head:
                    part += _perhaps(stored)
            if len(part) >= _WAITING_MAX:
                for act in await _looked_up(log, part):
                    yield act
                part = []
            if on_progress is not None:
                on_progress(batch[-1].stream_sequence, head)
    for act in await _looked_up(log, part):
        yield act


def _perhaps(stored: StoredEvent) -> list[_Found]:
    if isinstance(stored.event, Cancelled):
        return [_Found(_of(stored, "cancel", stored.event.reason), is_certain=False)]
    act = _told(stored)
    return [] if act is None else [_Found(act, is_certain=True)]


async def _looked_up(log: Log, part: Sequence[_Found]) -> list[Act]:
    """Return the acts, and of the cancels those that ended a wait."""
    cancels = {found.act.stream_sequence for found in part if not found.is_certain}
    ended: set[int] = set()
    jobs: dict[JobRef, Job | None] = {
        JobRef(queue=found.act.queue, job_id=found.act.job): None for found in part if not found.is_certain
    }
    async with contextlib.aclosing(log.read()) as batches:
        while cancels != ended and (batch := await anext(batches, None)) is not None:
            for stored in batch:
                ref = _ref(stored)
                if ref not in jobs:
                    continue
                # An id that was free again, after an archive run, is another job's.
                before = jobs[ref] if stored.event.prev else None
                if stored.stream_sequence in cancels and _waited(before):
                    ended.add(stored.stream_sequence)
                jobs[ref] = evolve(before, lean(stored.event), stored.stream_sequence)
            if batch[-1].stream_sequence >= max(cancels):
                break
    return [found.act for found in part if found.is_certain or found.act.stream_sequence in ended]


async def _merged(sources: Sequence[AsyncGenerator[Act, None]]) -> AsyncGenerator[Act, None]:
    """Yield from several sources, each in stream order, in stream order."""
    waiting = [(await anext(source, None), source) for source in sources]
    ahead = [(act, source) for act, source in waiting if act is not None]
    while ahead:
        at = min(range(len(ahead)), key=lambda index: ahead[index][0].stream_sequence)
        act, source = ahead[at]
        yield act
        following = await anext(source, None)
        if following is None:
            del ahead[at]
        else:
            ahead[at] = (following, source)


def _may_be_an_act(stored: StoredEvent) -> bool:
    """Leave out what a look at the event itself tells: a timer or a reactor that dispatches names no reason."""
    return isinstance(stored.event, Cancelled) or _told(stored) is not None


async def _act(log: Log, stored: StoredEvent) -> Act | None:
    """Return the act that an event records, None when the job's own course led to it."""
    if not isinstance(stored.event, Cancelled):
        return _told(stored)
    return _of(stored, "cancel", stored.event.reason) if await _ended_a_wait(log, stored) else None


def _told(stored: StoredEvent) -> Act | None:
    """Return the act that an event tells by itself, None when it is none or the chain has to be looked at."""
    event = stored.event
    match event:
        case Queued(cause="requeued"):
            edited = event.input is not NO_VALUE or event.input_ref is not None
            return _of(stored, "requeue", event.reason, new_input=edited)
        case Queued(reason=reason) if reason:
            return _of(stored, "retry", reason)
        case CancelRequested(reason=reason):
            return _of(stored, "cancel", reason)
        case Discarded(reason=reason):
            return _of(stored, "discard", reason)
        case _:
            return None


def _ref(stored: StoredEvent) -> JobRef:
    return JobRef(queue=stored.event.queue, job_id=stored.event.job)


def _of(stored: StoredEvent, act: ActName, reason: str, *, new_input: bool = False) -> Act:
    event = stored.event
    return Act(
        stream_sequence=stored.stream_sequence,
        at=stored.stored_at,
        by=event.by,
        act=act,
        queue=event.queue,
        job=event.job,
        task=event.task,
        reason=reason,
        new_input=new_input,
    )


async def _ended_a_wait(log: Log, stored: StoredEvent) -> bool:
    """Whether a `cancelled` ended a waiting job, which only a person does.

    A running one is ended by whoever runs it or takes it over: because its task wishes so, or obeying a
    `cancel_requested`, which is an act of its own.
    """
    history = await log.read_chain(log.names.chain(_ref(stored)))
    if history and history[0].event.prev:
        # What was before is in an archive: what was carried over behind the cancel says how the job ended.
        after = fold(history).job
        carried = after is not None and after.carried_sequence > stored.stream_sequence
        if carried and history[0].stream_sequence <= stored.stream_sequence:
            return _was_cancelled_waiting(after)
    return _waited(fold(each for each in history if each.stream_sequence < stored.stream_sequence).job)


def _waited(before: Job | None) -> bool:
    return before is not None and before.state in WAITING_STATES and not before.cancel_requested


def _was_cancelled_waiting(job: Job | None) -> bool:
    if job is None or job.state is not JobState.CANCELLED or job.cancel_requested:
        return False
    return not job.attempts or job.attempts[-1].state != "cancelled"
