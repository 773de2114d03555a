"""Whether the server that this process is connected to is of use: if cut off from the others, it only answers pings."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from jobledger.ledger.nats.connection import Connection

#: A server that serves nothing for so long is left for another one. Above what elections take, 4 to 8 s.
LEFT_AFTER_S: Final = 8.0
#: The same where a leader answers that cannot prove that it leads: the others have begun to elect one after 4 s.
_UNPROVEN_S: Final = 4.0
#: Clients do not leave all at once.
MORE_S: Final = 1.0
#: A request without an answer is repeated each 1.5 s: a server that nobody tried lately is not left.
_TRIED_S: Final = 3.0


class ServerUse:
    """A watch that leaves a server of a cluster which fails at one thing, though it is asked repeatedly."""

    def __init__(self, connection: Connection, fault: str) -> None:
        """`fault`: what the server then did, for the log, as "took no write"."""
        self._fault = fault
        self._connection = connection
        self._loop = connection.loop
        self._leaving: asyncio.TimerHandle | None = None
        self.is_doubted = False  #: it did not do it lately
        self._noted_at = 0.0  # when it was last seen to be of no use
        connection.lost_listeners.append(self.is_useful)

    def is_useless(self) -> None:
        """Note that the server did not do it."""
        self._note(LEFT_AFTER_S)

    def is_unproven(self) -> None:
        """Note that a leader answered which cannot have heard of the others lately."""
        self._note(_UNPROVEN_S)

    def is_useful(self) -> None:
        """Note that the server did it, or that there is another one."""
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
