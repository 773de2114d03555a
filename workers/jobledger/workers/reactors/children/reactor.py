"""The reactor of runs' children, in every worker; there is no election, and it needs no code of any application.

When a child ends, the reactor counts the end in the run's chain, which may wake the run; makes the children that this
end admits; checks whether the run has ended meanwhile; and only then acknowledges. At a run's end it cancels open
children, of a batch even if its client was still adding them. Completions of ordinary jobs are never delivered here.
"""

from __future__ import annotations

import contextlib

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.derived_jobs import begin_derived, is_of_run
from jobledger.ledger.graphs.batch_end import end_jobs
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import ErasedError, OwnerErasingError, WrongSequenceError
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.seals import unseal_error
from jobledger.ledger.model.subjects import CHILDREN_CONSUMER, JobRef
from jobledger.ledger.nats.consumer import Source
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.runs.ends import RunEnd, callback_for, sentence_of
from jobledger.workers.reactors.children.creation import ChildOpener
from jobledger.workers.reactors.children.ends import decode, encode, news_in
from jobledger.workers.reactors.children.joins import End, Joiner
from jobledger.workers.reactors.children.reach import ChildFollower
from jobledger.workers.reactors.reactor import ConsumerReactor, Later

_IN_FLIGHT_MAX = 1_024


class ChildrenReactor(ConsumerReactor):
    """Counts the ends of children, opens the next ones, wakes runs, and ends children that ended runs leave open."""

    def __init__(self, ledger: Ledger, opening: ChildOpener | None = None) -> None:
        super().__init__(ledger, CHILDREN_CONSUMER, in_flight_max=_IN_FLIGHT_MAX)
        self.joining = Joiner(ledger, opening or ChildOpener(ledger))
        self._reaching = ChildFollower(ledger)

    async def find(self) -> Source:
        """Return the source that hands out ends of children and of runs."""
        names = self.ledger.names
        return Source(stream=names.ledger_stream, consumer=CHILDREN_CONSUMER, filters=names.ends_of_children)

    def keep(self, delivery: Delivery) -> Delivery | None:
        """Keep the facts about a child or a run that ended or paused; acknowledge ordinary jobs."""
        message = delivery.read()
        news = news_in(message.event) if isinstance(message, StoredEvent) else None
        return None if news is None else msgspec.structs.replace(delivery, data=encode(news))

    async def react(self, delivery: Delivery) -> Later | None:
        """Do all that follows from one event."""
        news = decode(delivery.data)
        member = news.member
        if member is not None:
            end = End(member.step, member.item, news.end_as, member.asked)
            await self.joining.count(JobRef(queue=member.queue, job_id=member.job), end)
        job = JobRef(queue=news.queue, job_id=news.job)
        if news.has_children:
            await self._reach(job, again=delivery.delivered > 1)
        if news.end is not None:
            await self._call_back(job, news.end)
        if news.is_batch:
            await end_jobs(self.ledger, job)
        if news.has_followed:
            await self._follow(job)
        return None

    async def _reach(self, run: JobRef, *, again: bool) -> None:
        """Cancel, pause or resume the open children like their run."""
        view = await load(self.ledger.log, run)
        if view.job is not None:  # else the whole run is in an archive
            await self._reaching.follow(run, view, again=again)

    async def _call_back(self, run: JobRef, end: RunEnd) -> None:
        """Enqueue the callback of a run's end, unless the worker that recorded the end did, or its data is erased.

        Raises: WrongSequenceError if a replica lags: try again later; LedgerFullError, UnreachableError.
        """
        log = self.ledger.log
        job = (await load(log, run)).job
        if job is None:
            if await log.newest_sequence(log.names.chain(run)):
                raise WrongSequenceError(log.names.chain(run), 0)
            return  # the whole run is in an archive
        try:
            if job.order.key and job.error is not None:
                with contextlib.suppress(
                    ErasedError
                ):  # a callback with another owner gets no error, and is made
                    error = unseal_error(await self.ledger.keys.key(job.order.key), job.error)
                    end = msgspec.structs.replace(end, error=sentence_of(error))
            begin = await callback_for(self.ledger, job, end)
        except (ErasedError, OwnerErasingError):
            return  # its owner's data is erased: no copy of it is to be made
        if begin is not None:
            await begin_derived(
                log,
                begin,
                lambda: msgspec.structs.replace(self.ledger.stamp(), causation=run.job_id),
                is_of_run(begin, run.job_id),
            )

    async def _follow(self, child: JobRef) -> None:
        """Resume a child that paused with its run, if the run goes on by now: a child may obey much later."""
        job = (await load(self.ledger.log, child)).job
        member = None if job is None else job.member
        if job is None or member is None or job.state is not JobState.PAUSED:
            return
        run = JobRef(queue=member.queue, job_id=member.job)
        view = await load(self.ledger.log, run)
        if view.job is not None and member.step in view.job.steps:
            await self._reaching.follow(run, view, {member.step: 1 << member.item}, again=True)
