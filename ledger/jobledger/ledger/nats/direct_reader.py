"""A reader of the stream in order by direct gets, for users who have no right to create a consumer.

Each page is one request, which any replica answers with its messages, in order and without gaps. A follower asks four
times a second for new ones. Source: ADR 055.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Final

from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import CorruptLedgerError, MalformedEventError
from jobledger.ledger.model.subjects import fits
from jobledger.ledger.model.times import server_time
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox, header

#: Of one answer.
_MESSAGES_MAX: Final = 1_000
_BYTES_MAX: Final = 512 << 10  # which a slow network carries within the time of one question
_LOOK_EVERY_S: Final = 0.25


class DirectReader:
    """One reader's way through the stream, from a sequence on, or for the first answer from a time on."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        stream: str,
        *,
        begin: int,
        since: datetime | None,
        filters: tuple[str, ...],
    ) -> None:
        """`filters`: subjects to return; none: all. With several it asks for everything, and filters the answers."""
        self._connection = connection
        self._inbox = inbox
        self._stream = stream
        self.reached = begin  #: the next stream sequence to ask for
        self._since = since
        self._filters = filters

    async def pages(
        self, *, follow: bool
    ) -> AsyncGenerator[tuple[list[Message], CorruptLedgerError | None], None]:
        """Yield pages in stream order, each with the error that ends it, if any; `reached` is the next sequence.

        Without `follow` it ends when a replica has no more. Raises: ConnectionLostError when the connection is lost,
        since another server may have another stream; the errors of `api.direct_get`.
        """
        lost = asyncio.Event()
        self._connection.lost_listeners.append(lost.set)
        asking: asyncio.Task[api.Batch] | None = None
        try:
            while True:
                found = await (asking or self._ask())
                asking = None
                if lost.is_set():
                    raise ConnectionLostError
                if not found:
                    if not follow:
                        return
                    await asyncio.sleep(_LOOK_EVERY_S)
                    continue
                self._since = None
                self.reached = int(header(found[-1][1], b"Nats-Sequence")) + 1
                asking = self._connection.loop.create_task(
                    self._ask()
                )  # the answer comes while this page is read
                yield self._read(found)
        finally:
            self._connection.lost_listeners.remove(lost.set)
            if asking is not None and not asking.cancel() and not asking.cancelled():
                asking.exception()  # nobody else retrieves it

    async def _ask(self) -> api.Batch:
        return await api.direct_get(self._connection, self._inbox, self._stream, self._request(), batch=True)

    def _request(self) -> dict[str, Any]:
        request: dict[str, Any] = {"batch": _MESSAGES_MAX, "max_bytes": _BYTES_MAX}
        request |= {"seq": self.reached} if self._since is None else {"start_time": self._since.isoformat()}
        return request | ({"next_by_subj": self._filters[0]} if len(self._filters) == 1 else {})

    def _read(self, found: api.Batch) -> tuple[list[Message], CorruptLedgerError | None]:
        """Read messages up to the first that cannot be read, and leave out those that fit none of several filters."""
        batch: list[Message] = []
        for data, headers in found:
            if len(self._filters) > 1 and not self._fits(headers):
                continue
            try:
                batch.append(message_of(data, headers))
            except CorruptLedgerError as error:
                return batch, error
        return batch, None

    def _fits(self, headers: bytes) -> bool:
        subject = header(headers, b"Nats-Subject").decode(errors="replace")
        return any(fits(subject, each) for each in self._filters)


def message_of(data: bytes, headers: bytes) -> Message:
    """Read the message of a direct get.

    Raises: CorruptLedgerError for a message that is no event.
    """
    try:
        sequence = int(header(headers, b"Nats-Sequence"))
        stored_at = server_time(header(headers, b"Nats-Time-Stamp").decode())
    except ValueError as error:
        message = "the server answered a direct get without sequence or time"
        raise MalformedEventError(message) from error
    subject = header(headers, b"Nats-Subject").decode(errors="replace")
    return read_message(subject, data, sequence, stored_at)
