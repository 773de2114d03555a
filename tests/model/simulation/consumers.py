"""A pull consumer as nats-server runs it: at least once, and an ack is matched by its stream sequence alone."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
from tests.model.simulation.loop import Handle
from tests.model.simulation.streams import Message, Stream, matcher, timestamp
from tests.model.simulation.wire import SimConnection

if TYPE_CHECKING:
    from tests.model.simulation.server import Server

_NANOSECONDS = 1_000_000_000
_RECENT_S = 3.0


class Next(msgspec.Struct):
    """The body of a pull request."""

    batch: int = 1
    expires: int = 0
    no_wait: bool = False
    idle_heartbeat: int = 0


_decode_next = msgspec.json.Decoder(Next).decode


class Request(msgspec.Struct, eq=False):
    """Somebody who waits for messages."""

    connection: SimConnection
    generation: int
    inbox: str
    left: int
    no_wait: bool
    heartbeat_s: float
    ended: bool = False
    heard_at: float = 0.0


class Consumer:
    """One consumer of one stream."""

    def __init__(self, server: Server, stream: Stream, name: str, config: dict[str, Any]) -> None:
        self.server = server
        self.stream = stream
        self.name = name
        self.config = config
        self._created = timestamp(server.now_ns())
        filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
        self._fits = [matcher(each) for each in filters]
        self.explicit = config.get("ack_policy") == "explicit"
        self._ack_wait_s = (config.get("ack_wait") or 30 * _NANOSECONDS) / _NANOSECONDS
        self._deliver_max = int(config.get("max_deliver") or -1)
        self._pending_max = int(config.get("max_ack_pending") or 1_000)
        self.fresh: deque[int] = deque()  # not yet delivered
        self.again: deque[int] = deque()  # to be delivered again
        self.pending: dict[
            int, float
        ] = {}  # delivered and not settled: stream sequence -> true time of expiry
        self.delivered: dict[int, int] = {}
        self._sequence = 0
        self._highest = 0  # stream sequence handed out
        self._without_data = bool(config.get("headers_only"))
        self._waiting: deque[Request] = deque()
        self._looks: dict[int, Handle] = {}
        self._settled: deque[tuple[float, int]] = deque(maxlen=64)
        self._begin()

    def _begin(self) -> None:
        policy = self.config.get("deliver_policy", "all")
        start = int(self.config.get("opt_start_seq") or 1)
        if policy == "new":
            start = self.stream.state()["last_seq"] + 1
        for number in self.stream.sequences(None, start):
            message = self.stream.message(number)
            if message is not None and self.fits(message.subject):
                self.fresh.append(number)

    def fits(self, subject: str) -> bool:
        return any(fits(subject) for fits in self._fits)

    @property
    def is_empty(self) -> bool:
        return not (self.fresh or self.again or self.pending)

    def info(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "stream_name": self.stream.name,
            "config": self.config,
            "created": self._created,
            "num_pending": len(self.fresh),
            "num_ack_pending": len(self.pending),
            "num_redelivered": len(self.delivered),
            "num_waiting": len(self._waiting),
            "delivered": {"consumer_seq": self._sequence, "stream_seq": self._highest},
            "ack_floor": {"consumer_seq": 0, "stream_seq": min(self.pending, default=self._highest + 1) - 1},
        }

    def add(self, sequence: int) -> None:
        """Take in a message that was just stored."""
        self.fresh.append(sequence)
        self.pump()

    # Requests.

    def ask(self, connection: SimConnection, inbox: str, body: bytes) -> None:
        asked = _decode_next(body) if body else Next()
        heartbeat_s = asked.idle_heartbeat / _NANOSECONDS
        request = Request(connection, connection.generation, inbox, asked.batch, asked.no_wait, heartbeat_s)
        if asked.no_wait and not asked.expires:
            if self._is_idle():
                self._end(request, "404 No Messages")
                return
            self._waiting.append(request)
            self.pump()
            if not request.ended and request.left:
                self._waiting.remove(request)
                self._end(request, "408 Request Timeout")
            return
        request.heard_at = self.server.world.now
        self._waiting.append(request)
        if asked.expires:
            self.server.world.after(asked.expires / _NANOSECONDS, self._expire, request)
        if heartbeat_s:
            self.server.world.after(heartbeat_s, self._beat, request)
        self.pump()

    def _is_idle(self) -> bool:
        return not self.again and (not self.fresh or len(self.pending) >= self._pending_max)

    def _end(self, request: Request, status: str) -> None:
        request.ended = True
        if request.generation == request.connection.generation:
            request.connection.answer(request.inbox, "", f"NATS/1.0 {status}\r\n\r\n".encode(), b"")

    def _expire(self, request: Request) -> None:
        if not request.ended:
            self._waiting.remove(request)
            self._end(request, "408 Request Timeout")

    def _beat(self, request: Request) -> None:
        if request.ended:
            return
        now = self.server.world.now
        if now - request.heard_at >= request.heartbeat_s - 1e-6:
            request.heard_at = now
            request.connection.answer(request.inbox, "", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"")
        self.server.world.at(request.heard_at + request.heartbeat_s, self._beat, request)

    def delete(self) -> None:
        """Be gone, with everything that was known of deliveries."""
        for request in self._waiting:
            self._end(request, "409 Consumer Deleted")
        self._waiting.clear()
        for look in self._looks.values():
            look.cancel()
        self.fresh.clear()
        self.again.clear()
        self.pending.clear()

    def forget(self, connection: SimConnection) -> None:
        """Drop the requests of a connection that is gone."""
        if any(request.connection is connection for request in self._waiting):
            gone = [request for request in self._waiting if request.connection is connection]
            for request in gone:
                request.ended = True
                self._waiting.remove(request)

    # Deliveries.

    def pump(self) -> None:
        """Hand out what can be handed out."""
        while self._waiting and not self._is_idle():
            sequence = self._next()
            if sequence is None:
                continue
            message = self.stream.message(sequence)
            if message is None:  # removed meanwhile
                self.pending.pop(sequence, None)
                continue
            request = self._waiting.popleft()
            request.left -= 1
            if request.left:
                self._waiting.append(request)  # all who wait are served in turns
            else:
                request.ended = True
            self._deliver(request, sequence, message)

    def _next(self) -> int | None:
        faults = self.server.faults
        if self.again:
            if len(self.again) > 1 and faults.hit("reordered delivery"):
                self.again.rotate(faults.random.randrange(len(self.again)))
            sequence = self.again.popleft()
            count = self.delivered.get(sequence, 0) + 1
            if 0 < self._deliver_max < count:
                if count == self._deliver_max + 1:
                    self.delivered[sequence] = count
                    self._tell_exceeded(sequence, count - 1)
                self.pending.pop(sequence, None)
                return None
            return sequence
        self._highest = self.fresh.popleft()
        return self._highest

    def _deliver(self, request: Request, sequence: int, message: Message) -> None:
        server = self.server
        self._sequence += 1
        count = self.delivered[sequence] = self.delivered.get(sequence, 0) + 1
        if self.explicit:
            deadline = server.world.now + self._ack_wait_s
            self.pending[sequence] = deadline
            self._watch(sequence, deadline)
        reply = (
            f"$JS.ACK.{self.stream.name}.{self.name}.{count}.{sequence}.{self._sequence}."
            f"{message.stored_ns}.{len(self.fresh)}"
        )
        request.heard_at = server.world.now
        data = b"" if self._without_data else message.data
        request.connection.answer(request.inbox, reply, b"", data, message.subject)
        if self.explicit and server.faults.hit("duplicate delivery") and sequence not in self.again:
            self.again.append(sequence)

    def _watch(self, sequence: int, at: float) -> None:
        standing = self._looks.get(sequence)
        if standing is not None:
            standing.cancel()
        self._looks[sequence] = self.server.world.at(at, self._look, sequence)

    def _look(self, sequence: int) -> None:
        """Deliver again what was not settled in time."""
        deadline = self.pending.get(sequence)
        if deadline is None:
            return
        now = self.server.world.now
        if now < deadline:
            self._watch(sequence, deadline)
            return
        self.pending[sequence] = now + self._ack_wait_s  # the next look, should nobody pull until then
        self._watch(sequence, now + self._ack_wait_s)
        if sequence not in self.again:
            self.again.append(sequence)
            self.pump()

    def _tell_exceeded(self, sequence: int, deliveries: int) -> None:
        if self.server.faults.hit("lost advisory"):
            return
        body = {
            "type": "io.nats.jetstream.advisory.v1.max_deliver",
            "id": f"{self.name}-{sequence}",
            "timestamp": timestamp(self.server.now_ns()),
            "stream": self.stream.name,
            "consumer": self.name,
            "stream_seq": sequence,
            "deliveries": deliveries,
        }
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{self.stream.name}.{self.name}"
        self.server.publish_own(subject, {}, json.dumps(body).encode())

    # Settlements: whoever sends one speaks for everybody who was ever delivered that message.

    def settle(self, sequence: int, word: bytes) -> None:
        if sequence not in self.pending:
            return
        if word.startswith(b"-NAK"):
            delay_s = json.loads(word[4:]).get("delay", 0) / _NANOSECONDS if len(word) > 5 else 0.0
            if delay_s:
                self.pending[sequence] = self.server.world.now + delay_s
                self._watch(sequence, self.server.world.now + delay_s)
            elif sequence not in self.again:
                self.again.append(sequence)
                self.pump()
        elif word == b"+WPI":
            self.pending[sequence] = self.server.world.now + self._ack_wait_s
        else:
            self.server.on_acked(self, sequence)
            del self.pending[sequence]
            if sequence in self.again:
                self.again.remove(sequence)
            if self.stream.is_work_queue:
                self.stream.remove(sequence)
            else:
                self._settled.append((self.server.world.now, sequence))
            self.pump()

    def forget_recent_acks(self) -> None:
        """Come back from a kill -9: what was settled a moment ago is pending again, its count perhaps lost."""
        now = self.server.world.now
        for at, sequence in self._settled:
            if now - at < _RECENT_S and sequence not in self.pending and self.explicit:
                if self.server.faults.random.random() < 0.5:
                    self.delivered.pop(sequence, None)
                self.pending[sequence] = now + self._ack_wait_s
                self.again.append(sequence)
                self._watch(sequence, now + self._ack_wait_s)
        self._settled.clear()
