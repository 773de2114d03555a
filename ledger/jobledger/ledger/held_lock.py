"""A lock from the view of its holder, and the turns that the tasks of one process take at it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from types import TracebackType

from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.errors import InvalidInputError, LockLostError
from jobledger.ledger.model.lock import Lock
from jobledger.ledger.model.subjects import LockRef
from jobledger.ledger.nats.lock_hints import LockWatch


class Place:
    """The place at which tasks of this process take turns for one lock."""

    def __init__(self) -> None:
        self.mutex = asyncio.Lock()
        self.users = 0
        self.owner: object = None  #: the task or thread that has the turn; None: nobody


class Turn:
    """One task's turn at a lock: until `end` no other task of this process may take the lock."""

    def __init__(self, ref: LockRef, place: Place, watch: LockWatch) -> None:
        self.ref = ref
        self.place = place
        self.watch = watch
        self.exits = contextlib.AsyncExitStack()
        self.is_handed_on = False  #: True: a background task ends the turn


class HeldLock:
    """A lock while it is held. Pass its fencing number with every write to the guarded resource."""

    def __init__(self, turn: Turn, keeper: LeaseKeeper, view: View[Lock], holder: str) -> None:
        assert view.state is not None, "a view after `acquired` has a lock"
        self.scope = turn.ref.scope
        self.id = turn.ref.lock_id
        self.fencing_number = (
            view.state.fencing_number
        )  #: stream sequence of `acquired`; grows from holder to holder
        self.holder = holder  #: the identity whose lease keeps the lock
        self.turn = turn
        self.view = view
        self.when_lost: Callable[[], None] | None = None
        self._keeper = keeper
        self._why = ""
        self._pid = os.getpid()

    def __repr__(self) -> str:
        """Show scope, id and fencing number."""
        return f"<HeldLock {self.scope}/{self.id} {self.fencing_number}>"

    @property
    def is_held(self) -> bool:
        """Whether this process surely still has the lock, by its monotonic clock. Safe in any thread."""
        return not self._why and self.is_here and self.has_lease

    @property
    def is_here(self) -> bool:
        """Whether this process itself took the lock, not a parent that forked it."""
        return self._pid == os.getpid()

    @property
    def has_lease(self) -> bool:
        """Whether nobody can have taken the lock over yet, even if it was given back."""
        return self._keeper.holds(self.holder)

    def check(self) -> None:
        """Return if the lock is held at this moment; call it before an action that needs the lock.

        Raises: LockLostError.
        """
        if not self.is_here:
            raise self.error(f"it belongs to process {self._pid}, from which this one was forked")
        if not self.is_held:
            raise self.error(self._why or "the lease of this process was not renewed in time")

    def error(self, why: str) -> LockLostError:
        """Return the error that says that this lock is lost."""
        return LockLostError(self.scope, self.id, self.fencing_number, why)

    def end(self, why: str) -> None:
        """End the holding; the code that runs under the lock is notified, once."""
        if not self._why:
            self._why = why
            if self.when_lost is not None:
                self.when_lost()


class _EnteredOnce:
    """The state of both kinds of blocks: their lock, and whether they were entered."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._was_entered = False

    def note(self) -> None:
        if self._was_entered:
            raise InvalidInputError(
                f"this block of lock {self._name} was entered before: call `lock` again for each `with`"
            )
        self._was_entered = True


class AsyncBlock(contextlib.AbstractAsyncContextManager[HeldLock]):
    """One `async with` under a lock, entered once."""

    def __init__(self, name: str, block: contextlib.AbstractAsyncContextManager[HeldLock]) -> None:
        self._once = _EnteredOnce(name)
        self._block = block

    async def __aenter__(self) -> HeldLock:
        """Take the lock. Raises: InvalidInputError the second time; else as `Locks.acquire`."""
        self._once.note()
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> bool | None:
        """Give it back."""
        return await self._block.__aexit__(kind, error, frames)


class Block(contextlib.AbstractContextManager[HeldLock]):
    """One `with` under a lock in blocking code, entered once."""

    def __init__(self, name: str, block: contextlib.AbstractContextManager[HeldLock]) -> None:
        self._once = _EnteredOnce(name)
        self._block = block

    def __enter__(self) -> HeldLock:
        """Take the lock. Raises: InvalidInputError the second time; else as `Locks.acquire`."""
        self._once.note()
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> bool | None:
        """Give it back."""
        return self._block.__exit__(kind, error, frames)
