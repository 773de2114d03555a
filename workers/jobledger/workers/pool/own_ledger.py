"""The ledger for tasks in processes: a connection of the process's own, which the first task that asks for it opens."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from jobledger.ledger.children import Parent
from jobledger.ledger.loop_thread import LoopThread
from jobledger.ledger.model.errors import RefusedError

if TYPE_CHECKING:
    from jobledger.ledger import client, sync

R = TypeVar("R")
_Verb = Callable[["client.Ledger"], Awaitable[R]]


class OwnLedger:
    """One process's connection; it outlives the calls that use it."""

    def __init__(self, connection: Mapping[str, Any] | None) -> None:
        """Take settings of `connect`; None: some settings of the worker cannot be passed to another process."""
        self._connection = connection
        self._thread: LoopThread[client.Ledger] | None = None

    def on_behalf_of(self, parent: Parent) -> sync.Ledger:
        """Return the ledger as the code of one attempt uses it.

        Raises: RefusedError without settings, and what `connect` raises.
        """
        # Imported here: at its start a process would load twice as much, and most tasks need no ledger.
        from jobledger.ledger import sync  # noqa: PLC0415
        from jobledger.ledger.connection import connect  # noqa: PLC0415

        if self._connection is None:
            raise RefusedError(
                "the worker's nats_options cannot be handed to this process: connect here with jobledger.ledger.sync"
            )
        if self._thread is None:
            self._thread = LoopThread(functools.partial(connect, **self._connection))
        self._thread.open()
        return sync.Ledger(_Behalf(self._thread, parent))


class _Behalf:
    """Calls of one attempt; a `Caller` for `sync.Ledger`."""

    def __init__(self, thread: LoopThread[client.Ledger], parent: Parent) -> None:
        self._thread = thread
        self._parent = parent
        self._base: client.Ledger | None = None
        self._own: client.Ledger | None = None

    def start(self, verb: _Verb[R]) -> Future[R]:
        """Begin a call."""
        return self._thread.start(self._within(verb))

    def call(self, verb: _Verb[R]) -> R:
        """Run a verb and wait for its end."""
        return self._thread.call(self._within(verb))

    def give_back(self, verb: _Verb[R]) -> R:
        """Run a verb that releases something."""
        return self.call(verb)

    def close(self) -> None:
        """Do nothing: the next task uses the connection, too."""

    def _within(self, verb: _Verb[R]) -> _Verb[R]:
        def call(ledger: client.Ledger) -> Awaitable[R]:
            if self._own is None or self._base is not ledger:  # a fork has another ledger
                self._base, self._own = ledger, ledger.on_behalf_of(self._parent)
            return verb(self._own)

        return call
