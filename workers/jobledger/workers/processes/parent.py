"""The parent of a process, as that process sees it: a supervisor, or `jobledger up` as the parent of its gateway.

The process tells its identity before it acts under it, that it is ready, and that its event loop runs. The parent tells
it when to stop.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

import anyio
import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.subjects import check_token
from jobledger.workers.processes.line import Line
from jobledger.workers.processes.messages import Beat, BrokenFrameError, Identity, Ready, Stop

BEAT_S: Final = 1.0

#: The messages of such a process.
SaidBySupervised = Beat | Identity | Ready
FROM_SUPERVISED: Final[msgspec.json.Decoder[SaidBySupervised]] = msgspec.json.Decoder(SaidBySupervised)
_FROM_PARENT: Final[msgspec.json.Decoder[Stop]] = msgspec.json.Decoder(Stop)


def supervised(name: str, descriptor: int) -> tuple[str, str]:
    """Return the words that tell a command of ours who its parent is, and which descriptor is its line."""
    return "--supervised", f"{name}:{descriptor}"


class Parent:
    """The parent; messages go both ways within `connected`."""

    def __init__(self, words: str) -> None:
        """Take the line; `words` is `NAME:DESCRIPTOR`, as the parent put it on the command line.

        Raises: ConfigurationError, InvalidTokenError.
        """
        name, _, number = words.rpartition(":")
        self.identity = check_token("supervisor", name)  #: the parent's, for `WorkerConfig.supervisor`
        try:
            self._socket = socket.socket(fileno=int(number))
        except (ValueError, OSError) as error:
            message = f"{words!r} names no connection to a supervisor: only a supervisor can give one"
            raise ConfigurationError(message) from error
        self._socket.set_inheritable(False)  # a task's own child processes must not keep the line open
        self._line: Line[Stop] | None = None

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncGenerator[None, None]:
        """Speak over the line for the length of the block."""
        self._line = line = await Line[Stop].over(self._socket, _FROM_PARENT)
        try:
            yield
        finally:
            self._line = None
            line.abort()  # messages that were not sent are dropped

    def announce(self, identity: str) -> None:
        """Tell an identity, so that the parent can end that lease once this process is gone."""
        self._say(Identity(name=identity))

    def ready(self, facts: Mapping[str, str] | None = None) -> None:
        """Tell that this process has begun its work, and what the parent has to know of it."""
        self._say(Ready(facts=dict(facts or {})))

    def _say(self, message: msgspec.Struct) -> None:
        assert self._line is not None, "within `connected`"
        self._line.send(message)

    async def watch(
        self,
        on_stop: Callable[[], None],
        on_now: Callable[[], None],
        on_gone: Callable[[], None] | None = None,
    ) -> None:
        """Call `on_stop` and `on_now` when the parent asks, `on_gone` (or `on_stop`) once it is gone; return after that.

        Meanwhile tell it that the event loop runs: it kills a process whose loop a task blocks for ever.
        """
        line = self._line
        assert line is not None, "within `connected`"
        async with anyio.create_task_group() as group:
            group.start_soon(_beat, line)
            with contextlib.suppress(BrokenFrameError):  # a sender of broken frames is not the parent
                async for message in line.messages():
                    (on_now if message.at_once else on_stop)()
            group.cancel_scope.cancel()
        (on_gone or on_stop)()


async def _beat(line: Line[Stop]) -> None:
    while True:
        line.offer(Beat())
        await anyio.sleep(BEAT_S)
