"""The projector: brings a file up to the ledger, once or for ever; see `filler` for how rows and position change."""

from __future__ import annotations

import logging
from typing import Final, NoReturn

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from jobledger.ledger.model.codec import Message
from jobledger.projections.errors import DamagedProjectionError, OlderSchemaError, ProjectionTimeoutError
from jobledger.projections.filler import Filler, ProgressCallback, ProjectorConfig, reading, stored_bytes
from jobledger.projections.position import Position, read_position
from jobledger.projections.rebuilds import rebuild

__all__ = ["Position", "ProgressCallback", "Projector", "ProjectorConfig", "read_position"]

_READ_AHEAD_BATCHES: Final = 16
#: While no event comes, a projector checks this often whether its file still exists.
_LOOK_EVERY_S: Final = 1.0
_log: Final = logging.getLogger("jobledger.projections")


class Projector(Filler):
    """Brings one projection file up to its ledger, once (`catch_up`) or for ever (`run`).

    Use it as a context manager. Several may work on one file: each event is applied by the projector that comes first,
    and the others go on from there. Not to be used from two tasks, except that `wait_for` may run beside `run`.
    """

    async def prepare(self, *, mend: bool = False) -> Position:
        """Open the file (an older schema is rebuilt first) and check that ledger and file share their past.

        `mend`: a damaged file of ours is rebuilt, too.

        Raises: PositionMismatchError, PositionArchivedError, EventGapError and the errors of opening.
        """
        try:
            return await super().prepare()
        except (OlderSchemaError, DamagedProjectionError) as error:
            if isinstance(error, DamagedProjectionError) and not mend:
                raise
            await self._rebuild(error)
            return await super().prepare()

    async def _rebuild(self, error: OlderSchemaError | DamagedProjectionError) -> None:
        if isinstance(error, DamagedProjectionError):
            _log.warning("the projection is damaged, and is written from the ledger again: %s", error)
        self.close()
        await rebuild(self._log, self.path, clock=self._clock, layout=self._layout)

    async def run(self) -> NoReturn:
        """Follow the ledger until cancelled; an event is committed `linger_s` after its arrival at the latest.

        A file that was deleted or damaged meanwhile is written again within seconds, even if no event comes.

        Raises: ProjectionError, in all its kinds, and what `Log.read` raises.
        """
        while True:
            position = await self.prepare(mend=True)
            try:
                await self._follow(position.stream_sequence + 1)
            except BaseExceptionGroup as group:
                first = _first_of(group)
                if not isinstance(first, DamagedProjectionError):
                    raise first from group
                await self._rebuild(first)

    async def _follow(self, from_sequence: int) -> None:
        """Apply new events; return when this reader cannot go on from the file's position."""
        send, receive = anyio.create_memory_object_stream[list[Message]](_READ_AHEAD_BATCHES)
        async with anyio.create_task_group() as group:
            group.start_soon(self._feed, from_sequence, send)
            with send, receive:
                while (events := await self._collect(receive)) and self.commit(events):
                    await self._committed()
            group.cancel_scope.cancel()

    async def _feed(self, from_sequence: int, send: MemoryObjectSendStream[list[Message]]) -> None:
        async with reading(self._log, from_sequence, follow=True) as batches:
            async for batch in batches:
                for part in self._parts(batch):
                    await send.send(part)

    async def _collect(self, receive: MemoryObjectReceiveStream[list[Message]]) -> list[Message]:
        """Wait for a first batch, then for more until it is enough or the first one has waited long enough.

        Returns nothing if the file was replaced meanwhile. Raises: DamagedProjectionError.
        """
        events: list[Message] = []
        while not events:
            with anyio.move_on_after(_LOOK_EVERY_S):
                events = list(await receive.receive())
            if not events and not self.is_there():
                return []
        size = stored_bytes(events)
        with anyio.move_on_after(self.config.linger_s):
            while not self._is_enough(events, size):
                batch = await receive.receive()
                events += batch
                size += stored_bytes(batch)
        return events

    async def wait_for(self, stream_sequence: int, *, timeout_s: float = 10.0) -> None:
        """Wait until the rows have the event at `stream_sequence`; `run` must be running in another task.

        Raises: ProjectionTimeoutError.
        """
        with anyio.move_on_after(timeout_s):
            while self._position is None or self._position.stream_sequence < stream_sequence:
                await self._advanced.wait()
            return
        raise ProjectionTimeoutError(
            f"the projection {self.path} did not reach stream sequence {stream_sequence} within {timeout_s:g} s: "
            "see whether its projector runs, with `jobledger projection status`",
        )


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first failure: the task group has two members, and one's failure cancels the other."""
    for member in group.exceptions:
        if not isinstance(member, BaseExceptionGroup):
            return member
    return group
