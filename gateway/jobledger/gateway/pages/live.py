"""Live pages: the position of the rows is read once for all listeners, and sent to each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from jobledger.gateway.parts import Gateway
from jobledger.gateway.shares import opened
from jobledger.ledger.model.errors import LedgerError
from jobledger.projections import ProjectionError

LOOK_S: Final = 0.75  #: between two looks
BEAT_S: Final = 15.0  #: a line that says nothing, so that proxies keep the stream
RETRY_MS: Final = 2000  #: after which a browser connects again


class Pulse:
    """Follows the position of the rows for as long as somebody listens."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._listeners: set[asyncio.Queue[int]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._position = 0

    @property
    def position(self) -> int:
        """The position that was sent last; 0 before anybody listened."""
        return self._position

    async def beats(self) -> AsyncGenerator[bytes, None]:
        """Give server-sent events, one for each new position. Raises: ProblemError (SHARE_USED, BUSY), at the first."""
        with opened("streams"):
            async with contextlib.aclosing(self._beats()) as beats:
                async for each in beats:
                    yield each

    async def _beats(self) -> AsyncGenerator[bytes, None]:
        life, heard = self._gateway.life, asyncio.Queue[int](maxsize=1)
        self._listeners.add(heard)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            if self._position:
                yield _event(self._position)
            while not life.stopping.is_set():
                said = b": here\n\n"
                with life.waiting(BEAT_S):
                    said = _event(await heard.get())
                yield said
        finally:
            self._listeners.discard(heard)

    async def _look(self) -> None:
        """Give each new position to every listener; it replaces one that the listener has not taken."""
        while self._listeners and not self._gateway.life.stopping.is_set():
            with contextlib.suppress(LedgerError, ProjectionError):
                async with self._gateway.projection.opened() as view:
                    position = view.store.position().stream_sequence
                if position != self._position:
                    self._position = position
                    for each in self._listeners:
                        _put_newest(each, position)
            await asyncio.sleep(LOOK_S)


def _put_newest(queue: asyncio.Queue[int], position: int) -> None:
    with contextlib.suppress(asyncio.QueueEmpty):
        queue.get_nowait()
    queue.put_nowait(position)


def _event(position: int) -> bytes:
    return f"id: {position}\nevent: advanced\ndata: {position}\n\n".encode()
