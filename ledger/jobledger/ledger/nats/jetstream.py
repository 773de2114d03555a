"""The Log on JetStream: conditional appends, the search for lost answers, chains, and reads in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import (
    AppendOutcomeUnknownError,
    LedgerError,
    LedgerFullError,
    PayloadTooLargeError,
    RefusedError,
    ServerUnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.log import (
    BATCH_MESSAGES_MAX,
    ChainEvents,
    Entry,
    Head,
    JobReads,
    answer_of,
    start_of,
)
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.model.times import server_time
from jobledger.ledger.nats import api
from jobledger.ledger.nats.append_stats import AppendMeter
from jobledger.ledger.nats.chain_reader import ChainReader
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.direct_reader import message_of
from jobledger.ledger.nats.inbox import Inbox, ReplyTimeoutError, header, resolve
from jobledger.ledger.nats.ordered_reader import OrderedReader
from jobledger.ledger.nats.read_index import ReadIndex
from jobledger.ledger.nats.streams import deleted_ledger, find_stream, form_in, newest_at
from jobledger.ledger.nats.writer import Answered, AppendRefusedError, Writer

_LAST_SEQUENCE: Final = re.compile(r"wrong last sequence: (\d+)")
#: A batch that a restart cut, too many batches in flight, servers that elect a leader.
_TRY_AGAIN: Final = frozenset({10008, 10176, 10210, 10211})
_HEADROOM_BYTES: Final = 4096  # part of the server's max_payload for subject and headers
_PRESENT_BYTES_MAX: Final = 4 << 20
_RETRY_S: Final = 0.05
#: After this time without a stream that listens, an append asks whether the ledger was deleted.
_GONE_S: Final = 0.5


class _SubmittedAppend(msgspec.Struct, eq=False):
    """An append whose caller waits: answered at once if it was plainly accepted, else after `look_again`."""

    log: JetStreamLog
    entries: Sequence[Entry]
    outcome: asyncio.Future[int]

    def __call__(self, result: int | Exception) -> None:
        if isinstance(result, Exception):
            self.log.look_again(self.entries, result, self.outcome)
        elif not self.outcome.done():  # else its waiter was cancelled, or its limit is over
            self.outcome.set_result(result)

    def __repr__(self) -> str:
        """Show no entries: an event loop writes callbacks that fail into the log."""
        return f"<{type(self).__name__}>"


class _MeteredAppend(_SubmittedAppend, eq=False):
    """An append whose end is counted."""

    meter: AppendMeter
    began: float  #: by time.monotonic: the loop's own clock may count in milliseconds

    def __call__(self, result: int | Exception) -> None:
        if isinstance(result, Exception):
            self.outcome.add_done_callback(self.ended)
        else:
            self.meter.latency_s.observe(time.monotonic() - self.began)
        super().__call__(result)

    def ended(self, outcome: asyncio.Future[int]) -> None:
        """Count the outcome found by another look; without an outcome if its caller stopped waiting."""
        error = None if outcome.cancelled() else outcome.exception()
        if outcome.cancelled() or isinstance(error, TimeoutError):
            return
        if error is None:
            self.meter.latency_s.observe(time.monotonic() - self.began)
        elif isinstance(error, WrongSequenceError):
            self.meter.conflicts += 1
        else:
            self.meter.failures += 1


class JetStreamLog(JobReads):
    """The ledger's stream behind the Log protocol."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        writer: Writer,
        *,
        names: Names,
        append_timeout_s: float = 30.0,
    ) -> None:
        self.names = names
        self._connection = connection
        self._inbox = inbox
        self._loop = connection.loop
        self._stream = names.ledger_stream
        self._append_timeout_s = append_timeout_s
        self._looking: set[asyncio.Task[None]] = set()
        self._meter: AppendMeter | None = None
        self.writer = writer
        self._index: ReadIndex | None = None
        self._look_at_server()
        connection.found_listeners.append(self._look_at_server)
        self._chains = ChainReader(self._loop, functools.partial(self._read_raw, batch=True), message_of)

    def _look_at_server(self) -> None:
        """Adapt to the server, on the first connection and after each reconnect."""
        self.writer.begin()
        self._entry_bytes_max = self._connection.max_payload - _HEADROOM_BYTES
        # In a cluster a server may lag, so a read must be proven to be the newest. A single server may become a
        # cluster meanwhile.
        if self._index is None and self._connection.is_clustered:
            self._index = ReadIndex(self._inbox, self._stream, limit_s=self._append_timeout_s)

    async def append(self, entries: Sequence[Entry]) -> int:
        """Store the entries as one; see `Log.append`.

        A missing answer is never guessed: the chain is read, and shows the outcome.
        Resending meanwhile is safe, since the condition lets only one copy in.
        """
        assert 0 < len(entries) <= BATCH_MESSAGES_MAX, "an append has 1 to 1,000 entries"
        return await self.submit(entries)

    def submit(self, entries: Sequence[Entry]) -> asyncio.Future[int]:
        """Start an append and return the future of its outcome; see `Log.submit`."""
        self._check_size(entries)
        outcome: asyncio.Future[int] = self._loop.create_future()
        if self._meter is None:
            submitted = _SubmittedAppend(self, entries, outcome)
        else:
            submitted = _MeteredAppend(self, entries, outcome, self._meter, time.monotonic())
        self.writer.append(entries, submitted)
        return outcome

    def begin(self, entries: Sequence[Entry], answered: Answered) -> None:
        """Start an append; see `Log.begin`."""
        if self._meter is not None:
            super().begin(entries, answered)
            return
        if len(entries) != 1 or len(entries[0].data) > self._entry_bytes_max:
            self._check_size(entries)
        self.writer.append(entries, answered, self._find_out_for)

    def _check_size(self, entries: Sequence[Entry]) -> None:
        """Raises: PayloadTooLargeError."""
        limit = self._entry_bytes_max
        for entry in entries:
            if len(entry.data) > limit:
                raise PayloadTooLargeError("event", len(entry.data), limit)

    def count_appends(self, meter: AppendMeter) -> None:
        """Count every append from now on, and every group commit, in `meter`."""
        self._meter = self.writer.meter = meter

    def look_again(self, entries: Sequence[Entry], error: Exception, outcome: asyncio.Future[int]) -> None:
        """Find an append's outcome in a task of its own: only lost races and lost answers pay for one."""

        async def find_out() -> None:
            try:
                resolve(outcome, await self._find_out(entries, error, outcome))
            except Exception as final:  # noqa: BLE001 - handed to whoever awaits the append
                resolve(outcome, final)

        task = self._loop.create_task(find_out())
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def _find_out_for(self, entries: Sequence[Entry], error: Exception, answered: Answered) -> None:
        """Find an append's outcome for a caller of `begin`."""
        outcome: asyncio.Future[int] = self._loop.create_future()
        outcome.add_done_callback(lambda found: answered(answer_of(found)))
        self.look_again(entries, error, outcome)

    async def _send(self, entries: Sequence[Entry]) -> int:
        """Send once more and wait for the plain answer."""
        answer: asyncio.Future[int] = self._loop.create_future()
        self.writer.append(entries, functools.partial(resolve, answer))
        return await answer

    async def _find_out(
        self, entries: Sequence[Entry], error: Exception, outcome: asyncio.Future[int]
    ) -> int:
        """Find the definite outcome of an append that was not plainly accepted, as long as somebody waits for it."""
        loop, began = self._loop, self._loop.time()
        # The wait for the missing answer has used its part of the time already.
        spent_s = self.writer.reply_timeout_s if isinstance(error, ReplyTimeoutError) else 0.0
        deadline = loop.time() + self._append_timeout_s - spent_s
        while True:
            if isinstance(error, AppendRefusedError):
                _raise_final(error)
            try:
                sequence = await self._stored_as(entries, deadline - loop.time())
                if sequence is not None:
                    return sequence
                if isinstance(error, AppendRefusedError):
                    _raise_if_ahead(error, entries)
                    await asyncio.sleep(_RETRY_S)  # another append of this chain is still being stored
                if loop.time() >= deadline or outcome.done():
                    break  # the caller gave up with an unknown outcome: it is not sent again
                return await self._send(entries)
            except (AppendRefusedError, ConnectionLostError, ReplyTimeoutError) as again:
                error = again
                if loop.time() - began >= _GONE_S:
                    await self._refuse_deleted(again)
                if loop.time() >= deadline or self._connection.is_closed or outcome.done():
                    break
                if not isinstance(again, AppendRefusedError):
                    await asyncio.sleep(_RETRY_S)
        limit = "before the connection was closed" if self._connection.is_closed else self._limit
        message = (
            f"no answer to an append {limit}, so it is not known whether it was stored: "
            "look the job up when the server is back; doing the same again is safe"
        )
        raise AppendOutcomeUnknownError(message) from error

    async def _refuse_deleted(self, error: Exception) -> None:
        """Refuse another try if nobody listens because the ledger was deleted. Raises: LedgerNotFoundError."""
        if not isinstance(error, ConnectionLostError) or not self._connection.is_connected:
            return
        with contextlib.suppress(ConnectionLostError, ReplyTimeoutError):
            if await find_stream(self._inbox, self._stream) is None:
                raise deleted_ledger(self._connection, self._stream) from error

    async def _stored_as(self, entries: Sequence[Entry], limit_s: float) -> int | None:
        """Return the first entry's sequence if the entries are stored, None if nothing is stored in their place.

        Raises: WrongSequenceError when one of their chains went on without them.
        """
        await self._connection.wait_connected(max(limit_s, _RETRY_S))
        first: int | None = None
        for offset, entry in enumerate(entries):
            if entry.expected is None:
                continue
            request = {"seq": entry.expected + 1, "next_by_subj": entry.chain, "batch": 1}
            found = [message_of(*each) for each in await self._direct_get(request, batch=True)]
            if not found:
                continue
            if found[0].data != entry.data:  # by its bytes we know our own event
                raise WrongSequenceError(entry.chain, entry.expected)
            first = found[0].stream_sequence - offset
        return first

    @property
    def _limit(self) -> str:
        return f"within {self._append_timeout_s:g} s"

    async def read_chain(self, chain: str) -> ChainEvents:
        """Return the events of a chain; see `Log.read_chain`."""
        self._connection.require_here()
        if self._index is None:
            return await self._chains.read(chain)
        end = await self._index.end()
        events, up_to = await self._chains.read_as_of(chain)
        if up_to >= end.last_sequence:
            return events
        newest = await self._index.newest(chain)
        if events.last_sequence >= newest:
            return events
        return await self._index.until_reached(newest, lambda: self._chains.read(chain), _last_sequence)

    async def read_on(self, chain: str, after: int) -> ChainEvents:
        """Return the newer events of a chain; see `Log.read_on`."""
        self._connection.require_here()
        if self._index is None:
            return await self._chains.read_on(chain, after)
        newest = await self._index.newest(chain)
        return await self._index.until_reached(
            newest, lambda: self._chains.read_on(chain, after), _last_sequence
        )

    async def newest_sequence(self, chain: str) -> int:
        """Return where a chain ends for the stream's leader; see `Log.newest_sequence`."""
        if self._index is not None:
            return await self._index.newest(chain)
        return await newest_at(self._inbox, self._stream, chain)

    async def last(self, chain: str) -> Message | None:
        """Return the newest message of a chain; see `Log.last`."""
        if self._index is None:
            return await self._last(chain)
        newest = await self._index.newest(chain)
        return await self._index.until_reached(newest, lambda: self._last(chain), _sequence_of)

    async def _last(self, chain: str) -> Message | None:
        found = await self._read({"last_by_subj": chain}, batch=False)
        return found[0] if found else None

    async def get(self, stream_sequence: int) -> Message | None:
        """Return one event; see `Log.get`. None is returned only if the stream's leader has none, too."""
        if stream_sequence < 1:
            return None
        found = await self._get(stream_sequence)
        if found is not None or self._index is None or not await self._index.has(stream_sequence):
            return found
        try:
            return await self._index.until_reached(
                stream_sequence, lambda: self._get(stream_sequence), _sequence_of
            )
        except ServerUnreachableError:
            if await self._index.has(stream_sequence):
                raise
            return None  # an archive run removed it meanwhile

    async def _get(self, stream_sequence: int) -> Message | None:
        found = await self._read({"seq": stream_sequence}, batch=False)
        return found[0] if found else None

    async def present(self, subjects: Sequence[str]) -> set[str]:
        """Return the subjects that are in use; see `Log.present`."""
        assert len(subjects) <= BATCH_MESSAGES_MAX, "a look is for up to 1,000 subjects"
        found: set[str] = set()
        missing = list(subjects)
        while missing:
            # Only whole messages can be asked for: not more of them at once than a connection can take.
            request = {"multi_last": missing, "max_bytes": _PRESENT_BYTES_MAX}
            page = await self._read_raw(request, batch=True)
            found.update(header(headers, b"Nats-Subject").decode() for _, headers in page)
            missing = [subject for subject in missing if subject not in found]
            if sum(len(data) + len(headers) for data, headers in page) < _PRESENT_BYTES_MAX:
                break
        return found

    async def _read(self, request: dict[str, Any], *, batch: bool) -> list[Message]:
        """Read messages; see `_read_raw`."""
        return [message_of(data, headers) for data, headers in await self._read_raw(request, batch=batch)]

    async def _read_raw(self, request: dict[str, Any], *, batch: bool) -> api.Batch:
        """Read with patience for a reconnect; return data and headers.

        Raises: ServerUnreachableError when the limit is over.
        """
        loop = self._loop
        deadline = loop.time() + self._append_timeout_s
        while True:
            try:
                await self._connection.wait_connected(max(deadline - loop.time(), _RETRY_S))
                return await self._direct_get(request, batch=batch)
            except (ConnectionLostError, ReplyTimeoutError) as error:
                if self._connection.is_closed:
                    message = "the connection to the server is closed: connect again"
                    raise ServerUnreachableError(message) from error
                if loop.time() >= deadline:
                    message = f"the server gave no answer {self._limit}: is it running?"
                    raise ServerUnreachableError(message) from error
                await asyncio.sleep(_RETRY_S)

    async def _direct_get(self, request: dict[str, Any], *, batch: bool) -> api.Batch:
        return await api.direct_get(self._connection, self._inbox, self._stream, request, batch=batch)

    async def head(self) -> Head:
        """Return both ends; see `Log.head`."""
        self._connection.require_here()
        try:
            info = await api.stream_info(self._inbox, self._stream)
        except api.MissingError as error:
            raise deleted_ledger(self._connection, self._stream) from error
        except ReplyTimeoutError as error:
            message = "the server gave no answer about the ledger: is it running?"
            raise ServerUnreachableError(message) from error
        return Head(
            first_sequence=max(1, info.state.first_sequence),
            last_sequence=info.state.last_sequence,
            stored_bytes=info.state.bytes,
            bytes_max=limit if (limit := int(info.config.get("max_bytes", -1))) > 0 else None,
            made_at=server_time(info.created) if info.created else None,
            form=form_in(info.config),
        )

    async def purge(self, through: int) -> None:
        """Take a prefix away; see `Log.purge`."""
        try:
            await api.purge_stream(self._inbox, self._stream, before_sequence=through + 1)
        except ReplyTimeoutError as error:
            message = "the server gave no answer to the purge: run it again, what is gone is gone"
            raise ServerUnreachableError(message) from error
        except api.ApiError as error:
            raise RefusedError(str(error)) from error

    async def read_messages(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield everything in stream order; see `Log.read_messages`."""
        head = await self.head()
        begin = start_of(head, from_sequence)
        feed = OrderedReader(
            self._connection,
            self._inbox,
            self._stream,
            from_sequence=begin,
            from_time=from_time,
            subject=subject,
            dense=subject is None,
        )
        if not follow and head.last_sequence < begin:
            return
        until = None if follow else head.last_sequence
        async with contextlib.aclosing(feed.batches(until=until)) as batches:
            async for batch in batches:
                yield batch


def _sequence_of(message: Message | None) -> int:
    return 0 if message is None else message.stream_sequence


_last_sequence: Final[Callable[[ChainEvents], int]] = operator.attrgetter("last_sequence")


def _raise_if_ahead(error: AppendRefusedError, entries: Sequence[Entry]) -> None:
    """Refuse a condition on a sequence that the chain has not reached: waiting would not make it true."""
    last = _LAST_SEQUENCE.search(str(error))
    for entry in entries:
        if last is not None and entry.expected is not None and int(last[1]) < entry.expected:
            raise WrongSequenceError(entry.chain, entry.expected) from error


def _raise_final(error: AppendRefusedError) -> None:
    """Raise our error for a refusal that no second look can change; return for other refusals."""
    if error.is_lost_race or error.code in _TRY_AGAIN:
        return
    if error.is_full:
        message = (
            "the ledger has reached its byte limit and takes no more events: "
            "give it room with `jobledger ledger resize SIZE`, then move older events with `jobledger audit archive`"
        )
        raise LedgerFullError(message) from error
    message = str(error)
    raise LedgerError(message) from error
