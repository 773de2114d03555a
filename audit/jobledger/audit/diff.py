"""What changed between two moments of a ledger, and whether two ledgers, or exports of them, share a past.

Read in three passes, none of which keeps more than the jobs that changed: where the two sides part, which jobs have
events after that, and what those jobs were before and are after. The states come from the fold of the model.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from jobledger.audit.export.log import ExportLog, JoinedLog
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Carried, Started
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.lifecycle import lean
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef

#: Chains that are read one by one; for more of them everything is read in one go.
_CHAINS_MAX: Final = 256
#: The state of a job whose first events are missing.
UNKNOWN: Final = "unknown"

Progress = Callable[[int, int], None]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two moments: a log, and how much of it counts."""

    log: Log
    first_sequence: int
    last_sequence: int


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of a queue went from one state to another."""

    queue: str
    before: str | None  #: None: they did not exist
    after: str | None
    jobs: int


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one job between the two moments."""

    id: str
    queue: str
    task: str
    before: str | None  #: its state; None when it did not exist, "unknown" when its beginning is not there
    after: str | None
    attempts_added: int  #: negative when the later moment has fewer
    events_added: int
    last_sequence: int  #: sequence of its newest event


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed."""

    before_sequence: int
    after_sequence: int
    compared_from: int  #: begin of the compared range, which both logs hold; not compared if they are one log
    compared_to: int
    first_difference: (
        int  #: the first stream sequence at which they are not the same; 0 when they share their past
    )
    sentence: str  #: what is different there, "" when nothing is
    events_added: int
    attempts_added: int
    transitions: tuple[Transition, ...]  #: sorted by queue, the most frequent first
    jobs: tuple[JobChange, ...]  #: all that changed, by their newest event

    @property
    def shares_past(self) -> bool:
        """Whether both sides are equal up to the end of the shorter one."""
        return not self.first_difference


class _Counts(msgspec.Struct, gc=False):
    """What was added to a job after the two sides part."""

    has_past: bool  #: it has events before the two sides part
    events: int = 0
    attempts: int = 0


class _Jobs:
    """The states of chosen jobs, folded from their events so far."""

    def __init__(self, jobs: Iterable[JobRef]) -> None:
        self._jobs: dict[JobRef, Job | None] = dict.fromkeys(jobs)
        self._unknown: set[JobRef] = set()

    def copy(self) -> _Jobs:
        copied = _Jobs(())
        copied._jobs, copied._unknown = self._jobs.copy(), self._unknown.copy()
        return copied

    def take(self, message: Message) -> None:
        if not isinstance(message, StoredEvent):
            return
        event, ref = message.event, _ref(message)
        if ref not in self._jobs:
            return
        job = self._jobs[ref]
        if isinstance(event, Carried):
            self._unknown.discard(ref)
        elif job is None and event.prev:
            self._unknown.add(ref)
        self._jobs[ref] = evolve(job, lean(event), message.stream_sequence)

    def lack(self, refs: Iterable[JobRef]) -> None:
        """Mark jobs without an event so far as unknown: they began before the events that are held."""
        self._unknown |= {ref for ref in refs if self._jobs[ref] is None}

    def get(self, ref: JobRef) -> Job | None:
        return self._jobs.get(ref)

    def state(self, ref: JobRef) -> str | None:
        if ref in self._unknown:
            return UNKNOWN
        job = self._jobs.get(ref)
        return None if job is None else job.state.value


def _ref(stored: StoredEvent) -> JobRef:
    return JobRef(queue=stored.event.queue, job_id=stored.event.job)


async def compare(
    before: Side, after: Side, *, subject: str | None = None, on_progress: Progress | None = None
) -> Difference:
    """Return what changed from one side to the other; `subject`: the selection by which both were read, if any.

    Raises: InvalidInputError for two sides that have no stream sequence in common; CorruptLedgerError,
        UnreachableError.
    """
    begin = max(before.first_sequence, after.first_sequence)
    end = min(before.last_sequence, after.last_sequence)
    if begin > end + 1:
        raise InvalidInputError(
            f"the two have nothing in common: one begins at stream sequence {begin}, the other ends at {end}"
        )
    first_difference, sentence = 0, ""
    if before.log is not after.log:
        first_difference, sentence = await _part(
            before.log, after.log, begin, end, subject=subject, on_progress=on_progress
        )
    shared = first_difference - 1 if first_difference else end
    lost = await _touched(before, shared, subject)
    added = await _touched(after, shared, subject)
    jobs = await _shared_jobs(before, after, shared, (lost, added), subject=subject, on_progress=on_progress)
    then = await _go_on(before, shared, jobs, subject)
    now = await _go_on(after, shared, jobs, subject)
    changes = sorted(_changes(lost, added, then, now), key=lambda change: change.last_sequence)
    return Difference(
        before_sequence=before.last_sequence,
        after_sequence=after.last_sequence,
        compared_from=begin,
        compared_to=end,
        first_difference=first_difference,
        sentence=sentence,
        events_added=sum(change.events_added for change in changes),
        attempts_added=sum(change.attempts_added for change in changes),
        transitions=_transitions(changes),
        jobs=tuple(changes),
    )


async def _messages(
    log: Log, first: int, last: int, subject: str | None, on_progress: Progress | None = None
) -> AsyncGenerator[Message, None]:
    if last < first:
        return
    async with contextlib.aclosing(log.read_messages(from_sequence=first, subject=subject)) as batches:
        async for batch in batches:
            for message in batch:
                if message.stream_sequence > last:
                    return
                yield message
            if on_progress is not None:
                on_progress(batch[-1].stream_sequence - first + 1, last - first + 1)


async def _part(
    one: Log, other: Log, begin: int, end: int, *, subject: str | None, on_progress: Progress | None
) -> tuple[int, str]:
    """Return the first stream sequence at which two logs are not the same, and how; (0, "") when there is none."""
    ours = _messages(one, begin, end, subject, on_progress)
    theirs = _messages(other, begin, end, subject)
    async with contextlib.aclosing(ours), contextlib.aclosing(theirs):
        while True:
            mine, yours = await anext(ours, None), await anext(theirs, None)
            if mine is None and yours is None:
                return 0, ""
            found = _unlike(mine, yours)
            if found is not None:
                return found


def _unlike(mine: Message | None, yours: Message | None) -> tuple[int, str] | None:
    if mine is None or yours is None or mine.stream_sequence != yours.stream_sequence:
        held = [each for each in (mine, yours) if each is not None]
        first = min(held, key=lambda each: each.stream_sequence)
        where = "first" if first is mine else "second"
        return first.stream_sequence, f"only the {where} has an event there: {first.subject}"
    if (mine.subject, mine.hash) == (yours.subject, yours.hash):
        return None
    if mine.subject != yours.subject:
        return mine.stream_sequence, f"the first has {mine.subject}, the second {yours.subject}"
    return (
        mine.stream_sequence,
        f"{mine.subject} has the hash {mine.hash} in the first, {yours.hash} in the second",
    )


async def _touched(side: Side, shared: int, subject: str | None) -> dict[JobRef, _Counts]:
    """Return the jobs that have events after the last shared sequence, and how many."""
    found: dict[JobRef, _Counts] = {}
    messages = _messages(side.log, shared + 1, side.last_sequence, subject)
    async with contextlib.aclosing(messages):
        async for message in messages:
            if not isinstance(message, StoredEvent):
                continue
            ref = _ref(message)
            counts = found.get(ref)
            if counts is None:
                counts = found[ref] = _Counts(has_past=bool(message.event.prev))
            counts.events += 1
            counts.attempts += isinstance(message.event, Started)
    return found


async def _shared_jobs(
    before: Side,
    after: Side,
    shared: int,
    touched: Sequence[Mapping[JobRef, _Counts]],
    *,
    subject: str | None,
    on_progress: Progress | None,
) -> _Jobs:
    """Return the state that every job that changed had at the last shared sequence."""
    jobs = _Jobs(ref for each in touched for ref in each)
    with_past = {ref for each in touched for ref, counts in each.items() if counts.has_past}
    side = before if before.first_sequence <= after.first_sequence else after
    if len(with_past) <= _CHAINS_MAX and not isinstance(side.log, ExportLog | JoinedLog):
        for ref in with_past:
            for stored in await side.log.read_chain(side.log.names.chain(ref)):
                if stored.stream_sequence <= shared:
                    jobs.take(stored)
        jobs.lack(with_past)
        return jobs
    messages = _messages(side.log, side.first_sequence, shared, subject, on_progress)
    async with contextlib.aclosing(messages):
        async for message in messages:
            # A job without a past is new, even if an archived job had its id.
            if isinstance(message, StoredEvent) and _ref(message) in with_past:
                jobs.take(message)
    jobs.lack(with_past)
    return jobs


async def _go_on(side: Side, shared: int, jobs: _Jobs, subject: str | None) -> _Jobs:
    """Return the jobs after the events that one side has beyond the last shared sequence."""
    found = jobs.copy()
    messages = _messages(side.log, shared + 1, side.last_sequence, subject)
    async with contextlib.aclosing(messages):
        async for message in messages:
            found.take(message)
    return found


def _changes(
    lost: Mapping[JobRef, _Counts], added: Mapping[JobRef, _Counts], then: _Jobs, now: _Jobs
) -> Iterator[JobChange]:
    none = _Counts(has_past=False)
    for ref in dict.fromkeys([*lost, *added]):
        newest = now.get(ref) or then.get(ref)
        assert newest is not None, "a job that changed has an event on one side"
        gone, come = lost.get(ref, none), added.get(ref, none)
        yield JobChange(
            id=ref.job_id,
            queue=ref.queue,
            task=newest.task,
            before=then.state(ref),
            after=now.state(ref),
            attempts_added=come.attempts - gone.attempts,
            events_added=come.events - gone.events,
            last_sequence=newest.last_sequence,
        )


def _transitions(changes: Iterable[JobChange]) -> tuple[Transition, ...]:
    counted = Counter((change.queue, change.before, change.after) for change in changes)
    ordered = sorted(
        counted.items(), key=lambda item: (item[0][0], -item[1], str(item[0][1]), str(item[0][2]))
    )
    return tuple(
        Transition(queue=queue, before=before, after=after, jobs=jobs)
        for (queue, before, after), jobs in ordered
    )
