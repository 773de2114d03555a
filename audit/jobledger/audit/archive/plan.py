"""What an archive run would move: how far it may go, which jobs go with it and which are carried. Reads only.

Source: ADR 011.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from jobledger.audit.errors import ArchiveRefusedError
from jobledger.audit.verify.checker import Checker
from jobledger.audit.verify.definitions import Definitions
from jobledger.audit.verify.runs.families import Items
from jobledger.ledger.children import child_ref
from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.aggregates import AGGREGATES, JOB
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.events import (
    Cancelled,
    Carried,
    Completed,
    Discarded,
    JobEvent,
    StepCompleted,
    StepFailed,
)
from jobledger.ledger.model.job import CLOSED_STATES, Job, JobState, evolve
from jobledger.ledger.model.lifecycle import REMARKS, lean
from jobledger.ledger.model.limits.definition import LIMIT
from jobledger.ledger.model.log import Head, Log, end_of_chain, events_among
from jobledger.ledger.model.runs.orders import items_of
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import (
    CHILDREN_CONSUMER,
    TIMERS_CONSUMER_PREFIX,
    JobRef,
    Names,
    aggregate_of,
)
from jobledger.ledger.model.unique import UNIQUE, KeyRef, Taken, key_of
from jobledger.ledger.nats.durables import list_consumers
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import ConsumerInfo

# Children of runs across an archive run: one that has ended is carried as long as its run may read its end.
# A run reads its children's results when the last child of the step has ended, perhaps months after the first one. Until the
# run has recorded the end of the step, nobody else has these results. Source: ADR 011.

_ENDS = (Completed, Cancelled, Discarded)


class _EndedChildren(msgspec.Struct, gc=False):
    """The children of one step that have ended."""

    items: Items = msgspec.field(default_factory=Items)
    here: Items = msgspec.field(default_factory=Items)  #: of them those whose end is an event of the prefix


class NeededChildren(msgspec.Struct):
    """The children that have ended and must be carried."""

    refs: list[JobRef] = []
    ended_here: int = 0  #: how many of them came to their end in the prefix


class Members:
    """The children that have ended in a prefix; memory grows with the steps whose end is not in it, a bit for each child."""

    def __init__(self) -> None:
        self._runs: dict[JobRef, dict[str, _EndedChildren]] = {}

    def take(self, ref: JobRef, event: JobEvent, job: Job) -> None:
        """Take in an event that closed a job: a child, or a run, which then reads nothing any more."""
        self._runs.pop(ref, None)
        # The beginning of the job may be in an earlier export: then its end names its run.
        member = job.member or (event.member if isinstance(event, _ENDS) else None)
        if member is None:
            return
        steps = self._runs.setdefault(JobRef(queue=member.queue, job_id=member.job), {})
        ended = steps.setdefault(member.step, _EndedChildren())
        ended.items.add(member.item)
        if not isinstance(event, Carried):
            ended.here.add(member.item)

    def forget(self, run: JobRef, step: str) -> None:
        """Forget the children of a step whose end is recorded: their run has read them."""
        self._runs.get(run, {}).pop(step, None)

    async def needed(self, log: Log) -> NeededChildren:
        """Return the children whose ends their runs may still read, by the runs' present state.

        Raises: ArchiveRefusedError where a run has not counted an end yet, CorruptLedgerError, UnreachableError.
        """
        found = NeededChildren()
        for run, steps in self._runs.items():
            job = (await load(log, run)).job if steps else None
            if job is None or job.state in CLOSED_STATES:
                continue
            for key, ended in steps.items():
                step = job.steps.get(key)
                if step is None or step.order is None or step.has_ended:
                    continue
                _check_counted(run, step, ended.items.number)
                items = ended.items.number & step.ended
                if step.order.is_open and step.count is not None:
                    # A batch that is closed reads no results, and nobody enqueues its jobs a second time.
                    items &= step.failed
                found.refs += [child_ref(run, step, item) for item in items_of(items)]
                found.ended_here += (items & ended.here.number).bit_count()
        return found


def _check_counted(run: JobRef, step: Step, ended: int) -> None:
    """Refuse to archive the end of a child that its run has not counted: the run would wait for it for ever.

    Raises: ArchiveRefusedError.
    """
    may_end = ended if step.count is None else ended & step.opened
    uncounted = (may_end & ~step.ended).bit_count()
    if uncounted:
        raise ArchiveRefusedError(
            f"run {run.job_id} of {run.queue} has not counted yet that {uncounted:,} of the children of its step "
            f"{step.key!r} ended, and would wait for them for ever: start a worker, which counts them, and run this again"
        )


Progress = Callable[[int, int], None]

#: What a carried job takes in the ledger beside what its own events say: its `carried`, a work item, a line of `counted`.
_CARRIED_BYTES: Final = 900

#: Consumers of ours that lose nothing: what they have not read of a job comes to them again with `carried`.
_OURS: Final = ("work_", "reconcile_", TIMERS_CONSUMER_PREFIX)


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A durable consumer that has not dealt with all events that would go away."""

    consumer: str
    settled_through: int  #: all events up to this stream sequence are dealt with
    sequence: int  #: the first event that it wants, has not dealt with, and would lose

    @property
    def is_ours(self) -> bool:
        """Whether it is the workers' own, by which runs learn of the ends of their children."""
        return self.consumer == CHILDREN_CONSUMER


class ArchivePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do."""

    first_sequence: int  #: of the ledger as it is
    through_sequence: int  #: the last one that would go; `first_sequence - 1` when none would
    stored_until: datetime | None  #: when that one was stored
    events: int
    bytes: int  #: of these events
    jobs_archived: int  #: jobs that are over: all of their events go
    jobs_carried: int  #: jobs that stay in the ledger
    work_items: int  #: of them, those that wait for a worker or run
    held_back_by: str  #: why the rest must stay, "" where nothing holds it back
    unread: tuple[Unread, ...]  #: subscribers that would miss events
    unfinished: int  #: an earlier run that would be finished first goes up to here; 0 when there is none


class LiveHolders(Protocol):
    """Who knows whether a process lives: `Leases`."""

    async def find(self, worker: str) -> object | None:
        """Return something while the lease of this process lives."""
        ...


async def bound(log: Log, before: datetime, leases: LiveHolders) -> tuple[int, str]:
    """Return how far a run may archive events stored before a time of the server, and what holds it back.

    These are the last stream sequence that may go, below the ledger's first when none may, and why the rest stays, ""
    if nothing holds it back. A held lock stays, and, where there are seals, all events that no seal covers yet.

    Raises: CorruptLedgerError, UnreachableError.
    """
    head = await log.head()
    through, held_back_by = await stored_before(log, head, before), ""
    for aggregate in AGGREGATES.values():
        if aggregate is JOB or aggregate.restated:
            continue  # jobs are carried, or go away whole; what is restated is said once more
        async for message in newest_of(log, aggregate):
            kept = aggregate.kept(message)
            if kept is None:
                continue
            if kept.until is not None and kept.until < before:
                continue
            lives = not kept.while_lives or await leases.find(kept.while_lives) is not None
            if kept.from_sequence <= through and lives:
                through, held_back_by = kept.from_sequence - 1, kept.why
    return through, held_back_by


async def newest_of(log: Log, aggregate: Aggregate[Any, Any]) -> AsyncGenerator[Message, None]:
    """Yield the newest event of each chain of an aggregate, or of each of the types that archive runs ask about."""
    types = [aggregate.of_type(log.names, tag) for tag in aggregate.keeps_of]
    for subject in types or [aggregate.everything(log.names)]:
        newest: dict[tuple[str, ...], Message] = {}
        async with contextlib.aclosing(log.read_messages(subject=subject)) as batches:
            async for batch in batches:
                newest.update((aggregate.key_in(message.subject), message) for message in events_among(batch))
        for message in newest.values():
            yield message


async def restate(log: Log, through: int, now: datetime) -> None:
    """Append once more what is in force and would go away: the newest event of chains that are restated.

    Leave out chains that were restated before or have a newer event, and what expired before `now`.

    Raises: CorruptLedgerError, LedgerFullError, UnreachableError.
    """
    for aggregate in AGGREGATES.values():
        if not aggregate.restated:
            continue
        async for message in newest_of(log, aggregate):
            kept = aggregate.kept(message)
            is_over = kept is None or (kept.until is not None and kept.until <= now)
            if message.stream_sequence > through or is_over:
                continue
            end = await end_of_chain(log, aggregate.chain(log.names, *aggregate.key_in(message.subject)))
            view = aggregate.view(*end)
            again = aggregate.said_again(message)
            if end.event is not None and end.event.stream_sequence == message.stream_sequence:
                with contextlib.suppress(WrongSequenceError):
                    await log.append(aggregate.link(log.names, [again], view))


async def stored_before(log: Log, head: Head, before: datetime) -> int:
    """Return the last sequence that was stored before a time."""
    async with contextlib.aclosing(log.read_messages(from_time=before)) as batches:
        async for batch in batches:
            return batch[0].stream_sequence - 1
    return head.last_sequence


class Prefix:
    """Takes the events of a prefix in order and finds the jobs that go away whole; memory grows with the others.

    A witness of `verify`: reads what a check reads, in the same pass.
    """

    def __init__(self) -> None:
        self.events = 0
        self.bytes = 0
        self.jobs_over = 0  #: jobs that come to their end in the prefix
        self.jobs: dict[JobRef, Job] = {}  #: the others, without inputs and errors
        self.members = Members()  #: children that come to their end in the prefix
        self.keys: dict[KeyRef, Taken] = {}  #: unique keys that jobs may still hold, as they were taken last
        self.limits = Definitions()
        self.newest_at: datetime | None = None
        self.carried_bytes = 0  #: that those jobs and the children of steps that go on take, at the most
        self._weights: dict[JobRef, int] = {}  # of these jobs, each one's part of it
        self._of_steps: dict[JobRef, dict[str, int]] = {}  # of children that have ended, by run and step

    def feed(self, batch: Sequence[Message]) -> None:
        """Take what was read; what cannot be read is left out."""
        for message in batch:
            self.events += 1
            self.bytes += len(message.data)
            self.newest_at = message.stored_at
            if isinstance(message, StoredEvent):
                self._take(message)
            elif not isinstance(message, Unreadable):
                self._take_other(message)

    def _take_other(self, message: Message) -> None:
        aggregate = aggregate_of(message.subject)
        if aggregate == UNIQUE.name:
            taken = UNIQUE.decode(message)
            self.keys[KeyRef(task=taken.task, key=taken.key)] = taken
        elif aggregate == LIMIT.name:
            self.limits.feed(LIMIT.decode(message), message)

    async def finish(self, checker: Checker) -> None:
        """Have nothing to say."""

    def _take(self, stored: StoredEvent) -> None:
        event = stored.event
        ref = JobRef(queue=event.queue, job_id=event.job)
        known = self.jobs.get(ref)
        if known is None and isinstance(event, REMARKS):
            return  # about a job that is over: the receipt of somebody who was late, or a note
        job = evolve(known, lean(event), stored.stream_sequence)
        self._weigh(ref, job, len(stored.data), is_first=known is None)
        if job.state in CLOSED_STATES:
            self.jobs_over += not isinstance(event, Carried)  # that one came to its end before
            self.jobs.pop(ref, None)
            self.members.take(ref, event, job)
            self._let_go(job)
        else:
            self.jobs[ref] = job
            if isinstance(event, StepCompleted | StepFailed) and job.steps[event.step].has_ended:
                self.members.forget(ref, event.step)
                self.carried_bytes -= self._of_steps.get(ref, {}).pop(event.step, 0)

    def _weigh(self, ref: JobRef, job: Job, size: int, *, is_first: bool) -> None:
        """Keep count of what has to be carried: a job's order stands in `carried` and in its new work item."""
        added = _CARRIED_BYTES + 2 * size if is_first else size
        weight = self._weights.get(ref, 0) + added
        self.carried_bytes += added
        if job.state not in CLOSED_STATES:
            self._weights[ref] = weight
            return
        self._weights.pop(ref, None)
        self.carried_bytes -= sum(self._of_steps.pop(ref, {}).values())
        if (member := job.member) is None:
            self.carried_bytes -= weight
        else:  # its run may still read how it ended
            steps = self._of_steps.setdefault(JobRef(queue=member.queue, job_id=member.job), {})
            steps[member.step] = steps.get(member.step, 0) + weight

    def _let_go(self, job: Job) -> None:
        """Forget the key of a closed job, unless the key is taken until a set time."""
        taken = self.keys.get(key_of(job)) if job.order.unique else None
        if taken is not None and (taken.queue, taken.job) == (job.queue, job.id) and taken.expires_at is None:
            del self.keys[key_of(job)]

    @property
    def work_items(self) -> int:
        """How many jobs need a fresh work item, as far as the prefix tells."""
        return sum(job.state in (JobState.QUEUED, JobState.RUNNING) for job in self.jobs.values())


async def read_prefix(log: Log, first: int, through: int, on_progress: Progress | None = None) -> Prefix:
    """Read the stream sequences `first` to `through` of a log.

    Raises: CorruptLedgerError, UnreachableError.
    """
    found = Prefix()
    if through < first:
        return found
    async with contextlib.aclosing(log.read_messages(from_sequence=first)) as batches:
        async for batch in batches:
            found.feed([message for message in batch if message.stream_sequence <= through])
            if on_progress is not None:
                on_progress(found.events, through - first + 1)
            if batch[-1].stream_sequence >= through:
                break
    return found


FindUnread = Callable[[int], Awaitable[list[Unread]]]


async def unread(log: Log, inbox: Inbox, through: int) -> list[Unread]:
    """Return the durable consumers on the ledger that would miss events; of the workers' own only the children's.

    Raises: LedgerError, UnreachableError.
    """
    found: list[Unread] = []
    for info in await _consumers(inbox, log.names):
        settled = info.ack_floor.stream_sequence
        if not info.unsettled or settled >= through:
            continue
        sequence = await _first_wanted(log, info.filters or (log.names.all_events,), settled + 1)
        if sequence is not None and sequence <= through:
            found.append(Unread(consumer=info.name, settled_through=settled, sequence=sequence))
    return found


async def _first_wanted(log: Log, filters: tuple[str, ...], begin: int) -> int | None:
    """Return the first sequence from `begin` on that fits a consumer's filters."""
    found: list[int] = []
    head = await log.head()
    begin = max(begin, head.first_sequence)
    for subject in filters if begin <= head.last_sequence else ():
        async with contextlib.aclosing(log.read_messages(from_sequence=begin, subject=subject)) as batches:
            async for batch in batches:
                found.append(batch[0].stream_sequence)
                break
    return min(found, default=None)


async def _consumers(inbox: Inbox, names: Names) -> list[ConsumerInfo]:
    """Return the durable consumers that may miss events, without `_OURS`."""
    return [
        info
        for info in await list_consumers(inbox, names.ledger_stream)
        if info.is_durable and not info.name.startswith(_OURS)
    ]
