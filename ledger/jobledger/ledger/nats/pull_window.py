"""A reader of a consumer in windows: one request at a time, bounded in messages and in bytes.

For readers that only need the next messages, in order, and acknowledge nothing. While they work on one window, the
server fills the next. Code that has to settle each message uses `pull.py`.
"""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from jobledger.ledger.model.errors import PermissionRefusedError
from jobledger.ledger.nats.api import pull_subject
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import status_of
from jobledger.ledger.nats.parser import Collector, Raw
from jobledger.ledger.nats.pull import EXPIRES_S, HEARTBEAT_S, SILENT_BEATS, header_text

_BYTES: Final = 8 << 20  # bytes of a request, and the most that is read ahead, if no message is larger
_TAKEN_MAX: Final = 512
#: Messages of the first request, and by how much each one after it grows: some readers want only what comes first.
_FIRST: Final = 256
_GROWTH: Final = 4
_NANOSECONDS: Final = 1_000_000_000
_WIRE_BYTES: Final[Callable[[Raw], int]] = operator.attrgetter("wire_bytes")
_TOO_LARGE: Final = "message size exceeds maxbytes"
_COMPLETE: Final = "batch completed"


class PullWindow(Collector):
    """Asks one consumer for messages, and holds them until they are taken.

    There is never more than one request, so its outstanding messages can be counted exactly, as the server does.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: str,
        *,
        messages_max: int = 0,
        left: int | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """`left`: how many messages the reader wants at the most; None: it reads for ever.

        If `left` is a number, that many messages are stored already: a consumer that stops sending has lost some.
        """
        super().__init__()
        self._left = left
        self._heartbeat_s = heartbeat_s
        self._connection = connection
        self._subject = pull_subject(stream, consumer)
        self._prefix = f"{connection.new_inbox()}."
        asked = connection.prefetch_max
        self._batch_max = min(asked, messages_max) if messages_max > 0 else asked
        self._batch = min(_FIRST, self._batch_max)  # of the next request
        self._unlisten: Callable[[], Awaitable[None]] | None = None
        self._woken = asyncio.Event()
        self._held: list[Raw] = []  # messages that are counted, but not yet taken
        self._token = 0  # number of the newest request
        self._asked = 0  # messages that the newest request asked for
        self._owed = 0  # the number of these that have not come
        self._owed_bytes = 0
        self._is_too_small = False  # the next message is larger than a whole window
        self._quiet_waits = 0  # waits of a heartbeat each; a living server sends one in each
        self._refused: PermissionRefusedError | None = None
        self.is_lost = False  #: the consumer is gone, or unreachable

    async def open(self) -> None:
        """Subscribe to the inbox of this consumer."""
        subscription = await self._connection.listen(f"{self._prefix}*", self)
        self._unlisten = functools.partial(self._connection.unlisten, subscription)
        self._connection.lost_listeners.append(self._lose)
        self._connection.refused_listeners.append(self._on_refused)

    async def close(self) -> None:
        """Unsubscribe; messages on their way are dropped."""
        if self._lose in self._connection.lost_listeners:
            self._connection.lost_listeners.remove(self._lose)
            self._connection.refused_listeners.remove(self._on_refused)
        if self._unlisten is not None:
            await self._unlisten()
            self._unlisten = None

    async def take(self) -> list[Raw]:
        """Wait for messages; return the oldest ones held, up to some hundred, and [] when no more will come.

        Raises: ConnectionLostError, PermissionRefusedError.
        """
        while not self._held and not self._count():
            if self._refused is not None:
                raise self._refused
            if self.is_lost:
                return []
            self._ask()
            self._woken.clear()
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._woken.wait()
            except TimeoutError:
                self._quiet_waits += 1
                if self._quiet_waits >= SILENT_BEATS:
                    return []
        taken, self._held = self._held[:_TAKEN_MAX], self._held[_TAKEN_MAX:]
        if not self._held and not self.is_lost:
            await self._ask_ahead()
        return taken

    async def _ask_ahead(self) -> None:
        """Send a request that is due before the reader works on its messages, perhaps for long."""
        try:
            is_sent = self._ask()
        except ConnectionLostError:
            self._lose()
            return
        if is_sent:  # the connection's writer needs two turns of the loop: to wake, and to write
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _count(self) -> bool:
        """Count received messages, and hold them; return whether there are any."""
        if not self.messages or self.is_lost:
            return False
        self._held, self.messages = self.messages, []
        self._quiet_waits = 0
        self._owed -= len(self._held)
        if self._left is not None:
            self._left -= len(self._held)
        # Some servers send no status when all bytes are used up: only this count shows it.
        self._owed_bytes -= sum(map(_WIRE_BYTES, self._held))
        return True

    def _ask(self) -> bool:
        """Ask for more if no message is outstanding; return whether a request was sent.

        Raises: ConnectionLostError.
        """
        if self._owed > 0 and self._owed_bytes > 0:
            return False
        body: dict[str, int] = {
            "batch": self._size(),
            "expires": int(EXPIRES_S * _NANOSECONDS),
            "idle_heartbeat": int(self._heartbeat_s * _NANOSECONDS),
        }
        if not self._is_too_small:
            body["max_bytes"] = _BYTES
        self._token += 1
        self._connection.send(self._subject, f"{self._prefix}{self._token}", b"", msgspec.json.encode(body))
        self._asked = self._owed = body["batch"]
        if not self._is_too_small:
            self._batch = min(_GROWTH * self._batch, self._batch_max)
        self._owed_bytes = _BYTES
        self._is_too_small = False
        self._quiet_waits = 0
        return True

    def _size(self) -> int:
        """Return how many messages to ask for: no more than the reader wants, and one if a window is too small."""
        if self._is_too_small:
            return 1
        return self._batch if self._left is None else max(1, min(self._batch, self._left))

    def arrived(self) -> None:
        """Wake the reader that waits for the first message."""
        self._woken.set()

    def heard(self, subject: bytes, data: bytes, headers: bytes) -> None:  # noqa: ARG002 - the collector's
        """Take the server's status of a request: it is alive, or the reason of its end."""
        status = status_of(headers)
        self._quiet_waits = 0
        if not status:
            return
        if status == "100":
            if self._left is not None and not (self._held or self.messages):
                self._lose()  # its messages were purged, or its replica lags: a new consumer is needed
            return
        text = header_text(headers) if status == "409" else ""
        if status in {"404", "408"} or _TOO_LARGE in text or _COMPLETE in text:
            self._end_request(subject, is_too_large=_TOO_LARGE in text)
        else:
            self._lose()

    def _end_request(self, subject: bytes, *, is_too_large: bool) -> None:
        if subject != f"{self._prefix}{self._token}".encode():
            return  # of an earlier request, which was counted to its end
        self._is_too_small = is_too_large and self._owed == self._asked and not self.messages
        # Received messages that are not counted yet must be counted before the next request.
        self._owed = len(self.messages)
        self._owed_bytes = sum(map(_WIRE_BYTES, self.messages))
        self._woken.set()

    def _on_refused(self, error: PermissionRefusedError) -> bool:
        if error.subject != self._subject:
            return False
        self._refused = error
        self._lose()
        return True

    def _lose(self) -> None:
        """End with the messages that have come: later ones may follow a gap."""
        if not self.is_lost:
            self.is_lost = True
            self._held += self.messages
            self.messages = []
            self._woken.set()
