"""Whatever is wrong with a request: one clear sentence of the right kind, and nothing half-done."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.limits import LIMIT_S
from tests.support.tables import each_row

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidError,
    InvalidInputError,
    InvalidTokenError,
    ServerUnreachableError,
    UnknownTaskError,
    UnsupportedServerError,
)
from jobledger.workers import Worker, WorkerConfig

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.anyio


@dataclasses.dataclass
class Point:
    x: float


@task
async def add(a: int, b: int = 1) -> int:
    return a + b


@task
async def take(value: Any) -> None: ...


@task
async def place(point: Point) -> None: ...


def check_sentence(error: BaseException) -> None:
    text = str(error)
    assert 10 < len(text) < 500
    assert "\n" not in text
    assert "Traceback" not in text


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


BAD_TOKENS = ["a.b", "a*", "a>", "a b", "a\x00", "", "x" * 100, "ä", "a\n", "\u202eabc", "a/b", "$SYS", "."]

Ask = Callable[[Any], Any]  # of a ledger; untyped, since what it asks is wrong


_WRONG_INPUTS: list[tuple[Ask, str]] = [
    (lambda ledger: ledger.enqueue(add, "one"), "int"),
    (lambda ledger: ledger.enqueue(add), "`a`"),
    (lambda ledger: ledger.enqueue(add, 1, 2, 3), "2 positional"),
    (lambda ledger: ledger.enqueue(add, 1, a=2), "twice"),
    (lambda ledger: ledger.enqueue(add, 1, c=3), "c"),
    (lambda ledger: ledger.enqueue(add, 1.5), "int"),
    (lambda ledger: ledger.enqueue(add, None), "null"),
    (lambda ledger: ledger.enqueue(add, True), "bool"),
    (lambda ledger: ledger.enqueue(take, math.nan), "nan"),
    (lambda ledger: ledger.enqueue(take, {"a": [math.inf]}), "inf"),
    (lambda ledger: ledger.enqueue(take, {"a": Point(math.nan)}), "nan"),
    (lambda ledger: ledger.enqueue(place, Point(-math.inf)), "inf"),
    (lambda ledger: ledger.enqueue(take, nested(10_000)), "deeper"),
    (lambda ledger: ledger.enqueue(take, nested(101)), "deeper"),
    (lambda ledger: ledger.enqueue(take, object()), "JSON"),
    (lambda ledger: ledger.enqueue(take, "\ud800"), "Unicode"),
    (lambda ledger: ledger.enqueue(take, {"\ud800": 1}), "Unicode"),
    (lambda ledger: ledger.enqueue(take, {(1, 2): 1}), "JSON"),
    (lambda ledger: ledger.enqueue(add.function, 1), "@task"),
    (lambda ledger: ledger.enqueue("add", 1), "@task"),
]


@each_row(("ask", "words"), _WRONG_INPUTS)
async def test_a_wrong_input_is_refused_before_anything_is_sent(ledger: Ledger, ask: Any, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        await ask(ledger)
    check_sentence(caught.value)
    assert words in str(caught.value)
    assert (await ledger.log.head()).last_sequence == 0


@each_row("token", BAD_TOKENS)
async def test_a_wrong_name_is_refused_at_every_entry(ledger: Ledger, token: str) -> None:
    entries: list[Callable[[], Any]] = [
        lambda: add.options(id=token),
        lambda: add.options(queue=token),
        lambda: task(name=token or " ")(check_sentence),
        lambda: task(queue=token)(check_sentence),
        lambda: WorkerConfig(queues=(token,)),
    ]
    before = (await ledger.log.head()).last_sequence
    for entry in entries:
        with pytest.raises(InvalidTokenError) as caught:
            entry()
        check_sentence(caught.value)
    with pytest.raises(InvalidTokenError):
        await ledger.job(token)
    with pytest.raises(InvalidTokenError):
        await ledger.job("right", queue=token)
    with pytest.raises(InvalidError, match="input 0: job id"):
        await ledger.enqueue_many(add, [{"a": 1}], ids=lambda _: token)
    assert (await ledger.log.head()).last_sequence == before
    assert await (await ledger.enqueue(add, 1)).state() == "queued"  # the connection took no harm


async def test_nesting_that_is_allowed_comes_through(ledger: Ledger) -> None:
    # A first parameter of type Any fits a Context too, so a type checker takes it for one.
    job = await ledger.enqueue(take, nested(90))  # pyright: ignore[reportCallIssue]
    assert (await job.snapshot()).order.input


@each_row(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": 1_001},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": math.nan},
        {"timeout_s": math.inf},
        {"priority": "urgent"},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        add.options(**options)
    check_sentence(caught.value)
    assert next(iter(options)) in str(caught.value)


@each_row(
    "settings",
    [
        {"connect_timeout_s": 0},
        {"append_timeout_s": math.nan},
        {"lease_s": 0.5},
        {"inline_bytes_max": 0},
        {"payload_bytes_max": 1},
        {"ledger_bytes_max": 1},
        {"replicas": 2},
        {"commit": "sometimes"},
        {"enqueue_in_flight_max": 0},
        {"prefetch_max": 0},
        {"prefetch_max": 2.5},
        {"environment": "a.b"},
        {"no_such_setting": 1},
    ],
)
async def test_wrong_settings_are_refused_before_connecting(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidError) as caught:
        async with connect("nats://127.0.0.1:1", **settings):
            pass
    check_sentence(caught.value)


@each_row(
    "config",
    [
        {"concurrency": 0},
        {"concurrency": 2.5},
        {"concurrency": 10_001},
        {"grace_s": -1},
        {"grace_s": math.nan},
        {"ack_wait_s": 0.5},
        {"ack_wait_s": math.nan},
        {"concurrency": 100, "ack_pending_max": 10},
        {"queues": tuple(f"q{n}" for n in range(101))},
    ],
)
def test_wrong_worker_settings_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WorkerConfig(**config)
    check_sentence(caught.value)


async def test_a_worker_without_tasks_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="no task"):
        Worker(ledger, TaskRegistry())


def test_an_unknown_task_is_told_with_those_that_are_known() -> None:
    with pytest.raises(UnknownTaskError, match=r"'subtract'.*add, take"):
        TaskRegistry([add, take]).get("subtract")


@pytest.mark.parametrize("url", ["nats://127.0.0.1:{port}", "127.0.0.1:{port}", "nats://localhost:{port}"])
async def test_no_server_is_a_sentence_that_says_what_to_do(url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can answer there
        address = url.format(port=taken.getsockname()[1])
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(ServerUnreachableError) as caught:
            async with connect(address, connect_timeout_s=2 * LIMIT_S):
                pass
    check_sentence(caught.value)
    assert address in str(caught.value)
    assert "jobledger server" in str(caught.value)
    assert loop.time() - began < LIMIT_S  # it refuses: there is nothing to wait for


@each_row(
    "url",
    [
        "",
        "nats://",
        "http://127.0.0.1:1",
        "nats://127.0.0.1:99999",
        "nats://127.0.0.1:x",
        "nats://[::1",
        "\x00",
        ",",
    ],
)
async def test_an_address_that_is_none_is_a_sentence(url: str) -> None:
    with pytest.raises((ServerUnreachableError, ConfigurationError)) as caught:
        async with connect(url, connect_timeout_s=1.0):
            pass
    check_sentence(caught.value)


async def _answer(greeting: bytes) -> asyncio.Server:
    """Something that listens and says its own first words."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b"\x00\x01\x02\r\n"]
)
async def test_something_else_on_the_port_is_a_sentence_in_time(greeting: bytes) -> None:
    server = await _answer(greeting)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(ServerUnreachableError) as caught:
            async with connect(
                f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", connect_timeout_s=1.0
            ):
                pass
    check_sentence(caught.value)
    server.close()


async def test_an_old_server_is_refused_by_its_version() -> None:
    info = b'INFO {"server_id":"X","version":"2.10.22","jetstream":true,"headers":true,"max_payload":1048576}\r\n'
    server = await _answer(info)
    with pytest.raises(UnsupportedServerError, match=r"2\.10\.22.*2\.12"):
        async with connect(
            f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", connect_timeout_s=LIMIT_S
        ):
            pass
    server.close()
