"""The limit of an application's call that waits for the server, and its error when the server is silent.

For the verbs of `Ledger` and `JobHandle`, for which somebody waits: a request, a command. Workers and reactors have a
longer limit of their own (`append_timeout_s`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from jobledger.ledger.model.errors import (
    AppendOutcomeUnknownError,
    JetStreamDisabledError,
    ServerUnreachableError,
    UnreachableError,
    is_for_good,
)
from jobledger.ledger.nats.connection import Connection, ConnectionLostError

# A limit in time for many waits at once, by one timer for all of them.
# `asyncio.timeout` makes a timer for each wait and takes it back, which costs every call of an application about 5 us. All
# waits of one `Deadlines` may last equally long, so whichever began first ends first, and a timer for that one is enough.

#: uvloop counts milliseconds: a timer may fire this much too early, and a shorter one fires at once.
_ROUNDED_S: Final = 0.001


class Deadlines:
    """Waits on one event loop that may each last `limit_s` seconds: blocks of code, or futures that somebody awaits.

    A future costs less than a block. One that is not done at the limit gets a TimeoutError, so a task that is cancelled
    at the same time still learns of that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, *, is_single: bool = False) -> None:
        """Begin without a timer. `is_single`: there is only one wait, and its end cancels the timer."""
        self.loop = loop
        self.limit_s = limit_s
        self._is_single = is_single
        self._waits: dict[
            Deadline | asyncio.Future[Any], float
        ] = {}  # the time limit of each wait, in the order of these limits
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, wait: Deadline | asyncio.Future[Any]) -> None:
        """Count a wait as begun now."""
        ends_at = self._waits[wait] = self.loop.time() + self.limit_s
        if self._timer is None:
            self._timer = self.loop.call_at(ends_at, self._expire)

    def end(self, wait: Deadline | asyncio.Future[Any]) -> float | None:
        """Count a wait as over; return when it would have ended, None where it is over already.

        Unless `is_single` the timer stays: when it fires, it finds the wait that is first.
        """
        if self._is_single and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._waits.pop(wait, None)

    def _expire(self) -> None:
        self._timer = None
        now = self.loop.time()
        for wait, ends_at in list(self._waits.items()):
            if ends_at > now + _ROUNDED_S:
                self._timer = self.loop.call_at(ends_at, self._expire)
                return
            del self._waits[wait]
            if isinstance(wait, Deadline):
                wait.expire()
            elif not wait.done():
                wait.set_exception(TimeoutError())


class Deadline:
    """One wait: a block of code of one task, which is cancelled at the limit. Use it once, with `with`.

    Raises: TimeoutError at the end of a block that the limit cancelled. Other cancellations of the task go on.
    """

    __slots__ = ("_among", "_cancelling", "_task", "has_expired")

    def __init__(self, among: Deadlines) -> None:
        """`among`: the group of waits, which has the limit."""
        self._among = among
        self.has_expired = False

    def __enter__(self) -> Self:
        """Begin, in the task that is to be cancelled."""
        task = asyncio.current_task(self._among.loop)
        assert task is not None, "a limit is for a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._among.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End. Raises: TimeoutError."""
        if not self.has_expired:
            self._among.end(self)
        # As in `asyncio.timeout`: further cancellations are somebody else's, and go on.
        elif self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel the task: the limit is reached."""
        self.has_expired = True
        self._task.cancel()


R = TypeVar("R")
_RETRY_S: Final = 0.5  #: between two looks while the servers of a cluster elect a leader


class Patience:
    """The limit of one client, in seconds; without a connection there is no server to wait for."""

    def __init__(self, connection: Connection | None, limit_s: float) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._deadlines: Deadlines | None = None

    async def read(self, work: Callable[[], Awaitable[R]]) -> R:
        """Await work that changes no job; on a cluster it is repeated while the servers elect a leader.

        Raises: ServerUnreachableError at the limit, and what `work` raises.
        """
        connection = self._require_here()
        limit = Deadline(self._waits(connection))
        passing: Exception | None = None
        try:
            with limit:
                while True:
                    try:
                        return await work()
                    except (JetStreamDisabledError, UnreachableError) as error:
                        if connection is None or not connection.is_clustered or is_for_good(error):
                            raise
                        passing = error
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError as error:
            if not limit.has_expired:
                raise
            if isinstance(passing, UnreachableError):
                raise passing from error
            said = "is it running?" if passing is None else f"{passing}"
            message = f"the server gave no answer within {self._limit_s:g} s: {said}"
            raise ServerUnreachableError(message) from error

    def deadlines(self) -> Deadlines | None:
        """Return the group of waits for an append that is sent now; None if nothing can be sent at this moment.

        A caller that gets None calls `append`, which waits for a connection.

        Raises: as `Connection.require_here`.
        """
        connection = self._require_here()
        return self._waits(connection) if connection is not None and connection.is_connected else None

    def unknown(self, job_id: str, doing: str) -> AppendOutcomeUnknownError:
        """Return the error of an append that had no answer within the limit; `doing` as for `append`."""
        return AppendOutcomeUnknownError(
            f"the server gave no answer within {self._limit_s:g} s, so it is not known whether job {job_id} {doing}: "
            "doing the same again, with the same id, is safe",
            job_id=job_id,
        )

    async def append(
        self, work: Callable[[], Awaitable[R]], *, job_id: str, doing: str, ends_at: float | None = None
    ) -> R:
        """Await work that may append an event to a job; `doing` is its effect in words, such as "was cancelled".

        Without a connection nothing is begun, so that the caller learns for sure that nothing was changed. `ends_at`:
        the end by the loop's clock, if the wait began earlier; None: it begins now.

        Raises: at the limit ServerUnreachableError without a connection, AppendOutcomeUnknownError with a connection
        but no answer; the errors of `work`.
        """
        connection = self._require_here()
        waits = self._waits(connection)
        if connection is not None and not connection.is_connected:
            waits = Deadlines(connection.loop, await self._await_connection(connection), is_single=True)
        elif ends_at is not None:
            waits = Deadlines(waits.loop, ends_at - waits.loop.time(), is_single=True)
        limit = Deadline(waits)
        try:
            with limit:
                return await work()
        except AppendOutcomeUnknownError as error:  # the log's own limit was reached
            error.job_id = job_id
            raise
        except TimeoutError as error:
            if not limit.has_expired:
                raise
            raise self.unknown(job_id, doing) from error

    def _require_here(self) -> Connection | None:
        if self._connection is not None:
            self._connection.require_here()
        return self._connection

    def _waits(self, connection: Connection | None) -> Deadlines:
        # Each look for the running loop is a system call, and every single enqueue and read comes here.
        loop = asyncio.get_running_loop() if connection is None else connection.loop
        if self._deadlines is None or self._deadlines.loop is not loop:
            self._deadlines = Deadlines(loop, self._limit_s)
        return self._deadlines

    async def _await_connection(self, connection: Connection) -> float:
        """Return how many seconds of the limit are left once connected. Raises: ServerUnreachableError if none are."""
        ends_at = connection.loop.time() + self._limit_s
        try:
            await connection.wait_connected(self._limit_s)
            return ends_at - connection.loop.time()
        except ConnectionLostError as error:
            message = f"there was no connection to the server for {self._limit_s:g} s: nothing was changed"
            raise ServerUnreachableError(message) from error
