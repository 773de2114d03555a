"""Reading in windows: bounded in bytes, and neither a large message nor a lost server or prefix skips an event."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.conftest import ServerFactory
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.log_entries import chain_of, entry, event, fill
from tests.support.tables import each_row

from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import SequenceGapError, ServerUnreachableError
from jobledger.ledger.model.log import Log
from jobledger.ledger.nats import ordered_reader as feed
from jobledger.ledger.nats import pull_window as window
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.nats.ordered_reader import OrderedReader
from jobledger.ledger.nats.parser import Raw
from jobledger.ledger.nats.pull import time_of, told_time
from jobledger.ledger.nats.pull_window import PullWindow
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio
KIB = 1024
HEARTBEAT_S = 10.0


class Watched(PullWindow):
    """Notes every window made, and the size of every message taken, as the server counts it."""

    made: list[Watched] = []  # noqa: RUF012 - emptied for each test
    sizes: list[int] = []  # noqa: RUF012

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.made.append(self)

    async def take(self) -> list[Raw]:
        taken = await super().take()
        self.sizes.extend(_size(raw) for raw in taken)
        return taken


def _size(raw: Raw) -> int:
    return raw.wire_bytes


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Watched]]:
    monkeypatch.setattr(feed, "PullWindow", Watched)
    yield Watched
    Watched.made.clear()
    Watched.sizes.clear()


@pytest.fixture
async def ledger(nats_server: EmbeddedServer) -> AsyncIterator[Ledger]:
    settings: dict[str, Any] = {"environment": f"t_{secrets.token_hex(6)}", "ledger_bytes_max": 64 << 20}
    async with connect(nats_server.url, **settings) as opened:
        yield opened


async def _read(log: Log) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(LIMIT_S), aclosing(log.read_messages()) as batches:
        async for batch in batches:
            found += batch
    return found


async def _append_sized(log: Log, sizes_kib: list[int]) -> list[bytes]:
    entries = [
        entry(log, 0, event(f"of-{number:04}", text="x" * (size * KIB)))
        for number, size in enumerate(sizes_kib)
    ]
    for each in entries:
        await log.append([each])
    return [each.data for each in entries]


async def test_messages_larger_than_a_window_come_in_their_turn(
    ledger: Ledger, watched: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await _append_sized(ledger.log, [1, 300, 1, 1, 90, 30, 200, 201, 1])
    monkeypatch.setattr(window, "_BYTES", 64 * KIB)
    assert [message.data for message in await _read(ledger.log)] == stored
    assert len(watched.made) == 1, "no message was taken for a loss"


async def test_a_window_that_is_filled_to_its_last_byte_is_followed_by_another(
    ledger: Ledger, watched: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server says nothing then: a reader that does not count waits for a sign of life in vain.

    def seldom(_: object) -> float:
        return HEARTBEAT_S

    monkeypatch.setattr(feed, "heartbeat_for", seldom)
    stored = await _append_sized(ledger.log, [1] * 40)
    await _read(ledger.log)
    sizes = set(watched.sizes[:9])
    assert len(sizes) == 1, "each is as large as the others"
    for whole in (1, 3, 8):
        for more in (-1, 0, 1):
            watched.made.clear()
            monkeypatch.setattr(window, "_BYTES", whole * max(sizes) + more)
            began = asyncio.get_running_loop().time()
            assert [message.data for message in await _read(ledger.log)] == stored
            assert len(watched.made) == 1
            assert asyncio.get_running_loop().time() - began < HEARTBEAT_S


async def test_no_more_than_a_window_is_read_ahead_of_a_slow_reader(
    ledger: Ledger, watched: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await _append_sized(ledger.log, [100] * 60)
    limit = 1_000 * KIB
    monkeypatch.setattr(window, "_BYTES", limit)
    found: list[bytes] = []
    async with asyncio.timeout(LIMIT_S), aclosing(ledger.log.read_messages()) as batches:
        async for batch in batches:
            found += [message.data for message in batch]
            (one,) = watched.made
            waiting = one.messages + one._held  # pyright: ignore[reportPrivateUsage]
            assert sum(map(_size, waiting)) <= limit
            await ledger.log.head()  # its answer comes behind what the server has sent until then
            assert sum(map(_size, one.messages + one._held)) <= limit  # pyright: ignore[reportPrivateUsage]
    assert found == stored


async def test_a_server_killed_in_the_middle_of_a_window_costs_no_event(
    server_factory: ServerFactory, watched: type[Watched]
) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, ledger_bytes_max=64 << 20) as ledger:
        await fill(ledger.log, 6_000)
        seen: list[int] = []
        async with asyncio.timeout(LIMIT_S), aclosing(ledger.log.read_messages()) as batches:
            async for batch in batches:
                seen += [message.stream_sequence for message in batch]
                if len(watched.made) == 1:
                    assert server.pid is not None
                    os.kill(server.pid, signal.SIGKILL)
                    await server.stop()
                    await server.start()
        assert seen == list(range(1, 6_001))
        assert len(watched.made) >= 2


@pytest.mark.unsound_ledger("it is purged by hand")
async def test_a_purge_in_the_middle_of_a_read_is_told_where_it_begins(ledger: Ledger) -> None:
    await fill(ledger.log, 8_000)
    seen: list[int] = []

    async def read() -> None:
        async with asyncio.timeout(LIMIT_S), aclosing(ledger.log.read_messages()) as batches:
            async for batch in batches:
                if not seen:
                    await ledger.log.purge(7_000)
                seen.extend(message.stream_sequence for message in batch)

    with pytest.raises(SequenceGapError, match="is missing: the ledger goes on with 7001") as caught:
        await read()
    assert seen == list(range(1, len(seen) + 1))
    assert caught.value.stream_sequence == len(seen) + 1
    assert caught.value.next_sequence == 7_001


async def test_a_purge_of_all_that_is_left_ends_a_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The consumer had counted what is gone now, and would say for ever that it is there and has nothing.
    ledger.connection.prefetch_max = 100
    await fill(ledger.log, 1_000)
    of_one_queue = f"{chain_of(ledger.log).rsplit('.', 2)[0]}.>"
    seen: list[int] = []

    async def read(subject: str | None) -> None:
        seen.clear()
        batches = ledger.log.read_messages(subject=subject)
        async with asyncio.timeout(LIMIT_S), aclosing(batches):
            async for batch in batches:
                if not seen:
                    await ledger.log.purge((await ledger.log.head()).last_sequence)
                seen.extend(message.stream_sequence for message in batch)

    await read(of_one_queue)
    # How much of the first window had come before the purge, and how much was on its way, is the machine's affair.
    assert seen == list(range(1, len(seen) + 1))
    assert 0 < len(seen) < 1_000
    entries = [entry(ledger.log, 0, event(f"more-{number}")) for number in range(500)]
    await ledger.log.append(entries)
    with pytest.raises(SequenceGapError, match="is missing: the ledger goes on with 1501"):
        await read(None)


@pytest.fixture
def in_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server say of its consumers what a cluster says."""
    create = OrderedReader._create  # pyright: ignore[reportPrivateUsage]

    async def of_a_cluster(self: OrderedReader) -> ConsumerInfo:
        return msgspec.structs.replace(await create(self), cluster={"name": "c", "leader": "n1"})

    monkeypatch.setattr(OrderedReader, "_create", of_a_cluster)


@pytest.mark.usefixtures("in_cluster")
@pytest.mark.parametrize("is_filtered", [False, True])
async def test_a_consumer_whose_replica_lags_is_replaced_and_not_believed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, is_filtered: bool
) -> None:
    """In a cluster it may count on a server that has not yet what the stream's leader has."""
    await fill(ledger.log, 500)
    believed: list[bool] = []
    create, pending_after = OrderedReader._create, feed._pending_after  # pyright: ignore[reportPrivateUsage]

    async def lagging(self: OrderedReader) -> ConsumerInfo:
        made = await create(self)
        believed.append(len(believed) >= 2)
        return made if believed[-1] else msgspec.structs.replace(made, pending=0)

    def ends_early(raw: Raw) -> int:
        return 0 if len(believed) < 4 else pending_after(raw)

    ledger.connection.prefetch_max = 100
    monkeypatch.setattr(feed, "_RETRY_S", 0.01)
    monkeypatch.setattr(OrderedReader, "_create", lagging)
    monkeypatch.setattr(feed, "_pending_after", ends_early)
    subject = f"{chain_of(ledger.log).rsplit('.', 2)[0]}.>" if is_filtered else None
    seen: list[int] = []
    async with (
        asyncio.timeout(LIMIT_S),
        aclosing(ledger.log.read_messages(subject=subject)) as batches,
    ):
        async for batch in batches:
            seen.extend(message.stream_sequence for message in batch)
    assert seen == list(range(1, 501))
    assert believed == [False, False, True, True]


@pytest.mark.usefixtures("in_cluster")
async def test_a_leader_that_cannot_tell_is_asked_again_and_not_taken_for_the_end(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cluster answers while it elects one, which is when a consumer's replica lags."""
    await fill(ledger.log, 300)
    electing = {
        "error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}
    }
    asked: list[str] = []
    elections = [2]
    pending_after = feed._pending_after  # pyright: ignore[reportPrivateUsage]

    ask = Inbox.ask

    async def answer(inbox: Inbox, call: str, payload: object, *, timeout_s: float) -> tuple[bytes, bytes]:
        if call.startswith("$JS.API.STREAM.MSG.GET."):
            asked.append(call)
            if len(asked) <= elections[-1]:
                return msgspec.json.encode(electing), b""
        return await ask(inbox, call, payload, timeout_s=timeout_s)

    def ends_early(raw: Raw) -> int:
        return pending_after(raw) if len(asked) >= elections[-1] else 0

    ledger.connection.prefetch_max = 100
    monkeypatch.setattr(feed, "_RETRY_S", 0.01)
    monkeypatch.setattr(Inbox, "ask", answer)
    monkeypatch.setattr(feed, "_pending_after", ends_early)
    assert [message.stream_sequence for message in await _read(ledger.log)] == list(range(1, 301))
    assert len(asked) == 2
    elections.append(1_000_000)  # and it never ends: the reader is told
    monkeypatch.setattr(feed, "_FINITE_PATIENCE_S", 0.1)
    with pytest.raises(
        ServerUnreachableError,
        match=r"read: the ledger's end is not known: the servers have no leader for .*JetStream system",
    ):
        _ = [batch async for batch in ledger.log.read_messages(subject=chain_of(ledger.log, "nobody"))]


@pytest.mark.parametrize("asks", [False, True])
async def test_a_read_ends_where_a_filter_fits_nothing_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, *, asks: bool
) -> None:
    """A single server has no leader to be asked."""
    if asks:
        request.getfixturevalue("in_cluster")
    await fill(ledger.log, 10)
    made: list[str] = []
    ask = Inbox.ask

    async def noted(inbox: Inbox, call: str, payload: object, *, timeout_s: float) -> tuple[bytes, bytes]:
        made.append(".".join(call.removeprefix("$JS.API.").split(".")[:3]))
        return await ask(inbox, call, payload, timeout_s=timeout_s)

    monkeypatch.setattr(Inbox, "ask", noted)
    for subject in (f"{ledger.names.ledger_root}.lock.>", ledger.names.all_of_type("cancelled")):
        assert [batch async for batch in ledger.log.read_messages(subject=subject)] == []
    stream = ledger.names.ledger_stream
    assert made.count(f"CONSUMER.CREATE.{stream}") == 2
    assert made.count("STREAM.MSG.GET") == 2 * asks
    # Both are deleted, long before the server would forget them by itself.
    async with asyncio.timeout(feed._INACTIVE_S / 2):  # pyright: ignore[reportPrivateUsage]
        while await _consumers(ledger):
            await asyncio.sleep(0.01)


async def _consumers(ledger: Ledger) -> int:
    info = await api(ledger.inbox, f"STREAM.INFO.{ledger.names.ledger_stream}", {})
    return int(info["state"]["consumer_count"])


def _raw(log: Log, sequence: int) -> Raw:
    one = entry(log, 0, event(f"j{sequence}"))
    reply = f"$JS.ACK.LEDGER.c.1.{sequence}.{sequence}.1795278572698392034.5".encode()
    return Raw(one.subject.encode(), reply, one.data, len(one.data))


async def test_a_gap_ends_a_dense_read_with_what_came_before(ledger: Ledger) -> None:
    options: dict[str, Any] = {"from_sequence": 1, "from_time": None, "subject": None}
    dense, sparse = (
        OrderedReader(ledger.connection, ledger.inbox, "LEDGER", dense=is_dense, **options)
        for is_dense in (True, False)
    )
    raws = [_raw(ledger.log, sequence) for sequence in (1, 2, 4, 5)]
    messages, problem = dense._read(raws)  # pyright: ignore[reportPrivateUsage]
    assert [message.stream_sequence for message in messages] == [1, 2]
    assert isinstance(problem, SequenceGapError)
    assert (problem.stream_sequence, problem.next_sequence) == (3, 4)
    messages, problem = sparse._read(raws)  # pyright: ignore[reportPrivateUsage]
    assert [message.stream_sequence for message in messages] == [1, 2, 4, 5]
    assert problem is None
    # The acknowledgement subjects of nats-server 2.16 and later name domain and account before the stream.
    newer = [
        Raw(raw.subject, raw.reply.replace(b"$JS.ACK.", b"$JS.ACK._.hash."), raw.data, raw.wire_bytes)
        for raw in raws
    ]
    assert sparse._read(newer) == (messages, None)  # pyright: ignore[reportPrivateUsage]


@each_row("micros", [0, 1, 999_999, 1_795_278_572_698_392, 4_102_444_799_999_999])
def test_a_stored_time_is_cut_to_the_microsecond(micros: int) -> None:
    seconds, rest = divmod(micros, 1_000_000)
    exact = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
    for nanos in (0, 1, 999):
        ns = micros * 1_000 + nanos
        assert time_of(ns) == exact
        assert not seconds or told_time(b"%d" % ns) == exact
