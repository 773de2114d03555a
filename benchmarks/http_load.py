"""Requests over kept connections, as fast as they are answered: what a benchmark needs of an HTTP client, and no more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

#: What is waited for comes in this time, or the benchmark ends with a TimeoutError.
LIMIT_S: Final = 50.0


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """One connection that is kept; a password in the address is a key that every request has."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
        password = self._place.password
        self._own = [] if password is None else [f"authorization: Bearer {password}"]
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        """Connect."""
        assert self._place.hostname is not None, "a whole address"
        async with asyncio.timeout(LIMIT_S):
            self._reader, self._writer = await asyncio.open_connection(self._place.hostname, self._place.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        if self._writer is not None:
            self._writer.close()

    def send(self, method: str, path: str, body: bytes = b"", headers: Iterable[str] = ()) -> None:
        """Write a request."""
        assert self._writer is not None, "it is connected"
        host = f"host: {self._place.netloc.rpartition('@')[2]}"
        lines = [f"{method} {path} HTTP/1.1", host, *self._own, *headers]
        if body:
            lines.append(f"content-length: {len(body)}")
        self._writer.write("\r\n".join((*lines, "", "")).encode() + body)

    async def head(self) -> Answer:
        """Read an answer up to its body."""
        assert self._reader is not None, "it is connected"
        async with asyncio.timeout(LIMIT_S):
            text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *rest = text.split("\r\n")
        pairs = (line.partition(": ") for line in rest if line)
        headers = {name.lower(): value for name, _, value in pairs}
        return Answer(int(first.split()[1]), headers, b"")

    async def answer(self) -> Answer:
        """Read an answer."""
        assert self._reader is not None, "it is connected"
        head = await self.head()
        async with asyncio.timeout(LIMIT_S):
            body = await self._reader.readexactly(int(head.headers.get("content-length", "0")))
        return head._replace(body=body)

    async def line(self) -> bytes:
        """Read one line of a stream."""
        assert self._reader is not None, "it is connected"
        async with asyncio.timeout(LIMIT_S):
            found = await self._reader.readline()
        if not found:
            raise ConnectionError("the stream has ended")
        return found

    async def ask(self, method: str, path: str, body: bytes = b"", headers: Iterable[str] = ()) -> Answer:
        """Send a request and read its answer."""
        self.send(method, path, body, headers)
        return await self.answer()


class Load(NamedTuple):
    """What was asked for, and how long each answer took."""

    requests: int
    took_s: float
    late_s: list[float]  #: of each answer, sorted

    def at(self, share: float) -> float:
        """Return the time within which this share was answered."""
        return self.late_s[min(len(self.late_s) - 1, int(len(self.late_s) * share))]


async def load(
    url: str, connections: int, count: int, request: Callable[[int], tuple[str, str, bytes]], status: int
) -> Load:
    """Send requests over some connections, each as soon as the one before it was answered."""
    numbers = iter(range(count))
    late_s: list[float] = []

    async def one() -> None:
        async with Connection(url) as connection:
            for number in numbers:
                method, path, body = request(number)
                began = time.perf_counter()
                answer = await connection.ask(method, path, body, ("content-type: application/json",))
                late_s.append(time.perf_counter() - began)
                assert answer.status == status, (answer.status, answer.body[:500])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(one())
    return Load(count, time.perf_counter() - began, sorted(late_s))
