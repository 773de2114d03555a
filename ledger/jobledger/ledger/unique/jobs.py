"""Adding unique jobs: one append takes the key, the next makes the job, and whoever comes after sees to both.

Nobody gives a key back. A call that finds the key taken reads the job that it names: if that ended, the key is free;
if it does not exist, this call makes it, under that id. So after a crash between the two appends nobody has
to wait for anything. Source: ADR 023.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec

from jobledger.ledger.model.chain import EMPTY_CHAIN, Addition, commit, commit_all, load, retry_raced
from jobledger.ledger.model.commands import CancelJob, Dispatch, Enqueue, Reschedule, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import AccessDeniedError, UniqueKeyTakenError, WrongSequenceError
from jobledger.ledger.model.job import PENDING_STATES, Job, JobState
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.unique import UNIQUE, UniqueKey
from jobledger.ledger.model.unique import decide as decide_key
from jobledger.ledger.unique.holders import NOBODY, Holder, find_holder, find_waiting
from jobledger.ledger.unique.keys import Wish

#: A lost race means that somebody else made progress with the same key. At most this many may enqueue it at one moment.
_TRIES_MAX: Final = 64
#: Pause before a second read of a replica that does not show yet why an append was refused.
_LAG_S: Final = 0.02


class BegunJob(NamedTuple):
    """The job that an enqueue made or found."""

    ref: JobRef
    sequence: int  #: stream sequence of its first event; 0 where that is not known
    created: bool  #: whether this call made it


class UniqueJobs:
    """Adds unique jobs for one client."""

    def __init__(
        self,
        log: Log,
        stamp: Callable[[str], Stamp],
        begin: Callable[[Enqueue, str], Awaitable[tuple[int, bool]]],
    ) -> None:
        """`stamp` and `begin` get who enqueues; `begin` appends the first event; returns its sequence, and if new."""
        self._log = log
        self._stamp = stamp
        self._begin = begin

    async def enqueue(self, wish: Wish) -> BegunJob:
        """Make the job, or find the one that has its key.

        Raises: UniqueKeyTakenError where that is to be an error, AccessDeniedError where the job that has the key is not
            there for whoever enqueues, WrongSequenceError after too many lost races, LedgerFullError, UnreachableError.
        """
        if wish.rule.is_by_id:
            return await self._make(wish)
        holder = NOBODY  # mostly true; otherwise one append is refused

        async def attempt() -> BegunJob:
            nonlocal holder
            try:
                return await self._attempt(wish, holder)
            except WrongSequenceError:
                holder = await self._look_again(wish, holder)
                raise

        return await retry_raced(attempt, tries_max=_TRIES_MAX)

    async def _look_again(self, wish: Wish, before: Holder) -> Holder:
        """Read key and job again after a refusal; if neither has changed, once more after a pause."""
        find = find_holder if wish.debounce is None else find_waiting
        holder = await find(self._log, wish.key)
        if (holder.key.last_sequence, holder.chain.last_sequence) == (
            before.key.last_sequence,
            before.chain.last_sequence,
        ):
            await asyncio.sleep(_LAG_S)
            holder = await find(self._log, wish.key)
        return holder

    async def _attempt(self, wish: Wish, holder: Holder) -> BegunJob:
        key, job, stamp = holder.key.state, holder.chain.job, self._stamp(wish.by)
        if key is not None and job is not None:
            if key.owner == wish.command.ref:
                return BegunJob(key.owner, holder.first_sequence, created=False)  # the same call once more
            if wish.debounce is not None and job.state is JobState.SCHEDULED:
                _require_visible(wish, key, stamp)
                return await self._postpone(wish, wish.debounce, holder, stamp)
        try:
            taken = decide_key(wish.key, key, job, wish.take(wish.command.ref, stamp.at), stamp)
        except UniqueKeyTakenError as error:
            assert key is not None, "somebody holds it"
            _require_visible(wish, key, stamp)
            return await self._conflict(wish, holder, error)
        await self._log.append(UNIQUE.link(self._log.names, [taken], holder.key))
        return await self._make(wish)

    async def _make(self, wish: Wish) -> BegunJob:
        """Make the job that has the key."""
        sequence, created = await self._begin(wish.command, wish.by)
        ref = wish.command.ref
        if not created and wish.rule.on_conflict == "reject" and not await self._made_by_this_job(ref):
            raise UniqueKeyTakenError(wish.key.task, wish.key.key, ref.queue, ref.job_id)
        return BegunJob(ref, sequence, created)

    async def _made_by_this_job(self, ref: JobRef) -> bool:
        """Return whether the enqueuing job made this job before, as in an attempt that did not end."""
        parent = self._stamp("").causation
        if not parent:
            return False
        made = await self._log.read_chain(self._log.names.chain(ref))
        return bool(made) and made[0].event.causation == parent

    async def _conflict(self, wish: Wish, holder: Holder, error: UniqueKeyTakenError) -> BegunJob:
        """Do what the caller wishes where another job holds the key; make that job first where it is missing."""
        key, job = holder.key.state, holder.chain.job
        assert key is not None, "somebody holds it"
        if job is None and not key.made:
            command = msgspec.structs.replace(wish.command, ref=key.owner)
            sequence, created = await self._begin(command, wish.by)
            if created:
                return BegunJob(key.owner, sequence, created=True)
            raise WrongSequenceError(self._log.names.chain(key.owner), 0)  # who took it was there first
        if wish.rule.on_conflict == "reject":
            raise error
        if wish.rule.on_conflict == "replace" and job is not None and job.state in PENDING_STATES:
            return await self._replace(wish, holder, job)
        return BegunJob(key.owner, holder.first_sequence, created=False)

    async def _replace(self, wish: Wish, holder: Holder, job: Job) -> BegunJob:
        """Cancel the job that waits, take its key and make the new job: all in one append, or nothing."""
        command, stamp = wish.command, self._stamp(wish.by)
        cancel = CancelJob(reason=f"superseded by job {command.ref.job_id}")
        take = msgspec.structs.replace(wish.take(command.ref, stamp.at), replaces=True)
        additions: list[Addition] = [
            (holder.chain, decide(job, cancel, stamp)),
            (holder.key, [decide_key(wish.key, holder.key.state, job, take, stamp)]),
            (EMPTY_CHAIN, decide(None, command, self._stamp(wish.by))),
        ]
        try:
            sequence = await commit_all(self._log, additions)
        except WrongSequenceError:
            made = await self._log.read_chain(self._log.names.chain(command.ref))
            if not made:
                raise
            return BegunJob(command.ref, made[0].stream_sequence, created=False)  # the same call once more
        return BegunJob(command.ref, sequence + len(additions) - 1, created=True)

    async def _postpone(self, wish: Wish, debounce: timedelta, holder: Holder, stamp: Stamp) -> BegunJob:
        """Give the job that waits for its time another one, and the input of this call.

        One that has waited as long as it may is dispatched, so that calls without end do not hold it back for ever.
        """
        key, job = holder.key.state, holder.chain.job
        assert key is not None, "the job has a key"
        assert job is not None, "it waits"
        run_at = stamp.at + debounce
        if wish.max_wait is not None:
            last = key.taken_at + wish.max_wait
            if last <= stamp.at:
                return await self._attempt(wish, await self._dispatched(holder, key.owner, stamp))
            run_at = min(run_at, last)
        order = wish.command.order
        move = Reschedule(run_at=run_at, input=order.input, input_ref=order.input_ref)
        await commit(self._log, holder.chain, decide(job, move, stamp))
        return BegunJob(key.owner, holder.first_sequence, created=False)

    async def _dispatched(self, holder: Holder, ref: JobRef, stamp: Stamp) -> Holder:
        """Queue a waiting job, or hold it for its limits: they are in its whole chain, not in its newest event."""
        chain = await load(self._log, ref)
        if chain.job is None or chain.last_sequence != holder.chain.last_sequence:
            raise WrongSequenceError(self._log.names.chain(ref), holder.chain.last_sequence)
        dispatch = Dispatch(cause="due", asked_by=chain.job.wait_sequence)
        return holder._replace(chain=await commit(self._log, chain, decide(chain.job, dispatch, stamp)))


def _require_visible(wish: Wish, key: UniqueKey, stamp: Stamp) -> None:
    """Refuse a key whose job the caller may not see; the refusal says nothing about that job.

    Raises: AccessDeniedError.
    """
    if stamp.authority is not None and not stamp.authority.scope.has(key.queue, wish.key.task):
        raise AccessDeniedError(
            f"the unique key that this job of task {wish.key.task} would need is not free for {stamp.authority.name}: "
            "enqueue it with other arguments, or ask somebody who may see all queues of the task"
        )
