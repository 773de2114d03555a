"""Acting on schedules: one command, its event on the schedule's chain, then the jobs that the event asks for.

The event and its jobs' first events are plain appends, one after the other. If a process dies in between, jobs are
missing; the next process that acts on the schedule makes them before it appends anything to the chain. So only the
newest event of a schedule can lack jobs. Source: ADR 021.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.derived_jobs import DerivedJob, begin_derived, is_of_tick
from jobledger.ledger.limits.definitions import define_key
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.chain import load, retry_raced
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import ErasedError
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.limits.definition import Terms
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.log import end_of_chain
from jobledger.ledger.model.reserved_ids import instead_of
from jobledger.ledger.model.schedules.decisions import Declare, ScheduleCommand, Tick, decide
from jobledger.ledger.model.schedules.definition import OVERLAP_MODES, Overlap, overlap_limit
from jobledger.ledger.model.schedules.events import Backfilled, Declared, Schedule, ScheduleEvent, Ticked
from jobledger.ledger.model.schedules.jobs import (
    hooks_job_id,
    hooks_task,
    jobs_of,
    order_of,
    own_ids,
    tick_job_id,
    tick_name,
)
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.seals import seal_value, unseal_words
from jobledger.ledger.model.subjects import JobRef, first_leaf
from jobledger.ledger.protocols import Client

#: A function that returns which subjects are in use; see `Log.present`.
Present = Callable[[Sequence[str]], Awaitable[set[str]]]

R = TypeVar("R")
_AT_ONCE: Final = 128


class KnownSchedule(msgspec.Struct, frozen=True, gc=False):
    """A schedule after its newest event."""

    view: View[Schedule] = View()
    event: ScheduleEvent | None = None  #: newest event; None: the chain has none
    sequence: int = 0  #: its stream sequence
    whole: bool = False  #: whether the jobs that the event asks for are known to exist
    made: tuple[JobRef, ...] = ()  #: these jobs, if they were made now

    @property
    def schedule(self) -> Schedule | None:
        """The state; None if nobody declared the schedule."""
        return self.view.state

    def jobs(self) -> list[Enqueue]:
        """Return the jobs that the newest event asks for."""
        return [] if self.event is None else jobs_of(self.event, self.sequence)


def known_from(newest: Message, last_sequence: int = 0) -> KnownSchedule:
    """Return a schedule after its newest event; `last_sequence`: that of its newest message, which may be no event."""
    event, sequence = SCHEDULE.decode(newest), newest.stream_sequence
    state = SCHEDULE.evolve(None, event, sequence)
    return KnownSchedule(View(state, max(sequence, last_sequence), newest.data), event, sequence)


class Schedules:
    """The schedules of a ledger, for one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, name: str) -> KnownSchedule:
        """Return a schedule as it is stored. Raises: UnreachableError, UnknownEventError."""
        newest = await end_of_chain(self._client.log, SCHEDULE.chain(self._client.log.names, name))
        if newest.event is None:
            return KnownSchedule(View(last_sequence=newest.last_sequence))
        return known_from(newest.event, newest.last_sequence)

    async def act(
        self, name: str, command: ScheduleCommand, *, by: str = "", trace: str = ""
    ) -> KnownSchedule:
        """Carry out a command on a schedule: make its newest event's missing jobs, append the new event, make its jobs.

        `trace`: W3C traceparent; "": of the present span.

        Returns the schedule after it, unchanged if nothing had to change.

        Raises: as `decide`; WrongSequenceError after too many lost races, LedgerFullError, UnreachableError.
        """

        async def attempt() -> KnownSchedule:
            known, asked = await self.healed(await self.read(name)), command
            if isinstance(asked, Declare) and asked.definition.order.key:
                asked = await self._sealed_as_known(asked, known.schedule)
            stamp = self._client.stamp(by)
            if trace:
                stamp = msgspec.structs.replace(stamp, trace=trace)
            event = decide(name, known.schedule, asked, stamp)
            if event is None:
                return known
            if isinstance(event, Declared):  # before it can tick
                await self._define_limit(name, event.definition.overlap)
            return await self.append(known, event)

        return await retry_raced(attempt)

    async def _sealed_as_known(self, command: Declare, known: Schedule | None) -> Declare:
        """Return a declaration with the schedule's own sealed values if they are equal: sealed twice they differ.

        Raises: ErasedError, KeyUnavailableError.
        """
        now = command.definition.order
        before = now if known is None else known.definition.order
        if before is now or before.key != now.key:
            return command
        get, key = self._client.inputs.get, await self._client.keys.key(now.key)
        texts = [await get(each.input, each.input_ref, key=each.key) for each in (before, now)]
        words = [unseal_words(key, each.metadata) for each in (before, now)]
        if texts[0] != texts[1] or words[0] != words[1]:
            return command
        order = replace(now, input=before.input, input_ref=before.input_ref, metadata=before.metadata)
        return replace(command, definition=replace(command.definition, order=order))

    async def _define_limit(self, name: str, overlap: Overlap) -> None:
        """Define the limit that keeps jobs of the schedule's ticks apart; one that a person set stays.

        Raises: WrongSequenceError after too many lost races, LedgerFullError, UnreachableError.
        """
        mode = OVERLAP_MODES.get(overlap)
        if mode is None:
            return
        limit, key = split(overlap_limit(name))
        terms = Terms(slots=1, keep="job", mode=mode)
        with acting_for(None):  # the right to declare the schedule includes its overlap
            await define_key(self._client.log, limit, key, terms, self._client.stamp)

    async def tick(self, name: str, known: KnownSchedule) -> KnownSchedule:
        """Record the tick that is due, and make its jobs.

        Raises: as `act`; WrongSequenceError if `known` is not the newest state.
        """
        schedule = known.schedule
        assert schedule is not None, "somebody declared it"
        known = await self.healed(known)  # first of all: a missing job has not ended
        ended = True
        if schedule.definition.overlap == "skip" and schedule.ran is not None:
            ended = await self._has_ended(name, schedule, schedule.ran)
        event = decide(name, schedule, Tick(ended=ended), self._client.stamp())
        assert event is not None, "a tick is an event"
        return await self.append(known, event)

    async def append(self, known: KnownSchedule, event: ScheduleEvent) -> KnownSchedule:
        """Append an event that was decided on the known state, then make its jobs.

        Raises: WrongSequenceError when the chain has moved, LedgerFullError, UnreachableError; KeyUnavailableError where
            its jobs have to be sealed here.
        """
        if event.definition.hooks:
            await self._sealed(
                event, jobs_of(event, 0)
            )  # first: else the event would be there, and its jobs not
        (entry,) = SCHEDULE.link(self._client.log.names, [event], known.view)
        sequence = await self._client.log.append((entry,))
        made = await self._make(event, jobs_of(event, sequence))
        view = SCHEDULE.advance(entry, event, sequence, known.schedule)
        return KnownSchedule(view, event, sequence, whole=True, made=made)

    async def healed(self, known: KnownSchedule, present: Present | None = None) -> KnownSchedule:
        """Make the missing jobs of a schedule's newest event: the process that should have made them died.

        A job whose id belongs to another author's job counts as missing, too. `present`: used instead of the log's
        method.

        Raises: LedgerFullError, UnreachableError.
        """
        jobs = [] if known.whole else known.jobs()
        if known.event is not None and jobs:
            first = {self._first_subject(job): job for job in jobs}
            found = await (present or self._client.log.present)(list(first))
            there = [job for subject, job in first.items() if subject in found]
            own = await _few_at_once(self._is_own, there)
            missing = [job for subject, job in first.items() if subject not in found]
            missing += [job for job, is_own in zip(there, own, strict=True) if not is_own]
            await self._make(known.event, missing)
        return replace(known, whole=True)

    async def _is_own(self, job: Enqueue) -> bool:
        """Return whether an existing job is the schedule's; True if a replica lacks it. Raises: UnreachableError."""
        events = await self._client.log.read_chain(self._client.log.names.chain(job.ref))
        return not events or is_of_tick(job)(events[0].event)

    def _first_subject(self, job: Enqueue) -> str:
        order = job.order
        leaf = first_leaf(order.priority, order.limits, order.deadline_s)
        return self._client.log.names.of_type(job.ref, leaf)

    async def _make(self, event: ScheduleEvent, jobs: Sequence[Enqueue]) -> tuple[JobRef, ...]:
        """Begin the jobs of an event; an existing job stays as it is. Return the jobs.

        They are begun with an operator's rights, since the declarer of the schedule had the right to enqueue them.

        Raises: LedgerFullError, UnreachableError; KeyUnavailableError as `_sealed`.
        """
        jobs = await self._sealed(event, jobs)
        if isinstance(event, Backfilled):  # the schedule may have had another queue when these ticks came
            found = await self.places(event, jobs)
            jobs = [job for job, place in zip(jobs, found, strict=True) if place is None]
        by = "" if isinstance(event, Ticked) else event.by  # the person who asked

        async def begin(job: Enqueue) -> DerivedJob:
            with acting_for(None):
                return await begin_derived(
                    self._client.log, job, lambda: self._client.stamp(by), is_of_tick(job)
                )

        return tuple(begun.ref for begun in await _few_at_once(begin, jobs))

    async def _sealed(self, event: ScheduleEvent, jobs: Sequence[Enqueue]) -> Sequence[Enqueue]:
        """Return jobs with their inputs sealed: those that call hooks have one that is made for each tick.

        Other jobs have the input that the schedule was declared with, which is sealed. Raises: KeyUnavailableError.
        """
        declared = event.definition.order
        if not (declared.key and event.definition.hooks and jobs):
            return jobs
        try:
            key = await self._client.keys.key(declared.key)
        except ErasedError:  # a worker cancels the job once it tries to unseal the declared input
            own = {"input": declared.input, "input_ref": declared.input_ref}
            return [replace(job, order=replace(job.order, **own)) for job in jobs]
        texts = [seal_value(key, bytes(job.order.input)) for job in jobs]
        return [
            replace(job, order=replace(job.order, input=msgspec.Raw(text)))
            for job, text in zip(jobs, texts, strict=True)
        ]

    async def places(self, event: Backfilled, jobs: Sequence[Enqueue]) -> list[JobRef | None]:
        """Return the places of the jobs of past ticks, in any queue that the schedule had then; None for jobs not made.

        For a schedule with hooks the tick's own job counts, too. Raises: UnreachableError.
        """
        own = own_ids(event)
        ticks = {tick_job_id(event.schedule, tick): tick_name(event.schedule, tick) for tick in event.ticks}

        async def place(job: Enqueue) -> JobRef | None:
            own_id = own[job.ref.job_id]
            if own_id == job.ref.job_id:
                return await self._place(job)
            ref, order = replace(job.ref, job_id=own_id), order_of(event.definition, ticks[own_id])
            return await self._place(job) or await self._place(replace(job, ref=ref, order=order))

        return await _few_at_once(place, jobs)

    async def _place(self, job: Enqueue) -> JobRef | None:
        """Return the place of a schedule's job, in any queue; None without one. Raises: UnreachableError."""
        log, is_own = self._client.log, is_of_tick(job)
        for ref in (job.ref, instead_of(job.ref)):
            chains = log.names.chains_of_id(ref.job_id)
            if await log.last(chains) is None:
                continue
            first: dict[str, JobEvent] = {}
            for stored in await log.read_chain(chains):
                first.setdefault(stored.event.queue, stored.event)
            queue = next((queue for queue, event in first.items() if is_own(event)), None)
            if queue is not None:
                return replace(ref, queue=queue)
        return None

    async def _has_ended(self, name: str, schedule: Schedule, ran: datetime) -> bool:
        """Return whether a tick's job has ended, or, if it is not made yet, the job that calls the tick's hooks.

        A job that does not exist counts as ended. Every queue is searched: the schedule may have changed its queue.

        Raises: UnreachableError.
        """
        definition = schedule.definition
        ref = JobRef(queue=definition.queue, job_id=tick_job_id(name, ran))
        order = order_of(definition, tick_name(name, ran))
        place = await self._place(Enqueue(ref=ref, task=definition.task, order=order))
        if place is None and definition.hooks:
            hooks = replace(ref, job_id=hooks_job_id(ref.job_id))
            place = await self._place(Enqueue(ref=hooks, task=hooks_task(name)))
        if place is None:
            return True
        job = (await load(self._client.log, place)).job
        return job is None or job.is_final


async def _few_at_once(do: Callable[[Enqueue], Awaitable[R]], jobs: Sequence[Enqueue]) -> list[R]:
    found: list[R] = []
    for start in range(0, len(jobs), _AT_ONCE):
        found += await asyncio.gather(*map(do, jobs[start : start + _AT_ONCE]))
    return found
