"""A TCP proxy between clients and nats-server that does what bad networks do, and steals what it is told to.

It reads the server's side message by message, so that nothing but whole messages is missing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, Self, TypeAlias

from tests.support import limits

_LIMIT_S = limits.LIMIT_S
_WHOLE: Final = 1 << 30
_QUEUE_MAX: Final = 10_000

_Queue: TypeAlias = "asyncio.Queue[tuple[float, bytes] | None]"

#: Gets a whole message of the server (its line, its body) and says whether to swallow it.
Steal = Callable[[bytes, bytes], bool]


def is_append_answer(_line: bytes, body: bytes) -> bool:
    """Whether this is the server's word that an append was accepted."""
    return body.startswith(b'{"stream":') and b'"seq":' in body


def is_delivery(line: bytes, _body: bytes) -> bool:
    """Whether this comes from a consumer."""
    return b" $JS.ACK." in line


class Proxy:
    """Listens on a port of its own; every property may change at any time, for all connections."""

    def __init__(self, port: int, chance: random.Random | None = None) -> None:
        self._port = port
        self._chance = chance or random.Random(0)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.delay_s = 0.0  #: of each message, each way
        self.straggle_share = (
            0.0  #: of messages that need a second go, as a lost segment does, and keep the rest waiting
        )
        self.cut_share = 0.0  #: of messages that end their connection instead of being passed on
        self.piece_bytes = _WHOLE  #: 1: byte by byte
        self.to_steal: dict[Steal, int] = {}  #: how many more of what
        self.drop_share: dict[bytes, float] = {}  #: of the client's messages whose line holds these words
        self.repeat_share: dict[bytes, float] = {}
        self.stolen = 0
        self.dropped = 0
        self.repeated = 0
        self.cuts = 0
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        self.delay_s = 0.0
        for writer in self._writers:
            writer.transport.abort()
        async with asyncio.timeout(_LIMIT_S):
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """Break every connection, and take no further one."""
        assert self._server is not None
        self._server.close()
        self.cut()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection."""
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def hold(self) -> None:
        """Pass nothing on any more while all connections look alive: half-open."""
        self._flowing.clear()

    def release(self) -> None:
        """Let what was held flow on."""
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            await self._flowing.wait()
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, to_server]
        try:
            up: _Queue = asyncio.Queue(_QUEUE_MAX)
            down: _Queue = asyncio.Queue(_QUEUE_MAX)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up(reader, up))
                group.create_task(self._pass(up, to_server))
                group.create_task(self._down(from_server, down))
                group.create_task(self._pass(down, writer))
        except* (OSError, asyncio.IncompleteReadError, ValueError):
            pass
        except* RuntimeError:  # uvloop's word for a transport that was aborted meanwhile
            pass
        finally:
            to_server.transport.abort()
            writer.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, queue: _Queue) -> None:
        """From the client towards the server."""
        while line := await reader.readline():
            words = line.split()
            body = b""
            if words and words[0] in {b"PUB", b"HPUB"}:
                body = await reader.readexactly(int(words[-1]) + 2)
            for _ in range(self._times(line, body)):
                await queue.put((self._due_at(), line + body))
        await queue.put(None)

    def _times(self, line: bytes, body: bytes) -> int:
        start = line + body[:16]
        for words, share in self.drop_share.items():
            if words in start and self._chance.random() < share:
                self.dropped += 1
                return 0
        for words, share in self.repeat_share.items():
            if words in start and self._chance.random() < share:
                self.repeated += 1
                return 2
        return 1

    async def _down(self, reader: asyncio.StreamReader, queue: _Queue) -> None:
        """From the server towards the client."""
        while line := await reader.readline():
            words = line.split()
            body = b""
            if words and words[0] in {b"MSG", b"HMSG"}:
                body = await reader.readexactly(int(words[-1]) + 2)
            if not (body and self._is_stolen(line, body)):
                await queue.put((self._due_at(), line + body))
        await queue.put(None)

    def _due_at(self) -> float:
        if not self.delay_s:
            return 0.0
        again = self._chance.random() < self.straggle_share
        return asyncio.get_running_loop().time() + self.delay_s * (3 if again else 1)

    def _is_stolen(self, line: bytes, body: bytes) -> bool:
        for what, left in self.to_steal.items():
            if left and what(line, body):
                self.to_steal[what] -= 1
                self.stolen += 1
                return True
        return False

    async def _pass(self, queue: _Queue, writer: asyncio.StreamWriter) -> None:
        while (item := await queue.get()) is not None:
            due_at, data = item
            wait_s = due_at - asyncio.get_running_loop().time() if due_at else 0.0
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await self._flowing.wait()
            if self.cut_share and self._chance.random() < self.cut_share:
                self.cuts += 1
                break
            size = self.piece_bytes  # it may change meanwhile
            for start in range(0, len(data), size):
                writer.write(data[start : start + size])
                if size < len(data):
                    await asyncio.sleep(0)  # a segment of its own: Nagle's delay is off by default
            await writer.drain()
        raise ConnectionResetError
