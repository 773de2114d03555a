"""The server: what arrives on the wire, and what JetStream does about it, on its own clock."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from tests.model.simulation.consumers import Consumer
from tests.model.simulation.faults import Faults
from tests.model.simulation.loop import World
from tests.model.simulation.streams import (
    LedgerStream,
    Message,
    Stream,
    header_block,
    matcher,
    nanoseconds,
    timestamp,
)
from tests.model.simulation.wire import Sent, SimConnection

from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.durability import Durability
from jobledger.ledger.nats.streams import specifications

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_OF = "Nats-Expected-Last-Subject-Sequence-Subject"
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.encode
_NOBODY = b"NATS/1.0 503\r\n\r\n"


class ServerClock:
    """The server's wall clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.offset_s = 0.0

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._world.now + self.offset_s)

    def monotonic(self) -> float:
        return self._world.now


class Server:
    """One nats-server with JetStream."""

    def __init__(
        self, world: World, faults: Faults, *, lease_s: float, durability: Durability | None = None
    ) -> None:
        self.world = world
        self.faults = faults
        self.clock = ServerClock(world)
        self.names = Names()
        self.log = MemoryLog(names=self.names, clock=self.clock)
        self.connections: list[SimConnection] = []
        self.streams: dict[str, Stream] = {}
        self.on_stored: Callable[[int], None] = lambda sequence: None
        self.on_acked: Callable[[Consumer, int], None] = lambda consumer, sequence: None
        self.deliveries_max: int | None = None  #: of the consumers of work, whatever they are asked to be
        self._blocks: dict[int, bytes] = {}  # header lines of the ledger's messages, which never change
        self._staged: dict[str, list[Entry]] = {}
        self._stores: list[tuple[Callable[[str], Any], Stream]] = []
        self._random = world.random.random
        self.durability = durability
        for name, config in _specified(self.names, lease_s):
            self._add(name, config)
        self.ledger = self.streams[self.names.ledger_stream]

    def _add(self, name: str, config: dict[str, Any]) -> Stream:
        if name == self.names.ledger_stream:
            stream: Stream = LedgerStream(name, config, self.now_ns, self.log)
        else:
            stream = Stream(name, config, self.now_ns)
        self.streams[name] = stream
        self._stores += [(matcher(subject), stream) for subject in config.get("subjects", ())]
        return stream

    def now_ns(self) -> int:
        return nanoseconds(self.clock.now())

    def latency(self) -> float:
        return 0.0002 + 0.002 * self._random()

    def lose_consumer(self, stream: Stream, name: str) -> None:
        """Delete a consumer, as an operator might by mistake."""
        stream.consumers.pop(name).delete()

    def lose_stream(self, name: str) -> None:
        """Delete a stream with its consumers; whoever needs it makes it again."""
        stream = self.streams.pop(name, None)
        if stream is not None:
            for consumer in list(stream.consumers):
                self.lose_consumer(stream, consumer)
            self._stores = [each for each in self._stores if each[1] is not stream]

    # What arrives.

    def receive(self, sent: Sent) -> None:
        if sent.connection.generation != sent.generation:
            return
        if sent.subject.startswith("$JS.ACK."):
            self._on_ack(sent.subject, sent.data)
            return
        if self.faults.active:
            if self.faults.hit("lost request"):
                return
            if self.faults.hit("delayed request"):
                delay = 0.01 * 600 ** self._random()  # 10 ms to 6 s: beyond the limit of an answer
                self.world.after(delay, self._process, sent)
                return
        self._process(sent)

    def _process(self, sent: Sent) -> None:
        subject = sent.subject
        if subject.startswith("$JS.API."):
            self._api(sent)
            return
        stream = self._store_of(subject)
        if stream is None:
            heard = self._core(subject, sent.data)
            if sent.reply and not heard:
                self._answer(sent, _NOBODY, b"")
            return
        answer = self._publish(stream, subject, _parse(sent.headers), sent.data)
        if sent.reply and answer is not None:
            self._answer(sent, b"", answer)

    def _answer(self, sent: Sent, headers: bytes, data: bytes) -> None:
        if self.faults.active:
            if self.faults.hit("lost reply"):
                return
            if self.faults.hit("delayed reply"):
                self.world.after(0.01 * 800 ** self._random(), _answer_now, sent, headers, data)
                return
        _answer_now(sent, headers, data)

    def _store_of(self, subject: str) -> Stream | None:
        if subject.startswith("ledger."):
            return self.ledger
        for fits, stream in self._stores:
            if fits(subject):
                return stream
        return None

    def _core(self, subject: str, data: bytes) -> bool:
        heard = False
        for connection in list(self.connections):
            prefix = subject.rpartition(".")[0]
            if subject in connection.handlers or prefix in connection.handlers:
                connection.answer(subject, "", b"", data)
                heard = True
        return heard

    def _on_ack(self, subject: str, word: bytes) -> None:
        if self.faults.hit("lost ack"):
            return
        parts = subject.split(".")
        stream = self.streams.get(parts[2])
        consumer = stream.consumers.get(parts[3]) if stream is not None else None
        if consumer is not None:
            consumer.settle(int(parts[5]), word)

    def forget(self, connection: SimConnection) -> None:
        for stream in self.streams.values():
            for consumer in stream.consumers.values():
                consumer.forget(connection)

    # Publishing.

    def publish_own(self, subject: str, headers: dict[str, str], data: bytes) -> None:
        """Publish what the server itself says: advisories, schedules that fire."""
        stream = self._store_of(subject)
        if stream is not None:
            self._publish(stream, subject, headers, data)

    def _publish(self, stream: Stream, subject: str, headers: dict[str, str], data: bytes) -> bytes | None:
        if stream is self.ledger:
            return self._append(subject, headers, data)
        if _EXPECTED in headers:
            last = stream.last_of_filter(headers.get(_EXPECTED_OF, subject))
            if last != int(headers[_EXPECTED]):
                return _refused(last)
        sequence = stream.store(subject, headers, data)
        self._handed_out(stream, subject, sequence)
        if "Nats-Schedule" in headers:
            self._schedule(stream, sequence, headers)
        return f'{{"stream":"{stream.name}","seq":{sequence}}}'.encode()

    def _append(self, subject: str, headers: dict[str, str], data: bytes) -> bytes | None:
        expected = headers.get(_EXPECTED)
        entry = Entry(
            subject, data, headers.get(_EXPECTED_OF, subject), None if expected is None else int(expected)
        )
        batch = headers.get("Nats-Batch-Id")
        if batch is None:
            entries = [entry]
        else:
            entries = self._staged.setdefault(batch, [])
            if entry.expected is None:
                entry = Entry(subject, data, _chain_in(entries, subject), None)
            entries.append(entry)
            if "Nats-Batch-Commit" not in headers:
                return None
            del self._staged[batch]
            if len(entries) != int(headers["Nats-Batch-Sequence"]):
                return b'{"error":{"code":400,"err_code":10176,"description":"batch is incomplete"}}'
        try:
            first = self.log._store(entries)
        except WrongSequenceError as error:
            return _refused(self.log._last_of(error.chain))
        for offset, each in enumerate(entries):
            self.on_stored(first + offset)
            self._handed_out(self.ledger, each.subject, first + offset)
            self._source(first + offset, each)
        return f'{{"stream":"{self.ledger.name}","seq":{first + len(entries) - 1}}}'.encode()

    def _handed_out(self, stream: Stream, subject: str, sequence: int) -> None:
        for consumer in list(stream.consumers.values()):
            if consumer.fits(subject):
                consumer.add(sequence)

    def _source(self, sequence: int, entry: Entry) -> None:
        """Copy into the streams that have the ledger as their source."""
        for stream in self.streams.values():
            for source in stream.config.get("sources") or ():
                filters = [source.get("filter_subject") or ">"]
                filters = [each["src"] for each in source.get("subject_transforms") or ()] or filters
                if any(matcher(each)(entry.subject) for each in filters):
                    copied = stream.store(entry.subject, {}, entry.data)
                    self._handed_out(stream, entry.subject, copied)

    # Schedules: never early by the server's clock.

    def _schedule(self, stream: Stream, sequence: int, headers: dict[str, str]) -> None:
        assert headers["Nats-Schedule"].startswith("@at "), headers["Nats-Schedule"]
        due = datetime.fromisoformat(headers["Nats-Schedule"][4:])
        delay = max(0.0, (due - self.clock.now()).total_seconds())
        delay += 0.25 * self._random()  # it fires four times a second
        if self.faults.hit("late timer"):
            delay += 0.01 * 500 ** self._random()
        self.world.after(delay, self._fire, stream, sequence, due)

    def _fire(self, stream: Stream, sequence: int, due: datetime) -> None:
        message = stream.message(sequence) if self.streams.get(stream.name) is stream else None
        if message is None:  # replaced, or gone with its stream
            return
        left = (due - self.clock.now()).total_seconds()
        if left > 0:  # the clock was set back
            self.world.after(left, self._fire, stream, sequence, due)
            return
        stream.remove(sequence)
        target = message.headers["Nats-Schedule-Target"]
        kept = {name: text for name, text in message.headers.items() if not name.startswith("Nats-")}
        kept |= {"Nats-Scheduler": message.subject, "Nats-Schedule-Next": "purge"}
        self.publish_own(target, kept, message.data)
        if self.faults.hit("duplicate timer"):
            self.publish_own(target, kept, message.data)

    # The API.

    def _api(self, sent: Sent) -> None:
        parts = sent.subject.split(".")[2:]
        if parts[:3] == ["CONSUMER", "MSG", "NEXT"]:
            asked = self.streams.get(parts[3])
            consumer = asked.consumers.get(parts[4]) if asked is not None else None
            if consumer is None:
                self._answer(sent, _NOBODY, b"")
            elif sent.connection.generation == sent.generation:
                consumer.ask(sent.connection, sent.reply, sent.data)
            return
        body = _decode(sent.data) if sent.data else {}
        if parts[0] == "DIRECT":
            self._direct_get(sent, parts, body)
            return
        call = self._stream_call if parts[0] == "STREAM" else self._consumer_call
        found = call(parts[1:], body)
        if sent.reply:
            self._answer(sent, b"", _encode(found))

    def _stream_call(self, parts: list[str], body: dict[str, Any]) -> dict[str, Any]:
        match parts:
            case ["INFO", name]:
                return self._stream_info(name, body)
            case ["CREATE", name]:
                if name not in self.streams:  # else it is the same, as its maker will check
                    self._add(name, {key: value for key, value in body.items() if key != "name"})
                return self._stream_info(name, {})
            case ["MSG", "GET", name]:
                return self._get_at_leader(self.streams[name], body)
            case _:
                raise AssertionError(f"the simulated server has no STREAM.{'.'.join(parts)}")

    def _stream_info(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if name not in self.streams:
            return _error(404, 10059, "stream not found")
        stream = self.streams[name]
        state = stream.state()
        if "subjects_filter" in body:
            state["subjects"] = stream.subjects(body["subjects_filter"])
        return {"config": {"name": name, **stream.config}, "state": state, "created": stream.created}

    def _consumer_call(self, parts: list[str], body: dict[str, Any]) -> dict[str, Any]:
        call, stream = parts[0], self.streams.get(parts[1])
        if stream is None:
            return _error(404, 10059, "stream not found")
        match call:
            case "INFO":
                found = stream.consumers.get(parts[2])
                return _error(404, 10014, "consumer not found") if found is None else found.info()
            case "CREATE":
                return self._create_consumer(stream, body["config"])
            case "DELETE":
                stream.consumers.pop(parts[2], None)
                return {"success": True}
            case "NAMES":
                return {"consumers": sorted(stream.consumers), "total": len(stream.consumers)}
            case "LIST":
                infos = [each.info() for each in stream.consumers.values()]
                return {"consumers": infos, "total": len(infos), "offset": 0, "limit": 256}
            case _:
                raise AssertionError(f"the simulated server has no CONSUMER.{'.'.join(parts)}")

    def _get_at_leader(self, stream: Stream, body: dict[str, Any]) -> dict[str, Any]:
        sequence = stream.last_of(body["last_by_subj"]) if "last_by_subj" in body else int(body["seq"])
        message = stream.message(sequence)
        if message is None:
            return _error(404, 10037, "no message found")
        data = base64.b64encode(message.data).decode()
        stored = {
            "subject": message.subject,
            "seq": sequence,
            "data": data,
            "time": timestamp(message.stored_ns),
        }
        return {"message": stored}

    def _create_consumer(self, stream: Stream, config: dict[str, Any]) -> dict[str, Any]:
        name = (
            config.get("durable_name")
            or config.get("name")
            or f"own{len(stream.consumers)}-{self.world.steps}"
        )
        if name.startswith("work_") and self.deliveries_max is not None:
            config = {**config, "max_deliver": self.deliveries_max}
        if name not in stream.consumers:
            stream.consumers[name] = Consumer(self, stream, name, config)
        return stream.consumers[name].info()

    def _direct_get(self, sent: Sent, parts: list[str], body: dict[str, Any]) -> None:
        stream = self.streams[parts[2]]
        if self.faults.hit("lost reply"):
            return
        by_subject = body.get("last_by_subj") or (".".join(parts[3:]) if len(parts) > 3 else None)
        if by_subject is not None:
            sequences = [] if self.faults.hit("stale read") else [stream.last_of(by_subject)]
        elif "multi_last" in body:
            sequences = sorted(found for each in body["multi_last"] if (found := stream.last_of(each)))
        elif "next_by_subj" in body:
            start = int(body.get("seq") or 1)
            sequences = stream.sequences(body["next_by_subj"], start)[: int(body.get("batch") or 1)]
        else:
            sequences = [int(body["seq"])]
        if stream is self.ledger and self.faults.hit("stale read"):  # the last few events are not there yet
            head = len(self.log._kept) - self.faults.random.randint(1, 4)
            sequences = [number for number in sequences if number <= head]
        answers = [each for number in sequences if (each := self._stored(stream, number)) is not None]
        if not answers:
            answers = [(b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")]
        elif "batch" in body or "multi_last" in body:
            answers.append((b"NATS/1.0 204 EOB\r\n\r\n", b""))
        delay = 0.01 * 800 ** self._random() if self.faults.hit("delayed reply") else 0.0
        for headers, data in answers:  # together, as one server sends them
            if delay:
                self.world.after(delay, _answer_now, sent, headers, data)
            else:
                _answer_now(sent, headers, data)

    def _stored(self, stream: Stream, sequence: int) -> tuple[bytes, bytes] | None:
        message = stream.message(sequence)
        if message is None:
            return None
        if stream is self.ledger:
            block = self._blocks.get(sequence)
            if block is None:
                block = self._blocks[sequence] = _block_of(stream, sequence, message)
            return block, message.data
        return _block_of(stream, sequence, message), message.data


def _block_of(stream: Stream, sequence: int, message: Message) -> bytes:
    return header_block(
        message.headers,
        Stream=stream.name,
        Subject=message.subject,
        Sequence=str(sequence),
        Time_Stamp=timestamp(message.stored_ns),
    )


def _specified(names: Names, lease_s: float) -> list[tuple[str, dict[str, Any]]]:
    specs = specifications(names, ledger_bytes_max=1 << 30, lease_s=lease_s, replicas=1)
    return [(spec.name, spec.config) for spec in specs]


def _answer_now(sent: Sent, headers: bytes, data: bytes) -> None:
    if sent.connection.generation == sent.generation:
        sent.connection.answer(sent.reply, "", headers, data)


def _parse(block: bytes) -> dict[str, str]:
    if not block:
        return {}
    lines = block.decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines if line)


def _chain_in(entries: list[Entry], subject: str) -> str:
    """Return the chain of an earlier entry of the batch that a subject belongs to."""
    for entry in entries:
        if subject.startswith(entry.chain[:-1]):
            return entry.chain
    return "?"  # it was lost on the way: the batch is incomplete


def _refused(last: int) -> bytes:
    return _error_bytes(400, 10071, f"wrong last sequence: {last}")


def _error_bytes(code: int, number: int, text: str) -> bytes:
    return _encode(_error(code, number, text))


def _error(code: int, number: int, text: str) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": number, "description": text}}
