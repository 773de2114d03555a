"""One job's chain: the fold with the position and hash the next append must build on.

`transact` stores the events of a decision: read (unless known), decide, append on condition; if somebody else was
faster, once more from the newest view. For an enqueue and a claim a lost race means something else: they use `link`
and `commit`. `commit_all` appends to several chains of any aggregate as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import force_setattr

from jobledger.ledger.model.aggregate import Place
from jobledger.ledger.model.aggregates import JOB, aggregate_for
from jobledger.ledger.model.codec import StoredEvent, digest, encode
from jobledger.ledger.model.commands import Command, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.errors import JobNotFoundError, NotFoundError, RefusedError, WrongSequenceError
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.log import ChainEvents, Entry, Log
from jobledger.ledger.model.subjects import JobRef, Names

#: Lost races in a row after which a writer gives up; each one means that somebody else made progress.
TRANSACT_TRIES_MAX = 16
#: The pause before a chain is read again, if a known event was not in it.
_LAG_S = 0.02


class JobView(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A job and the place in the log where its next event must follow."""

    folded: Job | None = None  #: the job before `unfolded`
    last_sequence: int = 0  #: sequence of its newest message, even if that is no event
    last_data: bytes = b""  #: the newest event as stored
    unfolded: tuple[
        JobEvent, ...
    ] = ()  #: the newest events, folded only when the job is asked for, which is seldom

    @property
    def job(self) -> Job | None:
        """The job after all events; it is folded at the first call."""
        if self.unfolded:
            job, sequence = self.folded, self.last_sequence - len(self.unfolded)
            for event in self.unfolded:
                sequence += 1
                job = evolve(job, event, sequence)
            force_setattr(self, "folded", job)
            force_setattr(self, "unfolded", ())
        return self.folded

    def __eq__(self, other: object) -> bool:
        """Compare the chains; whether they were folded yet makes no difference."""
        if not isinstance(other, JobView):
            return NotImplemented
        return (self.last_sequence, self.last_data, self.job) == (
            other.last_sequence,
            other.last_data,
            other.job,
        )

    __hash__ = None  # type: ignore[assignment] # its fields change when it is folded

    @property
    def last_hash(self) -> str:
        """The `prev` of the next event; computed only when another event is appended."""
        return digest(self.last_data) if self.last_data else ""


EMPTY_CHAIN = JobView()


def extend(chain: JobView, stored: StoredEvent) -> JobView:
    """Return the chain after one more stored event."""
    return JobView(
        evolve(chain.job, stored.event, stored.stream_sequence), stored.stream_sequence, stored.data
    )


def fold(stored: Iterable[StoredEvent], chain: JobView = EMPTY_CHAIN) -> JobView:
    """Return the chain after all of `stored`, given in stream order."""
    job, last = chain.job, None
    for last in stored:
        job = evolve(job, last.event, last.stream_sequence)
    return chain if last is None else JobView(job, last.stream_sequence, last.data)


class LinkedEvents(msgspec.Struct, frozen=True, gc=False):
    """Events made ready to append: linked by hash, encoded, addressed."""

    events: tuple[JobEvent, ...]
    entries: tuple[Entry, ...]


def link(chain: JobView, events: Sequence[JobEvent], names: Names) -> LinkedEvents:
    """Link fresh `events` to the chain and to each other; the first entry carries the condition."""
    return LinkedEvents(tuple(events), JOB.link(names, events, chain))


def first_entry(event: JobEvent, names: Names) -> Entry:
    """Return the entry that `link` makes of a chain's first event, which has no event before it."""
    return Entry(names.event(event), encode(event), names.chain_of(event), 0)


def advance(chain: JobView, linked: LinkedEvents, first_sequence: int) -> JobView:
    """Return the chain after its linked events were accepted from `first_sequence` on."""
    last_sequence = first_sequence + len(linked.events) - 1
    before = chain.job if chain.unfolded else chain.folded
    return JobView(before, last_sequence, linked.entries[-1].data, linked.events)


async def load(log: Log, ref: JobRef) -> JobView:
    """Return the chain as it is stored now; without a job when there is no such job.

    A message under the job's subjects that is no event changes only the sequence that the next append has to
    name, not the state or the link.
    """
    return view_of(await log.read_chain(log.names.chain(ref)))


async def catch_up(log: Log, ref: JobRef, view: JobView) -> JobView:
    """Return the chain as it is stored now, reading only what is newer than `view`; a replica may lag behind.

    If the newer events do not link to `view`, as after an archive run, it reads the whole chain.
    """
    newer = await log.read_on(log.names.chain(ref), view.last_sequence)
    if newer and newer[0].event.prev != view.last_hash:
        return await load(log, ref)
    after = fold(newer, view)
    return (
        after
        if newer.last_sequence <= after.last_sequence
        else JobView(after.job, newer.last_sequence, after.last_data)
    )


def view_of(events: ChainEvents) -> JobView:
    """Return the view of a chain that was read."""
    view = fold(events)
    if events.last_sequence > view.last_sequence:  # a message that is no event follows the newest one
        view = JobView(view.job, events.last_sequence, view.last_data)
    return view


async def commit(log: Log, chain: JobView, events: Sequence[JobEvent]) -> JobView:
    """Append `events`, decided on `chain`, and return the chain after them.

    Raises: WrongSequenceError when the chain has moved, and what `Log.append` raises.
    """
    linked = link(chain, events, log.names)
    return advance(chain, linked, await log.append(linked.entries))


class _BegunCommit(msgspec.Struct, eq=False):
    """A commit whose answer is on its way."""

    chain: JobView
    linked: LinkedEvents
    answered: Callable[[JobView | Exception], None]

    def __call__(self, result: int | Exception) -> None:
        if isinstance(result, Exception):
            self.answered(result)
        else:
            self.answered(advance(self.chain, self.linked, result))


def begin_commit(
    log: Log, chain: JobView, events: Sequence[JobEvent], answered: Callable[[JobView | Exception], None]
) -> None:
    """Append as `commit` does, without a wait; `answered` gets what `commit` returns or raises, later."""
    linked = link(chain, events, log.names)
    log.begin(linked.entries, _BegunCommit(chain, linked, answered))


#: One chain's part of an append: the view of it, and the events decided on that view, in their order; at least one.
Addition = tuple[Place, Sequence[Envelope]]


async def commit_all(log: Log, additions: Sequence[Addition]) -> int:
    """Append to several chains as one, each on its own condition: all is stored, at consecutive sequences, or nothing.

    Chains of any aggregate go together, each chain once; up to 1,000 events in all. Returns the first event's sequence.

    Raises: WrongSequenceError when one of the chains has moved, and what `Log.append` raises.
    """
    entries = [
        entry
        for place, events in additions
        for entry in aggregate_for(events[0]).link(log.names, events, place)
    ]
    return await log.append(entries)


T = TypeVar("T")


async def retry_raced(attempt: Callable[[], Awaitable[T]], *, tries_max: int = TRANSACT_TRIES_MAX) -> T:
    """Call `attempt`, which loads, decides and appends, again when another writer was faster; return its result.

    Each lost race means that somebody else made progress, so a few tries are enough.

    Raises: WrongSequenceError after too many lost races, and what `attempt` raises.
    """
    for tries in range(1, tries_max + 1):
        try:
            return await attempt()
        except WrongSequenceError:
            if tries == tries_max:
                raise
            await asyncio.sleep(0)
    raise AssertionError("there is at least one try")


async def transact_all(log: Log, decide_all: Callable[[], Awaitable[Sequence[Addition]]]) -> int:
    """Decide on several chains and append to all as one; again from the newest views when another writer was faster.

    `decide_all` reads the chains at each call, and returns the events for each, or raises a refusal; an empty list
    appends nothing. Returns the first event's sequence, 0 for nothing.

    Raises: what `decide_all` raises, WrongSequenceError after too many lost races, and what `Log` raises.
    """

    async def attempt() -> int:
        additions = await decide_all()
        return await commit_all(log, additions) if additions else 0

    return await retry_raced(attempt)


async def transact(
    log: Log,
    ref: JobRef,
    command: Command,
    stamp: Callable[[], Stamp],
    *,
    known: JobView | None = None,
) -> JobView:
    """Decide `command` on the newest view of the job and append the events; return the chain after them.

    `known` saves the first read when the caller's view is likely the newest; a refusal that rests on it is
    decided again on the stored chain. No refusal rests on a view older than `known`, as a replica that lags may
    return. Safe to repeat: an outcome or transition that was already recorded is refused by `decide`.

    Raises: what `decide` refuses with (JobNotFoundError, IllegalTransitionError and its kin),
        WrongSequenceError after too many lost races, and what `Log` raises.
    """
    found = known
    reached = 0 if known is None else known.last_sequence  # the newest view reaches at least this sequence

    async def attempt() -> JobView:
        nonlocal found, reached
        given, found = found, None
        chain = given if given is not None else await _load_from(log, ref, reached)
        try:
            events = decide(chain.job, command, stamp())
        except (NotFoundError, RefusedError) as error:
            if given is not None or chain.last_sequence < reached:
                raise WrongSequenceError(log.names.chain(ref), chain.last_sequence) from error
            if isinstance(error, JobNotFoundError):
                raise JobNotFoundError(ref.job_id) from error
            raise
        try:
            return await commit(log, chain, events)
        except WrongSequenceError:
            reached = max(reached, chain.last_sequence + 1)
            raise

    return await retry_raced(attempt)


async def _load_from(log: Log, ref: JobRef, reached: int) -> JobView:
    """Load the chain; load it once more after a pause if a known event is not in it."""
    chain = await load(log, ref)
    if chain.last_sequence < reached:
        await asyncio.sleep(_LAG_S)
        chain = await load(log, ref)
    return chain
