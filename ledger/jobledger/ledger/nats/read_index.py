"""The index that a read of a ledger with replicas must reach: that of its leader, with the proof that it leads.

A direct get is answered by any replica, and one that lags is older than what was just acknowledged. The leader itself
may be cut off from the others, and then gives old answers for up to 20 s (measured with nats-server 2.15.1). But
`STREAM.INFO` says when the leader last heard of each replica: one that heard of a majority within 2 s is the only
leader, since others begin an election after 4 s at the earliest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from jobledger.ledger.model.errors import JetStreamDisabledError, ServerUnreachableError, UnreachableError
from jobledger.ledger.nats import api
from jobledger.ledger.nats.inbox import Inbox, ReplyTimeoutError
from jobledger.ledger.nats.infos import StreamInfo
from jobledger.ledger.nats.server_use import ServerUse
from jobledger.ledger.nats.streams import newest_at

T = TypeVar("T")

#: How long ago a leader may have heard of a replica; elections begin after 4 s (nats-server, `minElectionTimeout`).
_HEARD_WITHIN_NS: Final = 2_000_000_000
_RETRY_S: Final = 0.2
_FIRST_PAUSE_S: Final = 0.0005
_PAUSE_MAX_S: Final = 0.05


class LeaderEnd(NamedTuple):
    """The end of a stream for its leader, at a moment at which no other server led it."""

    leader: str
    last_sequence: int


class ReadIndex:
    """Tells which index reads of one stream must reach; callers in one turn of the loop share a request."""

    def __init__(self, inbox: Inbox, stream: str, *, limit_s: float) -> None:
        """`limit_s`: how long to repeat the request while no server proves that it leads."""
        self._inbox = inbox
        self._use = ServerUse(inbox.connection, "showed no leader of the ledger")
        self._stream = stream
        self._limit_s = limit_s
        self._asking: asyncio.Task[LeaderEnd] | None = None

    async def end(self) -> LeaderEnd:
        """Return where the stream ends, at a moment after the beginning of this call. Raises: UnreachableError."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(_seen)  # all its callers may have left
        return await asyncio.shield(self._asking)

    async def newest(self, subject: str) -> int:
        """Return the sequence of the newest message of a subject or filter, proven; 0 for none. Raises: UnreachableError.

        If the server that led before the request leads after it, too, it was the one that answered.
        """

        async def look() -> int | None:
            before = await self.end()
            found = await newest_at(self._inbox, self._stream, subject)
            return found if (await self.end()).leader == before.leader else None

        return await self._patiently(look)

    async def has(self, sequence: int) -> bool:
        """Return whether there is a message at a sequence, proven as `newest`. Raises: UnreachableError."""

        async def look() -> bool | None:
            before = await self.end()
            if sequence > before.last_sequence:
                return False
            found = await api.get_message(self._inbox, self._stream, {"seq": sequence})
            return found is not None if (await self.end()).leader == before.leader else None

        return await self._patiently(look)

    async def until_reached(self, newest: int, read: Callable[[], Awaitable[T]], at: Callable[[T], int]) -> T:
        """Read again until a replica's answer has reached this sequence; `at` returns how far an answer is.

        Raises: UnreachableError.
        """
        deadline = asyncio.get_running_loop().time() + self._limit_s
        pause_s = _FIRST_PAUSE_S
        while at(found := await read()) < newest:
            if asyncio.get_running_loop().time() >= deadline:
                raise ServerUnreachableError(
                    f"no replica shows what the ledger's leader has, {newest:,}: are the servers catching up?"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        return found

    async def _ask(self) -> LeaderEnd:
        await asyncio.sleep(0)
        self._asking = None  # a call from now on asks the server again

        async def look() -> LeaderEnd | None:
            info = await api.stream_info(self._inbox, self._stream)
            return LeaderEnd(leader_of(info), info.state.last_sequence) if is_proven(info) else None

        return await self._patiently(look)

    async def _patiently(self, look: Callable[[], Awaitable[T | None]]) -> T:
        """Return the result of a look; while servers elect a leader, or one is cut off, repeat it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limit_s
        while True:
            error: Exception | None = None
            try:
                found = await look()
            except (JetStreamDisabledError, ReplyTimeoutError, UnreachableError) as passing:
                error = passing
                self._use.is_useless()
            else:
                if found is not None:
                    self._use.is_useful()
                    return found
                self._use.is_unproven()
            if loop.time() >= deadline:
                raise error or ServerUnreachableError(
                    "the server that leads the ledger is cut off from the others: what it says may be out of date"
                )
            await asyncio.sleep(_RETRY_S)


def _seen(task: asyncio.Task[LeaderEnd]) -> None:
    if not task.cancelled():
        task.exception()


def is_proven(info: StreamInfo) -> bool:
    """Return whether the server that answered heard of a majority so lately that no other one leads the stream.

    Without a leader, replicas may give old answers. `active` 0 stands for a replica from which nothing was heard yet.
    """
    if not leader_of(info):
        return False
    replicas: list[dict[str, Any]] = (info.cluster or {}).get("replicas") or []
    heard = sum(0 < int(each.get("active", 0)) < _HEARD_WITHIN_NS for each in replicas)
    return 2 * (heard + 1) > len(replicas) + 1


def leader_of(info: StreamInfo) -> str:
    """Return the name of the server that answered for a stream; "" outside of a cluster."""
    return str((info.cluster or {}).get("leader", ""))
