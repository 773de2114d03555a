"""A reader of the stream in order, through a consumer of its own.

The consumer is deleted with its reader; if it is lost (server restart, leader change, silence), another one goes on
after the last sequence returned, so the reader gets every event once and in order. Users who may not create a consumer
read by direct gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Any, Final

from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    JetStreamDisabledError,
    PermissionRefusedError,
    SequenceGapError,
    ServerUnreachableError,
    UnreachableError,
)
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.direct_reader import DirectReader
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.nats.parser import Raw
from jobledger.ledger.nats.pull import ack_numbers_at, heartbeat_for, told_time
from jobledger.ledger.nats.pull_window import PullWindow
from jobledger.ledger.nats.streams import deleted_ledger

logger = logging.getLogger("jobledger.feed")

_INACTIVE_S: Final = 60.0
_RETRY_S: Final = 0.25
_FINITE_PATIENCE_S: Final = 30.0
#: With several filters the server searches all subjects in use for the next message, even if that comes much later:
#: with ten million subjects this takes seconds.
_CREATED_WITHIN_S: Final = 30.0
_NANOSECONDS: Final = 1_000_000_000


class OrderedReader:
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
        wants: Callable[[str], bool] | None = None,
    ) -> None:
        """`wants` decides by its subject whether a message is returned; the others are not even decoded."""
        self._connection = connection
        self._inbox = inbox
        self._stream = stream
        self._next = from_sequence
        self._from_time = from_time
        self._filters = (subject,) if isinstance(subject, str) else subject or ()
        self._dense = dense
        self._wants = wants
        self._begun = False  # True: a consumer was created before, and the next one goes on where it ended
        self._exhausted = False  # True: nothing was pending when the consumer was created
        self._in_cluster = False  # True: the consumer's server may not be the stream's leader

    async def batches(self, *, until: int | None) -> AsyncGenerator[list[Message], None]:
        """Yield batches up to the stream sequence `until`, for ever when it is None.

        No batch is empty; all come in stream order. A lost consumer or connection is replaced without a gap.

        Raises: SequenceGapError if the sequences must be dense and one is missing; LedgerNotFoundError if somebody
        deleted the ledger; ServerUnreachableError if the connection is closed, or the server sends nothing for 30 s
        although more is stored.
        """
        failing_since: float | None = None
        while until is None or self._next <= until:
            try:
                async for batch in self._some(until):
                    failing_since = None
                    yield batch
                if self._exhausted and until is not None:
                    return
            except api.MissingError as error:
                raise deleted_ledger(self._connection, self._stream) from error
            except (ConnectionLostError, JetStreamDisabledError, UnreachableError) as error:
                # JetStream may still be starting after a restart of its server.
                now = asyncio.get_running_loop().time()
                failing_since = failing_since or now
                if until is not None and now - failing_since > _FINITE_PATIENCE_S:
                    message = f"the server handed out nothing for {_FINITE_PATIENCE_S:g} s while the ledger was read"
                    why = f": {error}" if str(error) else ""  # such as a right that is missing
                    raise ServerUnreachableError(
                        f"{message}{why}; see `jobledger doctor`, then try again"
                    ) from error
                if self._connection.is_closed:
                    message = "the connection was closed while the ledger was read"
                    raise ServerUnreachableError(message) from error
                logger.info("reading goes on from stream sequence %d with a new consumer", self._next)
                await asyncio.sleep(_RETRY_S)

    async def _some(self, until: int | None) -> AsyncGenerator[list[Message], None]:
        """Yield batches until something fails, by the kind of read that this user may do."""
        rights, right = self._connection.optional_rights, api.right_to_read(self._stream)
        if rights.setdefault(right, True):
            try:
                async for batch in self._one_consumer(until):
                    yield batch
            except PermissionRefusedError as refused:
                rights[right] = False
                logger.info("reading goes on by direct gets, without a consumer: %s", refused)
            else:
                return
        async for batch in self._without_consumer(until):
            yield batch

    async def _without_consumer(self, until: int | None) -> AsyncGenerator[list[Message], None]:
        await self._connection.wait_connected(_FINITE_PATIENCE_S)
        if self._begun:
            await self._check_not_rewound()
        self._begun = True
        self._in_cluster = self._connection.is_clustered
        reader = DirectReader(
            self._connection,
            self._inbox,
            self._stream,
            begin=self._next,
            since=self._from_time,
            filters=self._filters,
        )
        async with contextlib.aclosing(reader.pages(follow=until is None)) as pages:
            async for found, unreadable in pages:
                batch, gap = self._whole(found)
                problem = gap or unreadable
                if self._wants is not None:
                    batch = [each for each in batch if self._wants(each.subject)]
                if until is not None:
                    batch = [each for each in batch if each.stream_sequence <= until]
                if batch:
                    yield batch
                if problem is not None and (until is None or problem.stream_sequence <= until):
                    raise problem
                self._next = reader.reached  # messages that fit no filter were passed, too
                if until is not None and self._next > until:
                    return
        if until is not None:
            await self._end(until)

    def _whole(self, found: list[Message]) -> tuple[list[Message], SequenceGapError | None]:
        """Return the messages before the first gap, if sequences must be without gaps, and the error for the gap."""
        for number, message in enumerate(found):
            if self._dense and self._from_time is None and message.stream_sequence != self._next:
                return found[:number], _gap(self._next, message.stream_sequence)
            self._from_time = None  # only the first event is found by time
            self._next = message.stream_sequence + 1
        return found, None

    async def _one_consumer(self, until: int | None) -> AsyncGenerator[list[Message], None]:
        await self._connection.wait_connected(_FINITE_PATIENCE_S)
        if self._begun:
            await self._check_not_rewound()
        made = await self._create()
        name = made.name
        self._begun = True
        self._in_cluster = made.cluster is not None
        if until is not None and made.pending == 0:
            try:
                await self._end(until)
            finally:
                await self._delete(name)
            return
        # The operator may limit the size of a consumer's requests; 0: no limit.
        messages_max = int(made.config.get("max_batch", 0))
        window = PullWindow(
            self._connection,
            self._stream,
            name,
            messages_max=messages_max,
            left=None if until is None else until - self._next + 1,
            heartbeat_s=heartbeat_for(self._filters),
        )
        await window.open()
        try:
            while until is None or self._next <= until:
                taken = await window.take()
                if not taken:
                    raise ConnectionLostError
                batch, problem = self._read(taken)
                if until is not None and self._next > until + 1:
                    batch = [message for message in batch if message.stream_sequence <= until]
                if batch:
                    yield batch
                if problem is not None and (until is None or problem.stream_sequence <= until):
                    raise problem
                if until is not None and _pending_after(taken[-1]) == 0:
                    await self._end(until)
                    return
        finally:
            await window.close()
            await self._delete(name)

    async def _end(self, until: int) -> None:
        """Accept a consumer's report that nothing is left, unless in a cluster the stream's leader has more.

        Raises: ConnectionLostError when there is more, so that another consumer goes on; UnreachableError if that is
        not known, as while a cluster elects the leader.
        """
        if self._in_cluster and self._next <= until and self._from_time is None:
            for subject in self._filters or (">",):
                # Only the leader answers this, unlike a direct get.
                request = {"seq": self._next, "next_by_subj": subject}
                try:
                    found = await api.get_message(self._inbox, self._stream, request)
                except (api.ApiError, JetStreamDisabledError, ServerUnreachableError) as error:
                    raise UnreachableError(f"the ledger's end is not known: {error}") from error
                if found is not None and found.stream_sequence <= until:
                    logger.info("a consumer at %d lags behind the stream", self._next)
                    raise ConnectionLostError
        self._exhausted = True

    def _read(self, taken: list[Raw]) -> tuple[list[Message], CorruptLedgerError | None]:
        """Read the received messages up to the first unreadable one; in a dense feed each sequence must be the next."""
        messages: list[Message] = []
        first = taken[0].reply.split(b".")
        words = len(first) - ack_numbers_at(first) - 1  # from the stream sequence on
        following = self._next
        is_dense, wants = self._dense and self._from_time is None, self._wants
        self._from_time = None  # only the first event is found by time
        try:
            for raw in taken:
                tokens = raw.reply.rsplit(b".", words)
                sequence = int(tokens[1])
                if sequence != following and is_dense:
                    raise _gap(following, sequence)
                is_dense = self._dense
                following = sequence + 1
                subject = raw.subject.decode("utf-8", "replace")
                if wants is not None and not wants(subject):
                    continue
                messages.append(read_message(subject, raw.data, sequence, told_time(tokens[3])))
        except CorruptLedgerError as error:
            return messages, error
        finally:
            self._next = following
        return messages, None

    async def _check_not_rewound(self) -> None:
        """Refuse a ledger that was rewound, created again or purged meanwhile: a consumer would only wait, or get none.

        Raises: SequenceGapError.
        """
        try:
            state = (await api.stream_info(self._inbox, self._stream)).state
        except api.MissingError:
            raise
        except api.ApiError:
            return  # `_create` raises a better error
        if self._dense and self._from_time is None and state.first_sequence > self._next:
            raise _gap(self._next, state.first_sequence)
        if state.last_sequence < self._next - 1:
            message = (
                f"the ledger ends at stream sequence {state.last_sequence}, and {self._next - 1} was read before: "
                "it was rewound or replaced"
            )
            raise SequenceGapError(message)

    async def _create(self) -> ConsumerInfo:
        """Create the consumer; return its info from the server."""
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
        if len(self._filters) == 1:
            config["filter_subject"] = self._filters[0]
        elif self._filters:
            config["filter_subjects"] = list(self._filters)
        timeout_s = _CREATED_WITHIN_S if len(self._filters) > 1 else api.TIMEOUT_S
        return await api.create_reader(self._inbox, self._stream, config, timeout_s=timeout_s)

    async def _delete(self, name: str) -> None:
        """Delete the consumer; if this fails, the server deletes it by itself after a minute."""
        try:
            api.drop_consumer(self._connection, self._stream, name)
        except ConnectionLostError:
            return


def _pending_after(raw: Raw) -> int:
    """Return how many messages the consumer still had to deliver after this one."""
    tokens = raw.reply.split(b".")
    return int(tokens[ack_numbers_at(tokens) + 4])


def _gap(missing: int, found: int) -> SequenceGapError:
    message = (
        f"stream sequence {missing} is missing: the ledger goes on with {found} (unless it was moved into an archive "
        "just now, an event is lost)"
    )
    return SequenceGapError(message, stream_sequence=missing, next_sequence=found)
