"""Whether a ledger has room for new jobs: its last tenth is kept for the ends of the jobs that it has already.

A full ledger refuses every event, also those of outcomes and archive runs, so it could never get room again. There is
no central count: each client asks the server after each thousandth of the ledger that it appended, and at least each
second.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from jobledger.ledger.model.errors import LedgerError, LedgerThrottledError, PermissionRefusedError
from jobledger.ledger.model.log import Head, Log
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.durables import list_consumers
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.pauses import queue_of_work
from jobledger.ledger.nats.streams import find_stream

logger = logging.getLogger("jobledger.throttle")

#: Shares of a ledger's room. New jobs wait above the first one, claims above the second one; outcomes, acts of people
#: and archive runs go on until the ledger is full.
ENQUEUE_UP_TO: Final = 0.90
CLAIM_UP_TO: Final = 0.96

_STEP: Final = (
    1 / 16
)  # share of the room left below `ENQUEUE_UP_TO` that a client appends before its next look
_STEP_MIN: Final = 0.001  # share of the whole room, likewise
_AHEAD: Final = 0.002  # share of the room that it appends at most before the answer to that look, since many clients do so at once
_LOOK_EVERY_S: Final = 1.0
_LOOK_EVERY_S_MAX: Final = 5.0
_LOOK_SHARE: Final = 0.02  # share of a client's time for looks: a list of a thousand consumers takes a while
_UNLIMITED_EVERY_S: Final = 60.0
_PAUSE_S: Final = 0.5
_ANSWER_S: Final = 1.0  # seconds for which a new job waits for a look
_EVENT_BYTES: Final = 350  # bytes of an event without the values of its job
_NEEDED_BYTES: Final = 900  # bytes of a job's events after its first, if no job ever ran
_NEEDED_EVENTS: Final = 2  # `started` and an end
_WEIGHT: Final = 0.1  # weight of the newest job in the estimate of a job's need


class Load(NamedTuple):
    """The used part of a ledger: bytes of its events, and of the later events of its waiting jobs."""

    stored_bytes: int
    needed_bytes: (
        int  #: bytes for jobs that wait for a worker or for a time; jobs held by limits are not counted
    )
    bytes_max: int | None  #: None: the ledger has no limit

    @property
    def committed_bytes(self) -> int:
        """Bytes that are taken or promised."""
        return self.stored_bytes + self.needed_bytes

    @property
    def share(self) -> float:
        """The part of the room that is taken or promised; 0 where there is no limit."""
        return self.committed_bytes / self.bytes_max if self.bytes_max else 0.0


async def needed_by_job(log: Log) -> int | None:
    """Return how many bytes the last job that started and the last one that completed added; None where none did.

    Raises: UnreachableError, PermissionRefusedError.
    """
    lengths: list[int] = []
    for kind in ("started", "completed"):
        message = await log.last(log.names.all_of_type(kind))
        if message is None:
            return None
        lengths.append(_EVENT_BYTES // 2 + len(message.subject) + len(message.data))
    return sum(lengths)


async def waiting_jobs(inbox: Inbox, names: Names) -> int | None:
    """Return how many jobs wait for a worker, run, or wait for a time, by the counts of consumers and timers.

    None without a consumer of work: before the first worker, or when the server has just lost them.

    Raises: UnreachableError, LedgerError, PermissionRefusedError.
    """
    consumers = await list_consumers(inbox, names.ledger_stream)
    timers = await find_stream(inbox, names.timers_stream)
    work = [info.unsettled for info in consumers if queue_of_work(info.name)]
    return sum(work) + (0 if timers is None else timers.state.messages) if work else None


def load_of(head: Head, waiting: int | None, per_job: float | None) -> Load:
    """Return the load of a ledger if `waiting` jobs need `per_job` bytes each.

    Neither is known if no job ever ran: then any event may belong to a waiting job. An event of a waiting job counts
    at most as much as the average event of this ledger.
    """
    events = max(0, head.last_sequence - head.first_sequence + 1)
    if per_job is None:
        return Load(
            head.stored_bytes, (events if waiting is None else waiting) * _NEEDED_BYTES, head.bytes_max
        )
    usual = _NEEDED_EVENTS * head.stored_bytes / events if events else per_job
    return Load(head.stored_bytes, round((waiting or 0) * min(per_job, usual)), head.bytes_max)


async def counted_load(
    head: Head, waiting: Callable[[], Awaitable[int | None]], per_job: float | None
) -> Load:
    """Return the load of a ledger; `waiting` is called only if it matters: near `ENQUEUE_UP_TO`.

    Each waiting job has an event. If there would be room even if all events were of waiting jobs, their need counts as
    0.

    Raises: what `waiting` raises.
    """
    most = load_of(head, head.last_sequence - head.first_sequence + 1, per_job)
    if most.share < ENQUEUE_UP_TO:
        return Load(head.stored_bytes, 0, head.bytes_max)
    return load_of(head, await waiting(), per_job)


class Throttle:
    """Lets one client's new jobs and claims through while the ledger has room for them.

    Its answers cost no request: a look at the server is made beside them, one at a time.
    """

    def __init__(
        self,
        connection: Connection,
        log: Log,
        waiting: Callable[[], Awaitable[int | None]],
        *,
        room_timeout_s: float,
    ) -> None:
        """`waiting` returns how many jobs wait, None: not known; `room_timeout_s`: how long `require` waits at most."""
        self._connection = connection
        self._log = log
        self._waiting = waiting
        self._room_timeout_s = room_timeout_s
        self._left = 0.0  # bytes that may be appended before the next look
        self._given = 0.0  # the value of `_left` after the last look
        self._left_min = 0.0  # the lower bound of `_left` before the answer to a look
        self._needed: float | None = None  # bytes that a waiting job needs, from the last jobs that ended
        self._per_job = _EVENT_BYTES + _NEEDED_BYTES  # bytes of a new job without its input
        self._look_at = -math.inf  # loop time
        self._looking: asyncio.Task[None] | None = None
        self._is_silent = False  # the look had no answer for so long that nobody waits for it
        self._load = Load(0, 0, None)
        self._is_open = False  # nobody has looked yet, and a process may add one job and end
        self._is_open_to_jobs = False
        self._holds_claims = False
        self._counts = False  # whether looks count waiting jobs: only for new jobs, and if this user may ask
        self._may_count = True

    def passes(self, size: int) -> bool:
        """Return whether a new job with an input of `size` bytes may be appended; if not, call `require`."""
        left = self._left - size - self._per_job
        if left < 0 or self._connection.loop.time() >= self._look_at:
            _ = self._look_soon()
        if (self._is_open and left >= self._left_min) or self._is_silent:
            self._left = left
            return True
        return False

    def holds_claims(self) -> bool:
        """Return whether a worker must start no further job: the rest of the room is for the ends of running ones."""
        self._left -= _EVENT_BYTES
        if self._left < 0 or self._connection.loop.time() >= self._look_at:
            _ = self._look_soon()
        return self._holds_claims

    async def require(self, size: int, *, waits: bool = False, of_job: bool = False) -> None:
        """Return once a new job with an input of `size` bytes may be appended; also if the server is silent.

        `waits`: wait for room, within the limit. `of_job`: the caller is the code of a job, which waits, too. It would
        hold its slot meanwhile, and is itself counted as waiting, so for it only the stored bytes count, up to
        `CLAIM_UP_TO`.

        Raises: LedgerThrottledError.
        """
        deadline = self._connection.loop.time() + (self._room_timeout_s if waits or of_job else 0.0)
        if self._may_count and not self._counts:
            self._counts, self._look_at = True, -math.inf  # looks for claims did not count waiting jobs
        while True:
            is_used_up = self._left < self._left_min
            if self._looking is not None or is_used_up or self._connection.loop.time() >= self._look_at:
                answered, _ = await asyncio.wait({self._look_soon()}, timeout=_ANSWER_S)
                if not answered:
                    self._is_silent = True
                    return  # the append raises a better error of the server
            is_open = self._is_open_to_jobs if of_job else self._is_open
            if is_open and self._left >= self._left_min:
                self._left -= size + self._per_job
                return
            if is_open:
                continue  # others that waited, too, have taken the room of that look
            if self._connection.loop.time() >= deadline:
                raise self._refusal()
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """End the running look: the connection is closed."""
        if self._looking is not None:
            self._looking.cancel()

    def _refusal(self) -> LedgerThrottledError:
        load = self._load
        return LedgerThrottledError(
            f"the ledger takes no new jobs now: {load.share:.0%} of its room is taken, by what it holds "
            f"({load.stored_bytes:,} bytes) and by what waiting jobs still need ({load.needed_bytes:,}); try again later, "
            "give it room with `jobledger ledger resize SIZE`, or move older events with `jobledger audit archive`"
        )

    def _look_soon(self) -> asyncio.Task[None]:
        """Return the running look, or begin one. Raises: as `Connection.require_here`."""
        self._connection.require_here()
        if self._looking is None:
            self._looking = self._connection.loop.create_task(self._look(), name="room")
        return self._looking

    async def _look(self) -> None:
        """Ask the server how full the ledger is; without an answer the known state counts."""
        begin, every_s = self._connection.loop.time(), _LOOK_EVERY_S
        try:
            self._take_in(await self._find())
            if self._load.bytes_max is None:
                every_s = _UNLIMITED_EVERY_S
        except (LedgerError, ConnectionLostError) as error:
            # An append raises a better error than this look.
            logger.debug("how full the ledger is cannot be asked: %s", error)
            self._left = self._given = 0.0
            if self._load.bytes_max is None:
                self._is_open = self._is_open_to_jobs = True
        finally:
            now = self._connection.loop.time()
            has_room = self._load.share < ENQUEUE_UP_TO
            every_s = (
                max(every_s, min((now - begin) / _LOOK_SHARE, _LOOK_EVERY_S_MAX)) if has_room else _PAUSE_S
            )
            self._look_at, self._looking, self._is_silent = now + every_s, None, False

    def _take_in(self, load: Load) -> None:
        self._load, room = load, load.bytes_max
        self._is_open = load.share < ENQUEUE_UP_TO and (self._counts or not self._may_count)
        self._is_open_to_jobs = room is None or load.stored_bytes < CLAIM_UP_TO * room
        self._holds_claims = not self._is_open_to_jobs
        if room is None:
            self._left, self._left_min = math.inf, -math.inf
            return
        # Appends let through since the last look may still be on their way, and not in the server's answer.
        on_its_way = max(0.0, self._given - self._left)
        step = max(_STEP_MIN, _STEP * (ENQUEUE_UP_TO - load.share)) * room
        self._left = self._given = step - on_its_way
        self._left_min = -_AHEAD * room

    async def _find(self) -> Load:
        head = await self._log.head()
        stored, room = head.stored_bytes, head.bytes_max
        if room is None or stored >= ENQUEUE_UP_TO * room or not self._counts:
            return Load(stored, 0, room)
        try:
            newest = await needed_by_job(self._log)
            if newest is not None:
                before = newest if self._needed is None else self._needed
                self._needed = before + _WEIGHT * (newest - before)
                self._per_job = _EVENT_BYTES + round(self._needed)
            return await counted_load(head, self._waiting, self._needed)
        except PermissionRefusedError:
            self._counts = self._may_count = False
            return Load(stored, 0, room)
