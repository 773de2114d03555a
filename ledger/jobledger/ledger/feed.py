"""Reading the stream in order through a consumer of one's own, for as long as it takes.

The consumer is thrown away with its reader; when it is lost (server restart, leader change, silence) another one
goes on after the last sequence handed out, so the reader sees every event once and in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Final

from jobledger.ledger.codec import Message, read_message
from jobledger.ledger.connection import Connection, ConnectionLostError
from jobledger.ledger.errors import (
    JetStreamDisabledError,
    LedgerError,
    SequenceGapError,
    ServerUnreachableError,
    UnreachableError,
)
from jobledger.ledger.inbox import Inbox
from jobledger.ledger.log import readable
from jobledger.ledger.pull import Delivery, Ended, PullConsumer
from jobledger.ledger.streams import api

logger = logging.getLogger("jobledger.feed")

_REQUEST: Final = 512  # messages asked for at once; two requests overlap
_ASKED_MAX: Final = 2 * _REQUEST
_HELD_MAX: Final = 4 * _REQUEST  # delivered and not yet taken by the reader
_EXPIRES_S: Final = 30.0
_HEARTBEAT_S: Final = 2.0
_SILENCE_MAX_S: Final = 3 * _HEARTBEAT_S
_INACTIVE_S: Final = 60.0
_RETRY_S: Final = 0.25
_FINITE_PATIENCE_S: Final = 30.0
_NANOSECONDS: Final = 1_000_000_000


class Feed:
    """One reader's way through the stream."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        stream: str,
        *,
        from_sequence: int,
        from_time: datetime | None,
        subject: str | tuple[str, ...] | None,
        dense: bool,
    ) -> None:
        self._connection = connection
        self._inbox = inbox
        self._stream = stream
        self._next = from_sequence
        self._from_time = from_time
        self._subject = subject
        self._dense = dense
        self._held: list[Delivery] = []
        self._wake = asyncio.Event()
        self._lost = False
        self._begun = False  # a consumer was made before: the one to come goes on where it ended
        self._exhausted = False  # nothing was pending when the consumer was made

    async def batches(self, *, until: int | None) -> AsyncGenerator[list[Message], None]:
        """Yield batches up to the stream sequence `until`, for ever when it is None.

        No batch is empty; all come in stream order. A lost consumer or connection is replaced without a gap.

        Raises: SequenceGapError where the sequences must be dense and one is missing; ServerUnreachableError when the
            connection is closed, or the server gives no answer for 30 s while something is still to be read.
        """
        failing_since: float | None = None
        while until is None or self._next <= until:
            try:
                async for batch in self._one_consumer(until):
                    failing_since = None
                    yield batch
                if self._exhausted and until is not None:
                    return
            except (ConnectionLostError, JetStreamDisabledError, UnreachableError) as error:
                # JetStream may still be starting after a restart of its server.
                now = asyncio.get_running_loop().time()
                failing_since = failing_since or now
                if until is not None and now - failing_since > _FINITE_PATIENCE_S:
                    message = (
                        f"the server did not answer for {_FINITE_PATIENCE_S:g} s while the ledger was read"
                    )
                    raise ServerUnreachableError(message) from error
                if self._connection.is_closed:
                    message = "the connection was closed while the ledger was read"
                    raise ServerUnreachableError(message) from error
                logger.info("reading goes on from stream sequence %d with a new consumer", self._next)
                await asyncio.sleep(_RETRY_S)

    async def _one_consumer(self, until: int | None) -> AsyncGenerator[list[Message], None]:
        await self._connection.wait_connected(_FINITE_PATIENCE_S)
        if self._begun:
            await self._check_not_rewound()
        name, pending = await self._create()
        self._begun = True
        if pending == 0 and until is not None:
            self._exhausted = True
            return
        self._lost, self._held = False, []
        consumer = PullConsumer(
            self._connection, self._stream, name, on_delivery=self._on_delivery, on_ended=self._on_ended
        )
        await consumer.open()
        try:
            while until is None or self._next <= until:
                taken = await self._take(consumer)
                pending = taken[-1].pending
                batch, problem = readable(taken, self._check)
                wanted = (
                    batch
                    if until is None
                    else [stored for stored in batch if stored.stream_sequence <= until]
                )
                if wanted:
                    yield wanted
                if problem is not None and (until is None or problem.stream_sequence <= until):
                    raise problem
                if until is not None and pending == 0:
                    self._exhausted = True
                    return
        finally:
            await consumer.close()
            await self._delete(name)

    def _on_delivery(self, delivery: Delivery) -> None:
        if self._lost:
            return  # what was on its way when the connection broke is missing before this one
        self._held.append(delivery)
        self._wake.set()

    def _on_ended(self, ended: Ended) -> None:
        if ended == "lost":
            self._lost = True
        self._wake.set()

    async def _take(self, consumer: PullConsumer) -> list[Delivery]:
        """Wait for deliveries; return them in order, at least one."""
        loop = asyncio.get_running_loop()
        while not self._held:
            if self._lost or (loop.time() - max(consumer.heard_at, 0.0) > _SILENCE_MAX_S and consumer.asked):
                raise ConnectionLostError
            self._ask(consumer)
            self._wake.clear()
            try:
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
        taken, self._held = self._held, []
        self._ask(consumer)
        return taken

    def _ask(self, consumer: PullConsumer) -> None:
        if consumer.asked <= _ASKED_MAX - _REQUEST and len(self._held) < _HELD_MAX:
            consumer.request(_REQUEST, expires_s=_EXPIRES_S, heartbeat_s=_HEARTBEAT_S)

    def _check(self, delivery: Delivery) -> Message:
        """Decode one delivery; in a dense feed its sequence must be the next."""
        sequence = delivery.stream_sequence
        if self._dense and sequence != self._next and self._from_time is None:
            message = (
                f"stream sequence {self._next} is missing: the ledger goes on with {sequence} (unless it was moved "
                "into an archive just now, an event is lost)"
            )
            raise SequenceGapError(message, stream_sequence=self._next, next_sequence=sequence)
        self._from_time = None  # only the first event is found by time
        self._next = sequence + 1
        subject = delivery.subject.decode(errors="replace")
        return read_message(subject, delivery.data, sequence, delivery.stored_at)

    async def _check_not_rewound(self) -> None:
        """Notice a ledger that was rewound or made anew meanwhile: its consumer would only wait.

        Raises: SequenceGapError.
        """
        answer = await api(self._inbox, f"STREAM.INFO.{self._stream}", {})
        last_sequence = answer.get("state", {}).get("last_seq", self._next)  # an error is `_create`'s to tell
        if last_sequence < self._next - 1:
            message = (
                f"the ledger ends at stream sequence {last_sequence}, and {self._next - 1} was read before: "
                "it was rewound or replaced"
            )
            raise SequenceGapError(message)

    async def _create(self) -> tuple[str, int]:
        """Make the consumer; return its name and how many events it has to deliver."""
        config: dict[str, Any] = {
            "ack_policy": "none",
            "inactive_threshold": int(_INACTIVE_S * _NANOSECONDS),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if self._from_time is not None:
            config |= {"deliver_policy": "by_start_time", "opt_start_time": self._from_time.isoformat()}
        else:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self._next}
        if isinstance(self._subject, str):
            config["filter_subject"] = self._subject
        elif self._subject is not None:
            config["filter_subjects"] = list(self._subject)
        request = {"stream_name": self._stream, "config": config}
        answer = await api(self._inbox, f"CONSUMER.CREATE.{self._stream}", request)
        if "error" in answer:
            message = f"the ledger cannot be read: {answer['error'].get('description', '?')}"
            raise (UnreachableError if answer["error"].get("code") == 503 else LedgerError)(message)  # noqa: PLR2004
        return str(answer["name"]), int(answer["num_pending"])

    async def _delete(self, name: str) -> None:
        """Tidy up; the server forgets it by itself after a minute when this does not get through."""
        try:
            self._connection.send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{name}", "", b"", b"")
        except ConnectionLostError:
            return
