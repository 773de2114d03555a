"""The check that the connected server is of use: a server that is cut off from the others only answers pings."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from jobledger.ledger.nats.connection import Connection

#: A server that serves nothing for this time is left for another one. Longer than elections take, 4 to 8 s.
LEFT_AFTER_S: Final = 8.0
#: The same for a leader that cannot prove that it leads: the others begin an election after 4 s.
_UNPROVEN_S: Final = 4.0
#: The spread of this time, so that clients do not leave all at once.
MORE_S: Final = 1.0
#: An unanswered request is repeated each 1.5 s: a server is left only if it was tried within this time.
_TRIED_S: Final = 3.0


class ServerUse:
    """A watch that leaves a server of a cluster if one kind of request fails there repeatedly."""

    def __init__(self, connection: Connection, fault: str) -> None:
        """`fault`: the failure, for the log, such as "took no write"."""
        self._fault = fault
        self._connection = connection
        self._loop = connection.loop
        self._leaving: asyncio.TimerHandle | None = None
        self.is_doubted = False  #: True: the newest request failed
        self._noted_at = 0.0  # when it was last seen to be of no use
        connection.lost_listeners.append(self.is_useful)

    def is_useless(self) -> None:
        """Record that the server did not serve a request."""
        self._note(LEFT_AFTER_S)

    def is_unproven(self) -> None:
        """Record an answer of a leader that cannot have heard of the others lately."""
        self._note(_UNPROVEN_S)

    def is_useful(self) -> None:
        """Record that the server served a request, or that it is another one."""
        self.is_doubted = False
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _note(self, limit_s: float) -> None:
        if not self._connection.is_clustered:
            return
        self._noted_at = self._loop.time()
        self.is_doubted = True
        at = self._noted_at + limit_s + random.random() * MORE_S  # noqa: S311 - of a wait, not of a secret
        if self._leaving is not None:
            if self._leaving.when() <= at:
                return
            self._leaving.cancel()
        self._leaving = self._loop.call_at(at, self._leave)

    def _leave(self) -> None:
        self._leaving = None
        if self._loop.time() - self._noted_at <= _TRIED_S:
            self._connection.leave(self._fault)
