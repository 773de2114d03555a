"""What people did to jobs: cancel, retry, requeue, discard, each with who, when and why, as the ledger has it.

Only the types of event that can be such an act are read. An act carries the name its caller gave (`by`); the ledger
records it and cannot prove it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from jobledger.ledger.chain import fold
from jobledger.ledger.codec import Stored
from jobledger.ledger.errors import InvalidInputError
from jobledger.ledger.events import NO_VALUE, Cancelled, CancelRequested, Discarded, Queued
from jobledger.ledger.job import WAITING_STATES
from jobledger.ledger.log import Log
from jobledger.ledger.subjects import JobRef

ActName = Literal["cancel", "retry", "requeue", "discard"]

#: Chains read at once, to tell whose wish a `cancelled` was.
_CHAINS_AT_ONCE: Final = 32


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
    iterator (`contextlib.aclosing`) when leaving early.

    Raises: InvalidInputError, CorruptLedgerError, UnreachableError.
    """
    if since is not None and since.utcoffset() is None:
        raise InvalidInputError("since has no time zone: give an aware datetime, such as datetime.now(UTC)")
    head = (await log.head()).last_sequence
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
    batches: AsyncGenerator[list[Stored], None],
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


def _may_be_an_act(stored: Stored) -> bool:
    """Leave out what a look at the event itself tells: a timer or a reactor that dispatches names no reason."""
    event = stored.event
    return not isinstance(event, Queued) or event.cause == "requeued" or bool(event.reason)


async def _act(log: Log, stored: Stored) -> Act | None:
    """Return the act that an event records, None when the job's own course led to it."""
    event = stored.event
    match event:
        case Queued(cause="requeued"):
            edited = event.input is not NO_VALUE or event.input_ref is not None
            return _of(stored, "requeue", event.reason, new_input=edited)
        case Queued(reason=reason):
            return _of(stored, "retry", reason)
        case CancelRequested(reason=reason):
            return _of(stored, "cancel", reason)
        case Discarded(reason=reason):
            return _of(stored, "discard", reason)
        case Cancelled(reason=reason) if await _ended_a_wait(log, stored):
            return _of(stored, "cancel", reason)
        case _:
            return None


def _of(stored: Stored, act: ActName, reason: str, *, new_input: bool = False) -> Act:
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


async def _ended_a_wait(log: Log, stored: Stored) -> bool:
    """Whether a `cancelled` ended a waiting job, which only a person does.

    A running one is ended by whoever runs it or takes it over: because its task wishes so, or obeying a
    `cancel_requested`, which is an act of its own.
    """
    ref = JobRef(queue=stored.event.queue, job_id=stored.event.job)
    history = await log.read_chain(log.names.chain(ref))
    before = fold(each for each in history if each.stream_sequence < stored.stream_sequence).job
    return before is not None and before.state in WAITING_STATES and not before.cancel_requested
