"""One job's chain: the fold with the position and hash the next append must build on.

`transact` makes a decision facts: read (unless known), decide, append on condition, and again from the newest
view when somebody else was faster. Enqueueing and claiming, to which a lost race means something else, stand on
`seal` and `commit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import force_setattr

from jobledger.ledger.model.codec import StoredEvent, digest, encode
from jobledger.ledger.model.commands import Command, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import JobNotFoundError, NotFoundError, RefusedError, WrongSequenceError
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.subjects import JobRef, Names

#: Lost races in a row after which a writer gives up; each one means that somebody else made progress.
TRANSACT_TRIES_MAX = 16
#: Pause before a chain is read again that lacks what is known to be in it.
_LAG_S = 0.02


class JobView(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A job and the place in the log where its next event must follow."""

    folded: Job | None = None  #: the job before `unfolded`
    last_sequence: int = 0
    last_data: bytes = b""  #: the newest event as stored
    unfolded: tuple[
        JobEvent, ...
    ] = ()  #: the newest events, up to `last_sequence`; often nobody asks what they make

    @property
    def job(self) -> Job | None:
        """The job as all events add up; folded when it is first asked for."""
        if self.unfolded:
            job, sequence = self.folded, self.last_sequence - len(self.unfolded)
            for event in self.unfolded:
                sequence += 1
                job = evolve(job, event, sequence)
            force_setattr(self, "folded", job)
            force_setattr(self, "unfolded", ())
        return self.folded

    def __eq__(self, other: object) -> bool:
        """Compare what the chains are, folded yet or not."""
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
        """What the next event's `prev` must be; worked out only where a chain goes on."""
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


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """Events made ready to append: linked by hash, encoded, addressed."""

    events: tuple[JobEvent, ...]
    entries: tuple[Entry, ...]


def seal(chain: JobView, events: Sequence[JobEvent], names: Names) -> Sealed:
    """Link `events` to the chain and to each other; the first entry carries the condition.

    The events are fresh from `decide` and nobody else's, so they are linked in place.
    """
    filter_subject = names.chain_of(events[0])
    entries = [_link(events[0], chain.last_hash, names, filter_subject, chain.last_sequence)]
    for event in events[1:]:
        entries.append(_link(event, digest(entries[-1].data), names, filter_subject, None))
    return Sealed(tuple(events), tuple(entries))


def _link(event: JobEvent, previous: str, names: Names, filter_subject: str, expected: int | None) -> Entry:
    force_setattr(event, "prev", previous)
    return Entry(names.event(event), encode(event), filter_subject, expected)


def advance(chain: JobView, sealed: Sealed, first_sequence: int) -> JobView:
    """Return the chain after its sealed events were accepted from `first_sequence` on."""
    last_sequence = first_sequence + len(sealed.events) - 1
    return JobView(chain.job, last_sequence, sealed.entries[-1].data, sealed.events)


async def load(log: Log, ref: JobRef) -> JobView:
    """Return the chain as it is stored now; empty when there is no such job."""
    return fold(await log.read_chain(log.names.chain(ref)))


async def commit(log: Log, chain: JobView, events: Sequence[JobEvent]) -> JobView:
    """Append `events`, decided on `chain`, and return the chain after them.

    Raises: WrongSequenceError when the chain has moved, and what `Log.append` raises.
    """
    sealed = seal(chain, events, log.names)
    return advance(chain, sealed, await log.append(sealed.entries))


async def transact(
    log: Log,
    ref: JobRef,
    command: Command,
    stamp: Callable[[], Stamp],
    *,
    known: JobView | None = None,
) -> JobView:
    """Decide `command` on the newest view of the job and append what follows; return the chain after it.

    `known` saves the first read when the caller's view is likely the newest; a refusal that rests on it is
    decided again on the stored chain. None rests on a view older than what was known to be there before: a replica
    that lags may show one. Safe to repeat: an outcome or transition that was already recorded is refused by `decide`.

    Raises: what `decide` refuses with (JobNotFoundError, IllegalTransitionError and its kin),
        WrongSequenceError after too many lost races, and what `Log` raises.
    """
    chain = await load(log, ref) if known is None else known
    stored = known is None  # whether `chain` was read, not given
    reached = chain.last_sequence  # what the newest view has at the least
    for _ in range(TRANSACT_TRIES_MAX):
        try:
            events = decide(chain.job, command, stamp())
        except (NotFoundError, RefusedError) as error:
            if stored and chain.last_sequence >= reached:
                if isinstance(error, JobNotFoundError):
                    raise JobNotFoundError(ref.job_id) from error
                raise
        else:
            try:
                return await commit(log, chain, events)
            except WrongSequenceError:
                reached = max(reached, chain.last_sequence + 1)
        chain, stored = await load(log, ref), True
        if chain.last_sequence < reached:
            await asyncio.sleep(_LAG_S)
    raise WrongSequenceError(log.names.chain(ref), chain.last_sequence)
