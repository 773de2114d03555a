"""The wire: a stand-in for `Connection` whose messages travel in virtual time, in order, and not always arrive.

Each direction of a connection keeps its order, as TCP does. What is lost is lost whole, by a broken connection or
by a server that never answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.model.simulation.loop import Handle, Process

from jobledger.ledger.model.errors import PermissionRefusedError
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.outage import Outage
from jobledger.ledger.nats.parser import Handler

if TYPE_CHECKING:
    from tests.model.simulation.server import Server


class Sent(NamedTuple):
    """One message on its way, up or down."""

    connection: SimConnection
    generation: int  #: of the connection when it was sent
    subject: str
    reply: str
    headers: bytes
    data: bytes


class SimConnection:
    """What the product sees of the network, in one process."""

    def __init__(self, process: Process, server: Server, number: int) -> None:
        self.loop = process
        self.process = process
        self.max_payload = 1 << 20
        self.user = ""
        self.is_connected = True
        self.is_closed = False
        self.has_jetstream = True
        self.is_clustered = False
        self.lost_for_s = 0.0  #: a loss is always waited for: it does not last long here
        self.outage = Outage(process.time)
        self.lost_listeners: list[Callable[[], None]] = []
        self.found_listeners: list[Callable[[], None]] = []
        self.durability = server.durability
        self.optional_rights: dict[str, bool] = {}
        self.refused_listeners: list[Callable[[PermissionRefusedError], bool]] = []
        self.closed_for_good = asyncio.Event()
        self.held_until = 0.0  #: nothing passes before this moment: the network holds it back
        self.generation = 0  #: grows with each loss; what was sent before is gone
        self.handlers: dict[str, Handler] = {}
        self.number = number
        self._server = server
        self._inboxes = 0
        self._up = asyncio.Event()
        self._up_free = 0.0
        self._down_free = 0.0
        process.on_death.append(self._on_death)
        server.connections.append(self)

    # What the product calls.

    def send(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        if not self.is_connected:
            raise ConnectionLostError
        if not self.process.alive:
            return
        world = self.process.world
        arrives = max(world.now + self._server.latency(), self._up_free, self.held_until)
        self._up_free = arrives
        message = Sent(self, self.generation, subject, reply, headers, data)
        world.push(arrives, Handle(self._server.receive, (message,)))

    def require_here(self) -> None:
        pass  # there is one loop, and the world ends with it

    async def listen(self, subject: str, handler: Handler) -> str:
        key = subject.rpartition(".")[0] if subject[-1] in "*>" else subject
        self.handlers[key] = handler
        return key

    async def end_interest(self, subscription: str) -> None:
        pass  # this server may still send what was asked for: the harder case for whoever stops

    async def unlisten(self, subscription: str) -> None:
        self.handlers.pop(subscription, None)

    def new_inbox(self) -> str:
        self._inboxes += 1
        return f"_INBOX.{self.number}.{self._inboxes}"

    async def wait_connected(self, timeout_s: float) -> None:
        if self.is_connected:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_connected:
                    self._up.clear()
                    await self._up.wait()
        except TimeoutError as error:
            raise ConnectionLostError from error

    # What the server and the faults call.

    def answer(self, subject: str, reply: str, headers: bytes, data: bytes, stored_as: str = "") -> None:
        """Send one message down to the process; a delivery goes to an inbox and shows the subject it is stored as."""
        process = self.process
        if not (process.alive and self.is_connected):
            return
        world = process.world
        arrives = max(world.now + self._server.latency(), self._down_free, self.held_until)
        self._down_free = arrives
        message = Sent(self, self.generation, subject, reply, headers, data)
        world.push(arrives, Handle(self._deliver, (message, stored_as or subject), process))

    def _deliver(self, message: Sent, stored_as: str) -> None:
        if message.generation != self.generation:
            return
        subject = message.subject
        handler = self.handlers.get(subject) or self.handlers.get(subject.rpartition(".")[0])
        if handler is not None:
            handler(stored_as.encode(), message.reply.encode(), message.data, message.headers)

    def lose(self) -> None:
        """Break: what is on its way in both directions is gone, and the process hears of it."""
        if not self.is_connected:
            return
        self.is_connected = False
        self.generation += 1
        self._up_free = self._down_free = self.held_until = 0.0
        self._server.forget(self)
        self.process.call_soon(self._tell)

    def _tell(self) -> None:
        self._up.clear()
        for listener in tuple(self.lost_listeners):
            listener()

    def find(self) -> None:
        """Stand again."""
        if self.process.alive and not self.is_connected:
            self.is_connected = True
            self.process.call_soon(self._tell_found)

    def _tell_found(self) -> None:
        for listener in tuple(self.found_listeners):
            listener()
        self._up.set()

    def _on_death(self) -> None:
        self.is_connected = False
        self._server.connections.remove(self)
        self._server.forget(self)

    def jetstream(self) -> Any:
        raise AssertionError("no payload of a simulated job leaves its event")
