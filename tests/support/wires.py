"""Wires: TCP between servers, and between a server and its clients, that can be held without being broken."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

_CHUNK: Final = 1 << 16


class Wire:
    """Passes bytes on, both ways; while it is held nothing comes through, and everything looks alive."""

    def __init__(self, port: int, to: int) -> None:
        """Listen on `port`, pass on to `to`, both of loopback."""
        self.port = port
        self._to = to
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return len(self._tasks)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def close(self) -> None:
        """End every connection, and listen no more."""
        assert self._server is not None
        self._server.close()
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers = [writer]
        try:
            await self._flowing.wait()
            there, to_there = await asyncio.open_connection("127.0.0.1", self._to)
            writers.append(to_there)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, to_there))
                group.create_task(self._pass(there, writer))
        except* (OSError, RuntimeError):  # one side is gone; uvloop says so by a RuntimeError
            pass
        finally:
            for each in writers:
                with contextlib.suppress(RuntimeError):
                    each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
