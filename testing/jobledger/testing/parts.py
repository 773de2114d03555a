"""What a ledger stands on, without a server: hints that stay in the process, leases and large values in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import IO, NoReturn

import msgspec

from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.errors import ConfigurationError, PayloadMissingError
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.subjects import filter_pattern
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.leases import LeaseLostError, WorkerInfo
from jobledger.ledger.nats.outage import Outage
from jobledger.ledger.nats.payloads import Payloads

_OnMessage = Callable[[bytes, bytes, bytes, bytes], None]


class Loopback:
    """The part of a connection that hints use: what is sent reaches those in this process who listen."""

    is_closed = False

    def __init__(self) -> None:
        self._listening: dict[int, tuple[re.Pattern[str], _OnMessage]] = {}
        self._count = 0
        self.outage = Outage()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs here."""
        return asyncio.get_running_loop()

    def require_here(self) -> None:
        """Allow every loop: nothing of this one belongs to another."""

    async def listen(self, subject: str, on_message: _OnMessage) -> int:
        """Call `on_message` for what is sent to a subject or to those that a filter names; return what ends it."""
        self._count += 1
        self._listening[self._count] = filter_pattern(subject), on_message
        return self._count

    async def unlisten(self, subscription: int) -> None:
        """End it."""
        self._listening.pop(subscription, None)

    def send(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Tell those who listen, after what runs now."""
        for pattern, on_message in tuple(self._listening.values()):
            if pattern.fullmatch(subject):
                self.loop.call_soon(on_message, subject.encode(), reply.encode(), data, headers)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what only a server can do."""
        raise ConfigurationError(
            f"a ledger in memory has no server to ask ({name}): use the fixture server_ledger for this test"
        )


class MemoryLeases:
    """Leases of those who work in this process; they end when they are given back."""

    user = ""

    def __init__(self, duration_s: float = 3600.0) -> None:
        self._duration_s = duration_s
        self.keys: dict[str, tuple[WorkerInfo, int]] = {}
        self._revision = 0

    async def duration_s(self) -> float:
        """See `Leases.duration_s`."""
        return self._duration_s

    async def renew(self, info: WorkerInfo, revision: int) -> int:
        """Write a key on condition of its revision; see `Leases.renew`."""
        if revision != (self.keys[info.worker][1] if info.worker in self.keys else 0):
            raise LeaseLostError(info.worker)
        self._revision += 1
        self.keys[info.worker] = (info, self._revision)
        return self._revision

    async def find(self, worker: str) -> WorkerInfo | None:
        """Return who lives; see `Leases.find`."""
        found = self.keys.get(worker)
        return None if found is None or found[0].stopped else found[0]

    async def all(self) -> list[WorkerInfo]:
        """Return every key."""
        return [info for info, _ in self.keys.values()]


class MemoryValues(Payloads):
    """Large inputs and results, with the limits that a server's ledger has; kept as long as the ledger in memory."""

    def __init__(self, connection: Connection, config: LedgerConfig) -> None:
        super().__init__(
            connection,
            "memory",
            inline_bytes_max=config.inline_bytes_max,
            payload_bytes_max=config.payload_bytes_max,
        )
        self._values: dict[str, bytes] = {}

    async def store(self, name: str, data: bytes | IO[bytes], *, what: str, size_bytes: int = 0) -> None:  # noqa: ARG002
        """Keep a value; see `ObjectBucket.store`."""
        self._values[name] = data if isinstance(data, bytes) else data.read()

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None) -> bytes:
        """Return the JSON text that an event carries or refers to; see `Payloads.get`."""
        if reference is None:
            return bytes(value)
        try:
            return self._values[reference.sha256]
        except KeyError:
            raise self._gone(reference) from None

    async def remove(self, reference: PayloadRef) -> None:
        """Let go of a value; see `Payloads.remove`."""
        self._values.pop(reference.sha256, None)


class MemoryBodies:
    """Bodies of webhooks in this process; whoever asks for one knows how long it was to be kept."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    async def keep(self, body: bytes, life_s: float) -> None:  # noqa: ARG002 - as `Bodies`
        """Keep a body under its sha256; see `Bodies.keep`."""
        self._kept[digest(body)] = body

    async def body(self, sha256: str) -> bytes:
        """Return a body; see `Bodies.body`."""
        try:
            return self._kept[sha256]
        except KeyError as error:
            raise PayloadMissingError(f"the body {sha256[:12]}... was never kept", state="gone") from error
