"""The TIMERS stream of one environment: a message for each future moment, fired by the server.

The content of timers is not known here: `timers` writes and reads the messages.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Final

from jobledger.ledger.model.errors import ServerUnreachableError
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.subjects import TIMERS_CONSUMER_PREFIX, Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.durables import delete_consumer, find_consumer
from jobledger.ledger.nats.inbox import Inbox, ReplyTimeoutError, header, resolve
from jobledger.ledger.nats.infos import StreamInfo
from jobledger.ledger.nats.streams import ensure_streams, find_stream, timers_specification
from jobledger.ledger.nats.writer import Commit, Writer

#: The consumer on the TIMERS stream, shared by all workers of an environment.
DUE_CONSUMER: Final = "due"
#: Messages of one page of `pages`.
PAGE: Final = 500
_ID_MICROSECONDS: Final = 20  # digits of an id up to the microseconds


class TimerStream:
    """Stores timers, and returns those that are set."""

    def __init__(
        self, connection: Connection, inbox: Inbox, names: Names, *, replicas: int, commit: Commit
    ) -> None:
        self._connection = connection
        self._inbox = inbox
        self.names = names
        self._specification = timers_specification(names, replicas)
        # If the server fsyncs each write, many timers are stored in groups, like the events that ask for them.
        self._writer = Writer(connection, commit=commit)

    async def ensure(self) -> str:
        """Make the stream if it is gone; return its id, which another stream of that name does not have.

        Ids sort by the time their stream was made.

        Raises: StreamMismatchError, JetStreamDisabledError, ServerUnreachableError.
        """
        return id_of((await self._info()).created)

    async def find(self) -> str | None:
        """Return the stream's id, None where it is gone; make nothing.

        Raises: JetStreamDisabledError, UnreachableError.
        """
        info = await find_stream(self._inbox, self.names.timers_stream)
        return None if info is None else id_of(info.created)

    async def _info(self) -> StreamInfo:
        try:
            info = await find_stream(self._inbox, self.names.timers_stream)
            if info is None:
                await ensure_streams(self._inbox, [self._specification])
                info = await find_stream(self._inbox, self.names.timers_stream)
        except (ReplyTimeoutError, api.ApiError) as error:
            raise ServerUnreachableError(f"the timers' stream cannot be found or made: {error}") from error
        if info is None:
            raise ServerUnreachableError("the timers' stream was made, but the server does not find it")
        return info

    async def store(self, entry: Entry) -> None:
        """Store one timer; another one under its subject is replaced.

        Raises: ServerUnreachableError without an answer or a stream, AppendRefusedError.
        """
        answer: asyncio.Future[int] = self._connection.loop.create_future()
        await self._writer.open()
        if self._writer.durability != self._connection.durability:  # the connection is to another server now
            self._writer.begin()
        self._writer.append((entry,), functools.partial(resolve, answer))
        try:
            await answer
        except (ConnectionLostError, ReplyTimeoutError) as error:
            raise ServerUnreachableError("the timers' stream gives no answer") from error

    async def remove_older_consumers(self, timers_id: str) -> int:
        """Delete the consumers on the ledger that set timers in earlier TIMERS streams; return how many.

        Raises: JetStreamDisabledError, ServerUnreachableError.
        """
        stream, own = self.names.ledger_stream, self.names.timers_consumer(timers_id)
        names = await api.consumer_names(self._inbox, stream)
        old = [name for name in names if name.startswith(TIMERS_CONSUMER_PREFIX) and name < own]
        for name in old:
            await delete_consumer(self._inbox, stream, name)
        return len(old)

    async def unset_events(self, timers_id: str) -> int | None:
        """Return how many events' timers are not set yet; None if no worker ever set any."""
        return await self._unsettled(self.names.ledger_stream, self.names.timers_consumer(timers_id))

    async def fired(self) -> int:
        """Return how many timers fired that no worker has handled."""
        unsettled = await self._unsettled(self.names.timers_stream, DUE_CONSUMER)
        if unsettled is not None:
            return unsettled
        # No worker has ever listened.
        info = await find_stream(self._inbox, self.names.timers_stream, subjects=self.names.timers_due)
        return sum(((info and info.state.subjects) or {}).values())

    async def _unsettled(self, stream: str, consumer: str) -> int | None:
        info = await find_consumer(self._inbox, stream, consumer)
        return None if info is None else info.unsettled

    async def count(self) -> int:
        """Return how many messages the stream holds, set and fired."""
        info = await find_stream(self._inbox, self.names.timers_stream)
        return 0 if info is None else info.state.messages

    async def pages(self, pages_max: int) -> AsyncGenerator[list[bytes], None]:
        """Yield the timers that are set, `PAGE` at a time, the one set longest ago first; each as it was stored.

        Raises: ServerUnreachableError.
        """
        sequence = 1
        for _ in range(pages_max):
            found = await self._page(sequence)
            if found:
                sequence = int(header(found[-1][1], b"Nats-Sequence")) + 1
                yield [data for data, _ in found]
            if len(found) < PAGE:
                return

    async def _page(self, sequence: int) -> list[api.Found]:
        request = {"seq": sequence, "next_by_subj": self.names.timers_set, "batch": PAGE}
        stream = self.names.timers_stream
        try:
            return await api.direct_get(self._connection, self._inbox, stream, request, batch=True)
        except (ConnectionLostError, ReplyTimeoutError) as error:
            message = "the server gave no answer about the timers that are set"
            raise ServerUnreachableError(message) from error


def id_of(created: str) -> str:
    """Return the digits of a stream's creation time, always 23 of them, so that ids sort by time."""
    whole, _, fraction = created.rstrip("Z").partition(".")
    return re.sub(r"\D", "", whole) + f"{fraction:0<9}"[:9]


def made_at(timers_id: str) -> datetime:
    """Return when the stream of this id was made, by the server's clock, to the microsecond."""
    return datetime.strptime(timers_id[:_ID_MICROSECONDS], "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
