"""Which job holds a unique key, and how a dead letter that is requeued gets its key back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.chain import (
    EMPTY_CHAIN,
    Addition,
    JobView,
    commit_all,
    load,
    retry_raced,
    view_of,
)
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Requeue, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.events import JobEvent, Scheduled
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.unique import UNIQUE, KeyRef, Take, Taken, UniqueKey, key_of
from jobledger.ledger.model.unique import decide as decide_key


class Holder(NamedTuple):
    """A key as it is stored, and the job that it names."""

    key: View[UniqueKey]
    chain: JobView  #: of the job; empty where there is none
    first_sequence: int = 0  #: stream sequence of its first event; 0 where there is none


NOBODY: Final = Holder(View(), EMPTY_CHAIN)


async def find_holder(log: Log, ref: KeyRef) -> Holder:
    """Read a key, and the job that it names.

    Raises: CorruptLedgerError, UnreachableError.
    """
    return await _with_job(log, await _read_key(log, ref))


async def find_waiting(log: Log, ref: KeyRef) -> Holder:
    """Read a key as `find_holder` does, but only the newest event of a job that waits for its time.

    That is one event however often the job was moved; the job returned then lacks its limits and attempts.
    """
    key = await _read_key(log, ref)
    newest = None if key.state is None else await log.last(log.names.chain(key.state.owner))
    if not isinstance(newest, StoredEvent) or not isinstance(newest.event, Scheduled):
        return await _with_job(log, key)
    sequence = newest.stream_sequence
    return Holder(key, JobView(evolve(None, newest.event, sequence), sequence, newest.data))


async def _read_key(log: Log, ref: KeyRef) -> View[UniqueKey]:
    return UNIQUE.view(*await end_of_chain(log, UNIQUE.chain(log.names, ref.task, ref.key)))


async def _with_job(log: Log, key: View[UniqueKey]) -> Holder:
    if key.state is None:
        return Holder(key, EMPTY_CHAIN)
    events = await log.read_chain(log.names.chain(key.state.owner))
    return Holder(key, view_of(events), events[0].stream_sequence if events else 0)


async def append_requeue(
    log: Log, chain: JobView, events: Sequence[JobEvent], stamp: Callable[[], Stamp]
) -> Job:
    """Append the events that requeue a dead letter and give it its key back; return the job after them.

    A dead letter holds no key, so another job may have taken it: then this one stays where it is.

    Raises: UniqueKeyTakenError, WrongSequenceError, LedgerFullError, UnreachableError.
    """
    before = chain.job
    assert before is not None, "there is a dead letter"
    additions: list[Addition] = [(chain, events), *await _key_again(log, before, stamp)]
    return evolve(before, events[0], await commit_all(log, additions))


async def check_key(log: Log, job: Job, stamp: Callable[[], Stamp]) -> None:
    """Refuse a dead letter whose key another job holds. Raises: UniqueKeyTakenError, UnreachableError."""
    await _key_again(log, job, stamp)


async def requeue(log: Log, ref: JobRef, command: Requeue, stamp: Callable[[], Stamp]) -> Job:
    """Requeue a dead letter as it is.

    Raises: JobNotFoundError, IllegalTransitionError, and as `append_requeue`.
    """

    async def attempt() -> Job:
        chain = await load(log, ref)
        if chain.job is None:
            raise JobNotFoundError(ref.job_id)
        return await append_requeue(log, chain, decide(chain.job, command, stamp()), stamp)

    return await retry_raced(attempt)


async def _key_again(log: Log, job: Job, stamp: Callable[[], Stamp]) -> list[Addition]:
    if not job.order.unique:
        return []
    ref = key_of(job)
    holder = await find_holder(log, ref)
    said = _said(holder.key)
    until = "ended" if said is None else said.until
    if (
        (said is not None and said.expires_at is not None)
        or until == "due"
        or (until == "started" and job.attempts)
    ):
        return []  # it held the key for a time only, and that is over
    take = Take(
        owner=JobRef(queue=job.queue, job_id=job.id),
        until=until,
        tenant=job.order.tenant,
        arguments=NO_VALUE if said is None else said.arguments,
    )
    return [(holder.key, [decide_key(ref, holder.key.state, holder.chain.job, take, stamp())])]


def _said(key: View[UniqueKey]) -> Taken | None:
    return msgspec.json.decode(key.last_data, type=Taken) if key.last_data else None
