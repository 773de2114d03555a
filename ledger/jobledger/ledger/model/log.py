"""The Log protocol, which every store of the ledger's events must fulfil, and the types it uses.

Two implementations pass one contract suite: `jetstream.JetStreamLog` and `memory.MemoryLog`.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.errors import CorruptLedgerError, SequenceGapError
from jobledger.ledger.model.forms import FORM
from jobledger.ledger.model.subjects import Names

#: The server's limit on the messages of one atomic batch.
BATCH_MESSAGES_MAX = 1_000


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One event on its way into the log."""

    subject: str
    data: bytes
    chain: str  #: the filter of its chain, `...<job_id>.>`
    expected: (
        int | None
    )  #: the chain's last stream sequence, 0 for none; None if an earlier entry of the batch has it
    headers: str = (
        ""  #: further header lines for the server, each with its line end; the ledger's events have none
    )


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The two ends of the log."""

    first_sequence: int  #: of the oldest event held, or of the next one; 1 unless a prefix was archived
    last_sequence: int  #: 0 when nothing was ever stored
    stored_bytes: int
    bytes_max: int | None = None  #: most bytes of the log; None: as many as there is room for
    made_at: datetime | None = None  #: when the stream was created, by the server's clock; None: not known
    form: int = FORM  #: the highest form of events that may be appended
    is_part: bool = (
        False  #: True: begins later by intent, like an export of a range: nothing is missing before it
    )


def start_of(head: Head, from_sequence: int) -> int:
    """Return the sequence at which a reader begins; 1 or less stands for the oldest stored event.

    Raises: SequenceGapError for a sequence after the end, or before the oldest event.
    """
    if from_sequence > head.last_sequence + 1:
        message = (
            f"the ledger ends at stream sequence {head.last_sequence}, before {from_sequence}: "
            "it was rewound or replaced"
        )
        raise SequenceGapError(message)
    if 1 < from_sequence < head.first_sequence:
        message = (
            f"the ledger begins at stream sequence {head.first_sequence}: {from_sequence} was moved into an archive; "
            "read it there, or begin later"
        )
        raise SequenceGapError(message, stream_sequence=from_sequence, next_sequence=head.first_sequence)
    return max(from_sequence, head.first_sequence)


_Found = TypeVar("_Found")
_Read = TypeVar("_Read")


def readable(
    found: Iterable[_Found], read: Callable[[_Found], _Read]
) -> tuple[list[_Read], CorruptLedgerError | None]:
    """Read messages up to the first unreadable one; return those before it, and its error."""
    events: list[_Read] = []
    for each in found:
        try:
            events.append(read(each))
        except CorruptLedgerError as error:
            return events, error
    return events, None


def jobs_among(messages: Iterable[Message]) -> list[StoredEvent]:
    """Return the job events among messages."""
    return [message for message in messages if isinstance(message, StoredEvent)]


def events_among(messages: Iterable[Message]) -> list[Message]:
    """Return the messages that are events, of any aggregate; leave out unreadable ones."""
    return [message for message in messages if not isinstance(message, Unreadable)]


class ChainEvents(list[StoredEvent]):
    """The events of a job's chain, oldest first."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        """Take the messages that are stored in the chain, in stream order."""
        last: Message | None = None
        for last in messages:
            if isinstance(last, StoredEvent):
                self.append(last)
        #: Stream sequence of the chain's newest message, readable or not; 0 for none.
        self.last_sequence = 0 if last is None else last.stream_sequence


class Newest(NamedTuple):
    """The end of a chain of any aggregate."""

    event: Message | None  #: the newest one; None: the chain has none
    last_sequence: int  #: of its newest message, readable or not; 0 for none


async def end_of_chain(log: Log, chain: str) -> Newest:
    """Return the end of the chain that fits the filter `chain`; read it whole only if its last message is no event.

    Raises: UnknownEventError, UnreachableError.
    """
    last = await log.last(chain)
    if not isinstance(last, Unreadable):
        return Newest(last, 0 if last is None else last.stream_sequence)
    event: Message | None = None
    async with contextlib.aclosing(log.read_messages(subject=chain)) as batches:
        async for batch in batches:
            event = next(reversed(events_among(batch)), event)
            last = batch[-1]
    return Newest(event, last.stream_sequence)


async def only_jobs(batches: AsyncGenerator[list[Message], None]) -> AsyncGenerator[list[StoredEvent], None]:
    """Yield the job events of each batch that has some."""
    async with contextlib.aclosing(batches):
        async for batch in batches:
            jobs = jobs_among(batch)
            if jobs:
                yield jobs


def answer_of(outcome: asyncio.Future[int]) -> int | Exception:
    """Return the outcome of a finished append in the form of `Log.begin`."""
    error = outcome.exception()
    assert error is None or isinstance(error, Exception), "nothing else ends an append"
    return error or outcome.result()


class JobReads(abc.ABC):
    """The reads of job events alone, which a `Log` derives from its reads of all messages."""

    @abc.abstractmethod
    def submit(self, entries: Sequence[Entry]) -> asyncio.Future[int]:
        """Start an append; see `Log.submit`."""

    def begin(self, entries: Sequence[Entry], answered: Callable[[int | Exception], None]) -> None:
        """Start an append; see `Log.begin`."""
        self.submit(entries).add_done_callback(lambda outcome: answered(answer_of(outcome)))

    @abc.abstractmethod
    def read_messages(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield everything; see `Log.read_messages`."""

    @abc.abstractmethod
    async def read_chain(self, chain: str) -> ChainEvents:
        """Return the events of a chain; see `Log.read_chain`."""

    @abc.abstractmethod
    async def last(self, chain: str) -> Message | None:
        """Return the newest message of a chain; see `Log.last`."""

    async def read_on(self, chain: str, after: int) -> ChainEvents:
        """Return the newer events of a chain; see `Log.read_on`."""
        whole = await self.read_chain(chain)
        found = ChainEvents(stored for stored in whole if stored.stream_sequence > after)
        found.last_sequence = max(after, whole.last_sequence)
        return found

    async def newest_sequence(self, chain: str) -> int:
        """Return where a chain ends; see `Log.newest_sequence`."""
        last = await self.last(chain)
        return 0 if last is None else last.stream_sequence

    def read(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[StoredEvent], None]:
        """Yield batches of job events in stream order; see `Log.read`."""
        return only_jobs(
            self.read_messages(
                from_sequence=from_sequence, from_time=from_time, subject=subject, follow=follow
            )
        )


class Log(Protocol):
    """An append-only store of events with a dense stream sequence from 1.

    Guarantees: an append that returned is stored; a refused one changed nothing; several entries are stored all or
    none, at consecutive sequences; every reader sees events in stream order.
    """

    names: Names

    async def append(self, entries: Sequence[Entry]) -> int:
        """Store the entries atomically, each chain's first entry on its condition; return the first entry's sequence.

        Raises:
            WrongSequenceError: a chain has moved; read it again and decide again.
            LedgerFullError: the log's byte limit is reached.
            AppendOutcomeUnknownError: no answer within the limit, and no way to find out.
            PayloadTooLargeError: an entry is larger than the server takes.
        """
        ...

    def submit(self, entries: Sequence[Entry]) -> asyncio.Future[int]:
        """Start an append without waiting; the future gets what `append` returns or raises.

        Appends of one chain submitted one after the other reach the log in that order. The caller bounds the number of
        appends in flight: nothing here limits it.
        """
        ...

    def begin(self, entries: Sequence[Entry], answered: Callable[[int | Exception], None]) -> None:
        """Start an append as `submit` does; `answered` gets what `append` returns or raises, always after this call.

        `answered` must be quick and must not raise. It costs less than a future, of which every job would need two.
        """
        ...

    async def read_chain(self, chain: str) -> ChainEvents:
        """Return every job event that fits the filter `chain`, oldest first; empty when there is none."""
        ...

    async def read_on(self, chain: str, after: int) -> ChainEvents:
        """Return the job events that fit the filter `chain` and are stored after the sequence `after`, oldest first.

        Its `last_sequence` is set as by `read_chain`; to `after` if nothing newer is stored.
        """
        ...

    async def last(self, chain: str) -> Message | None:
        """Return the newest message that fits the filter `chain`, readable or not; None when there is none."""
        ...

    async def newest_sequence(self, chain: str) -> int:
        """Return the stream sequence of the newest message that fits the filter `chain`, 0 when there is none.

        The answer covers everything appended before the call: no replica that lags behind is asked.
        """
        ...

    async def get(self, stream_sequence: int) -> Message | None:
        """Return the message at one sequence, readable or not; None if there is none.

        None is certain: if the event there was acknowledged, an archive run has removed it.
        """
        ...

    async def present(self, subjects: Sequence[str]) -> set[str]:
        """Return which of up to 1,000 whole subjects have a stored message, in one request.

        A replica that lags may answer: a returned subject is in use, and a missing one may be in use, too.
        """
        ...

    async def head(self) -> Head:
        """Return both ends of the log as they are now."""
        ...

    async def purge(self, through: int) -> None:
        """Remove everything up to the sequence `through`, for good; harmless if it is gone already.

        Only an archive run does this, after it made sure that nothing is lost by it.

        Raises: RefusedError if that is not allowed, UnreachableError if it is not known to be done.
        """
        ...

    def read(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[StoredEvent], None]:
        """Yield batches of job events (never empty, at most a few hundred) in stream order.

        Begins at a sequence (1: at the oldest event held) or a server time, ends at the head at the time of the call,
        or never with `follow`. Without `subject` it checks that the sequences are dense, with those of other
        aggregates. Messages that are no events are passed over; events before one of a newer version are yielded
        before the error is raised. Close the iterator (`contextlib.aclosing`) when leaving early.

        Raises:
            SequenceGapError: a sequence is missing or in an archive, or the log ends before `from_sequence - 1`.
            UnknownEventError: an event of a newer version, which is not passed over: what follows may build on it.
        """
        ...

    def read_messages(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield everything in the log, as `read` does: job events as `StoredEvent`, others as plain messages.

        A message that is no event comes as `Unreadable`. For readers that keep a position in the log, or read other
        aggregates.
        """
        ...
