"""How long an application's call waits for the server, and what it says when that is silent.

For the verbs of `Ledger` and `JobHandle`, which somebody waits for: a request, a command. Workers and reactors have more
patience, and say so themselves (`append_timeout_s`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from jobledger.ledger.deadlines import Deadline, Deadlines
from jobledger.ledger.model.errors import (
    AppendOutcomeUnknownError,
    JetStreamDisabledError,
    ServerUnreachableError,
    UnreachableError,
    is_for_good,
)
from jobledger.ledger.nats.connection import Connection, ConnectionLostError

R = TypeVar("R")
_RETRY_S: Final = 0.5  #: between two looks while the servers of a cluster elect a leader


class Patience:
    """The limit of one client, in seconds; without a connection there is no server to wait for."""

    def __init__(self, connection: Connection | None, limit_s: float) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._deadlines: Deadlines | None = None

    async def read(self, work: Callable[[], Awaitable[R]]) -> R:
        """Await what changes no job; one of several servers is asked again while they elect a leader.

        Raises: ServerUnreachableError at the limit, and what `work` raises.
        """
        connection = self._require_here()
        limit = self._limit(connection)
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

    async def append(self, work: Callable[[], Awaitable[R]], *, job_id: str, doing: str) -> R:
        """Await what may append an event to a job; `doing` says what, as in "was cancelled".

        Without a connection nothing is begun, so that the caller learns for sure that nothing was changed.

        Raises: ServerUnreachableError when there was no connection, AppendOutcomeUnknownError when there was one and no
            answer, both at the limit; what `work` raises.
        """
        connection = self._require_here()
        limit = self._limit(connection)
        if connection is not None and not connection.is_connected:
            left_s = await self._await_connection(connection)
            limit = Deadline(Deadlines(connection.loop, left_s, is_single=True))
        try:
            with limit:
                return await work()
        except AppendOutcomeUnknownError as error:  # the log itself was to wait no longer
            error.job_id = job_id
            raise
        except TimeoutError as error:
            if not limit.has_expired:
                raise
            raise AppendOutcomeUnknownError(
                f"the server gave no answer within {self._limit_s:g} s, so it is not known whether job {job_id} {doing}: "
                "doing the same again, with the same id, is safe",
                job_id=job_id,
            ) from error

    def _require_here(self) -> Connection | None:
        if self._connection is not None:
            self._connection.require_here()
        return self._connection

    def _limit(self, connection: Connection | None) -> Deadline:
        # Each look for the running loop is a system call, and this is the way of every lone enqueue and read.
        loop = asyncio.get_running_loop() if connection is None else connection.loop
        if self._deadlines is None or self._deadlines.loop is not loop:
            self._deadlines = Deadlines(loop, self._limit_s)
        return Deadline(self._deadlines)

    async def _await_connection(self, connection: Connection) -> float:
        """Return how many seconds of the limit are left then. Raises: ServerUnreachableError where none are."""
        ends_at = connection.loop.time() + self._limit_s
        try:
            await connection.wait_connected(self._limit_s)
            return ends_at - connection.loop.time()
        except ConnectionLostError as error:
            message = f"there was no connection to the server for {self._limit_s:g} s: nothing was changed"
            raise ServerUnreachableError(message) from error
