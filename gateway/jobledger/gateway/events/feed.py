"""One live reader of the ledger, shared by all readers of a gateway.

The newest events are kept in memory, and each reader takes them at its own pace: no reader has its own buffer. A reader
is cut off if its next event is no longer kept. A reader that begins before the kept events first reads the past with a
consumer of its own; few readers may do so at a time, since each costs the server a consumer.

If nobody has read for `READ_ON_S`, the gateway stops reading, too, since each event costs it and the server time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Generator, Sequence
from itertools import islice
from typing import Final, Self

from jobledger.admin.events.choice import EventChoice
from jobledger.admin.events.lines import event_json_for
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.shares import opened
from jobledger.ledger import Ledger
from jobledger.ledger.event_stream import read_from
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import LedgerError, ServerUnreachableError
from jobledger.ledger.model.limits.holders import FINAL
from jobledger.ledger.model.rights.marks import Hidden
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.subscriptions.consumers import check_begin
from jobledger.ledger.subscriptions.filter import Start

KEPT_MAX: Final = 8_192
KEPT_BYTES_MAX: Final = 16 << 20
SILENCE_S: Final = 15.0  #: a reader gets something at least this often, or proxies cut the connection
#: How long the gateway reads on after the last reader left, so that a reader that returns finds the events kept.
READ_ON_S: Final = 300.0
BEGUN_WITHIN_S: Final = 5.0  #: how long the first reader waits for a silent server
_AGAIN_S: Final = 1.0

_log = logging.getLogger("jobledger.gateway.feed")


class FeedEvent:
    """An event of the ledger with its JSON texts; each text is encoded once for all readers."""

    __slots__ = ("_texts", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._texts: dict[Hidden, str] = {}

    @property
    def sequence(self) -> int:
        """Its stream sequence."""
        return self.message.stream_sequence

    def text(self, hidden: Hidden) -> str:
        """Return the event as one line of JSON, without hidden fields."""
        if hidden not in self._texts:
            self._texts[hidden] = event_json_for(self.message, hidden)
        return self._texts[hidden]


#: Some events in stream order, and the sequence up to which the stream was read.
Portion = tuple[Sequence[FeedEvent], int]


class Feed:
    """The live reader of one gateway. It reads while somebody listens; leaving `async with` ends every stream."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        kept_max: int = KEPT_MAX,
        read_on_s: float = READ_ON_S,
    ) -> None:
        self._ledger = ledger
        self._read_on_s = read_on_s
        self._kept: deque[FeedEvent] = deque()
        self._kept_max = kept_max
        self._bytes = 0
        self._head = 0  #: sequence of the newest event that was read
        self._news = asyncio.Event()
        self._begun = asyncio.Event()
        self._closed = False
        self._reader: asyncio.Task[None] | None = None  #: None while nothing is read
        self._readers = 0  #: number of callers within `_read_for_one`
        self._resting: asyncio.TimerHandle | None = None
        self._ends: dict[JobRef, set[asyncio.Event]] = {}  #: by job: the waiters for its end

    async def __aenter__(self) -> Self:
        """Begin without reading; the first reader starts that."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all streams and the reader."""
        self.close()
        if self._resting is not None:
            self._resting.cancel()
        reader = self._reader
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    @property
    def is_reading(self) -> bool:
        """Whether the gateway reads the ledger's events at present."""
        return self._reader is not None

    @contextlib.contextmanager
    def _read_for_one(self) -> Generator[None, None, None]:
        """Keep the reading going for the length of the block, and for `read_on_s` after the last such block."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers and not self._closed:
                self._resting = asyncio.get_running_loop().call_later(self._read_on_s, self._rest)

    def _rest(self) -> None:
        """Stop reading. The next reader starts it again, at the head that the ledger has then."""
        assert self._reader is not None, "there was a reader"
        self._reader.cancel()
        self._reader = self._resting = None
        self._kept.clear()
        self._bytes = 0
        self._begun.clear()

    def close(self) -> None:
        """Let every stream end: the gateway stops."""
        self._closed = True
        self._news.set()

    @property
    def is_closed(self) -> bool:
        """Whether streams end now."""
        return self._closed

    @property
    def head(self) -> int:
        """The sequence of the newest event that was read, while somebody reads; 0 before the first look."""
        return self._head

    def require_open(self) -> None:
        """Refuse a stream of a gateway that stops. Raises: ProblemError (BUSY)."""
        if self._closed:
            raise ProblemError("BUSY", "this gateway is stopping: ask again, and another one answers")

    async def _read(self) -> None:
        """Read for ever; log a failure, and go on after the newest event that was read."""
        while True:
            try:
                await self._follow()
            except LedgerError as error:
                _log.warning("events are not read: %s; tried again in %g s", error, _AGAIN_S)
            await asyncio.sleep(_AGAIN_S)

    async def _follow(self) -> None:
        if not self._begun.is_set():
            head = await self._ledger.log.head()
            self._head = head.last_sequence
            self._begun.set()
        start = Start(from_sequence=self._head + 1)
        async with contextlib.aclosing(await read_from(self._ledger, start, None, follow=True)) as batches:
            async for batch in batches:
                self._keep(batch)

    def _keep(self, batch: Sequence[Message]) -> None:
        for message in batch:
            self._kept.append(FeedEvent(message))
            self._bytes += len(message.data)
            if self._ends and isinstance(message, StoredEvent) and type(message.event) in FINAL:
                ref = JobRef(queue=message.event.queue, job_id=message.event.job)
                for each in self._ends.get(ref, ()):
                    each.set()
        self._head = batch[-1].stream_sequence
        while len(self._kept) > self._kept_max or (self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1):
            self._bytes -= len(self._kept.popleft().message.data)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _newer(self, than: int) -> list[FeedEvent]:
        """Return the kept events after a sequence. Raises: ProblemError (READER_TOO_SLOW) where some are not kept."""
        count = self._head - than
        if count <= 0:
            return []
        if count > len(self._kept):
            raise ProblemError(
                "READER_TOO_SLOW",
                f"the reader is {count:,} events behind and {len(self._kept):,} are kept: "
                "ask again from the last id that you have",
            )
        newest = list(islice(reversed(self._kept), count))
        newest.reverse()
        return newest

    @contextlib.asynccontextmanager
    async def ends_of(self, ref: JobRef) -> AsyncGenerator[asyncio.Event, None]:
        """Yield an `asyncio.Event` that is set whenever an end of the job is stored during the block.

        The `asyncio.Event` is a hint: the feed may be late or begin again, so the waiter also reads the job now and
        then.

        Raises: ServerUnreachableError.
        """
        ended = asyncio.Event()
        with self._read_for_one():
            waiting = self._ends.setdefault(ref, set())
            waiting.add(ended)
            try:
                await self._begin()
                yield ended
            finally:
                waiting.discard(ended)
                if not waiting and self._ends.get(ref) is waiting:
                    del self._ends[ref]

    async def portions(self, choice: EventChoice, start: Start) -> AsyncGenerator[Portion, None]:
        """Yield the chosen events from `start` on, for ever, each once and in stream order.

        A portion is empty after a silence, or if none of its events was chosen. The iteration ends when the feed is
        closed.

        Raises: InvalidInputError for a start beyond the ledger's end; ProblemError (BUSY, READER_TOO_SLOW);
            LedgerError.
        """
        with self._read_for_one():
            await self._begin()
            after = await self._beginning(start)
            if after is None or after < self._head - len(self._kept):
                async with contextlib.aclosing(self._past(choice, start)) as past:
                    async for portion in past:
                        after = portion[1]
                        yield portion
            else:
                yield [], after
            assert after is not None, "a reader of the past says where it ended"
            while not self._closed:
                newer = self._newer(after)
                if newer:
                    after = newer[-1].sequence
                    yield [each for each in newer if choice.wants(each.message)], after
                    continue
                news = self._news
                try:
                    await asyncio.wait_for(news.wait(), SILENCE_S)
                except TimeoutError:
                    yield [], after

    async def _begin(self) -> None:
        """Wait until the feed reads events. Raises: ServerUnreachableError."""
        try:
            await asyncio.wait_for(self._begun.wait(), BEGUN_WITHIN_S)
        except TimeoutError as error:
            raise ServerUnreachableError(
                f"the ledger's events could not be read for {BEGUN_WITHIN_S:g} s: try again"
            ) from error

    async def _beginning(self, start: Start) -> int | None:
        """Return the sequence after which to read; None if `start` is a time."""
        if start.since is not None:
            return None
        if start.from_sequence is not None:
            if start.from_sequence > self._head + 1:  # another gateway may have read further
                await check_begin(start, self._ledger.log)
            return start.from_sequence - 1
        return (await self._ledger.log.head()).last_sequence if start.live else 0

    async def _past(self, choice: EventChoice, start: Start) -> AsyncGenerator[Portion, None]:
        """Read up to the present head of the ledger, with a consumer for this reader alone."""
        with opened("readers"):
            head = (await self._ledger.log.head()).last_sequence
            subjects = choice.subjects(self._ledger.names)
            batches = await read_from(self._ledger, start, subjects, follow=False)
            last = 0
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    if self._closed:
                        return
                    last = batch[-1].stream_sequence
                    yield [FeedEvent(message) for message in batch if choice.wants(message)], last
            yield [], max(head, last)
