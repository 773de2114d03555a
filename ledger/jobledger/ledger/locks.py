"""Locks for code that must exclude other code: held by the process's lease, fenced by number; a loss is noticed.

The conditional append of `acquired` excludes others; a dead holder's lock ends with its lease; the fencing number
protects against a holder that does not know yet that it lost the lock. Hints only shorten the waiting.
Within a process the tasks that want one lock take turns, so each process has one contender. Source: ADR 007.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

import anyio

from jobledger.ledger.held_lock import AsyncBlock, HeldLock, Place, Turn
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.logs.job_filter import current
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import (
    InvalidInputError,
    LedgerError,
    LockLostError,
    LockReentryError,
    LockTimeoutError,
    ServerUnreachableError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.lock import LOCK, Acquire, Lock, LockEvent, Release, decide
from jobledger.ledger.model.log import Entry, Log, end_of_chain
from jobledger.ledger.model.subjects import LockRef, check_token
from jobledger.ledger.nats.leases import Leases
from jobledger.ledger.nats.lock_hints import LockHints, LockWatch
from jobledger.ledger.nats.outage import Outage

logger = logging.getLogger("jobledger.locks")

T = TypeVar("T")

WAIT_S_DEFAULT: Final = 10.0
_WAIT_S_MAX: Final = 24 * 3600.0
_LOOK_S_MAX: Final = 1.0  #: between two looks when no hint comes
_LOOKS_PER_LEASE: Final = 5
_LEASE_PATIENCE_S: Final = 5.0  #: for a lease, the first or after a loss, while the server is away
_LEASE_LOOK_S: Final = 0.02
_RETRY_S: Final = 0.5
_RELEASE_S: Final = 5.0  #: how long the end of a block waits until `released` is stored
_CLOSE_S: Final = 2.0
_TOLD_AFTER_S: Final = 1.0  #: a shorter wait is not reported
#: The pause of a waiter after a hint, divided by 1 + the seconds that it has waited, so that long waits come first.
_HEAD_START_S: Final = 0.02
#: Seconds before a process takes a lock again that it gave back and others want: longer than these need to take it.
_REST_S: Final = 0.05
_RESTS_MAX: Final = 1_000


class Locks:
    """The locks of one client."""

    def __init__(
        self,
        log: Log,
        leases: Leases,
        hints: LockHints,
        clock: Clock,
        stamp: Callable[[str], Stamp],
        *,
        outage: Outage | None = None,
    ) -> None:
        self._log = log
        self._leases = leases
        self._hints = hints
        self._clock = clock
        self._stamp = stamp
        self._outage = outage
        self._keeper: LeaseKeeper | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._places: dict[LockRef, Place] = {}
        self._held: dict[int, HeldLock] = {}  # by fencing number
        self._rests: dict[LockRef, float] = {}  # until when a wanted lock is left to others
        self._waits: dict[object, tuple[str, str, float]] = {}  # job, lock, since when
        self._background: set[asyncio.Task[Any]] = set()
        self._closed = False

    def hold(
        self, scope: str, lock_id: str, *, wait_s: float = WAIT_S_DEFAULT
    ) -> contextlib.AbstractAsyncContextManager[HeldLock]:
        """Hold a lock for the length of the block; see `Ledger.lock`."""
        return AsyncBlock(f"{scope}/{lock_id}", self._block(scope, lock_id, wait_s))

    @contextlib.asynccontextmanager
    async def _block(self, scope: str, lock_id: str, wait_s: float) -> AsyncGenerator[HeldLock, None]:
        held = await self.acquire(scope, lock_id, wait_s=wait_s, owner=asyncio.current_task())
        try:
            with anyio.CancelScope() as cancel_scope:
                held.when_lost = cancel_scope.cancel
                try:
                    held.check()
                    yield held
                finally:
                    held.when_lost = None
        except BaseException:  # also when cancelled: however the block ends, its lock is given back
            await self.release_after_error(held)
            raise
        if cancel_scope.cancelled_caught:
            _ = self._start_giving(held)
            raise held.error("the lease of this process was over, and the block was cancelled")
        await self.release(held)

    async def acquire(self, scope: str, lock_id: str, *, wait_s: float, owner: object) -> HeldLock:
        """Take a lock; the caller must `release` it. `owner` is the task or thread that will be inside.

        Raises: LockTimeoutError, LockReentryError, LockLostError (at once), InvalidError, UnreachableError,
            LedgerFullError.
        """
        ref = LockRef(scope=check_token("lock scope", scope), lock_id=check_token("lock id", lock_id))
        _check_wait(wait_s)
        deadline = self._clock.monotonic() + wait_s
        with self._told(ref):
            turn = await self._take_turn(ref, owner, wait_s, deadline)
            try:
                return await self._contend(turn, wait_s, deadline)
            except BaseException:  # also when cancelled: the next task in this process waits for the turn
                if not turn.is_handed_on:
                    self._end_turn(turn)
                raise

    def waits(self) -> dict[str, str]:
        """Return the jobs of this process that have waited for a lock for a second: `queue/job` -> `scope/id`."""
        told = self._clock.monotonic() - _TOLD_AFTER_S
        return {job: lock for job, lock, since in self._waits.values() if since <= told}

    @contextlib.contextmanager
    def _told(self, ref: LockRef) -> Generator[None, None, None]:
        """During the block, record in `_waits` that the current attempt, if there is one, waits for a lock."""
        attempt, key = current.get(), object()
        if attempt is not None:
            job = f"{attempt.facts['queue']}/{attempt.facts['job']}"
            self._waits[key] = job, f"{ref.scope}/{ref.lock_id}", self._clock.monotonic()
        try:
            yield
        finally:
            self._waits.pop(key, None)

    async def release(self, held: HeldLock) -> None:
        """Give a lock back; if that cannot be stored now, try on in the background while this process has its lease.

        Raises: LockLostError when others may have had the lock before this.
        """
        giving = self._start_giving(held)  # goes on when the caller is cancelled here
        await asyncio.wait({giving}, timeout=_RELEASE_S)
        was_ours = giving.result() if giving.done() and not giving.cancelled() else None
        if was_ours:
            return
        if was_ours is None and held.has_lease:
            logger.warning(
                "lock %s/%s is not given back yet: the server does not answer", held.scope, held.id
            )
            return
        raise held.error(
            "whether it was held to the end is not known" if was_ours is None else "it was taken over"
        )

    async def release_after_error(self, held: HeldLock) -> None:
        """Give a lock back after its block raised; the caller gets the block's own error."""
        try:
            await self.release(held)
        except LockLostError as error:
            logger.warning("%s", error)

    async def close(self) -> None:
        """End the lease, so that nobody waits for it. While a lock is held the lease only expires: the lock is lost."""
        self._closed = True
        abandoned = list(self._held.values())
        for held in abandoned:
            held.end("the ledger was closed")
        try:
            if self._background:
                await asyncio.wait(self._background, timeout=_CLOSE_S)
        finally:  # also when the client itself is cancelled
            rest = [*self._background, *([self._keeping] if self._keeping is not None else [])]
            for task in rest:
                task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.gather(*self._background, return_exceptions=True)  # tasks that the first ones started
        if self._keeper is not None and not abandoned and self._keeper.is_valid:
            with contextlib.suppress(LedgerError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._keeper.close()

    # Taking a lock.

    async def _take_turn(self, ref: LockRef, owner: object, wait_s: float, deadline: float) -> Turn:
        """Wait until no other task of this process wants the lock, in the order of arrival."""
        place = self._places.setdefault(ref, Place())
        if place.owner is not None and place.owner == owner:
            raise LockReentryError(ref.scope, ref.lock_id)
        place.users += 1
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                await place.mutex.acquire()
        except TimeoutError as error:
            self._leave(ref, place)
            raise _timed_out(ref, (await self._look(ref)).state, wait_s) from error
        except BaseException:  # cancelled while it waited
            self._leave(ref, place)
            raise
        place.owner = owner
        turn = Turn(ref, place, LockWatch())
        try:
            turn.watch = await turn.exits.enter_async_context(self._hints.watch(ref))
        except BaseException:  # also when cancelled: the next task in this process waits for the turn
            self._end_turn(turn)
            raise
        return turn

    def _leave(self, ref: LockRef, place: Place) -> None:
        place.users -= 1
        if not place.users:
            del self._places[ref]

    def _end_turn(self, turn: Turn) -> None:
        if turn.watch.wanted:
            self._rest_from(turn.ref)
        turn.place.owner = None
        turn.place.mutex.release()
        self._leave(turn.ref, turn.place)
        self._behind(turn.exits.aclose())

    async def _contend(self, turn: Turn, wait_s: float, deadline: float) -> HeldLock:
        """Read the lock and try to take it, until it is ours or the time is over."""
        began = self._clock.monotonic()
        await asyncio.sleep(max(0.0, min(self._rests.pop(turn.ref, began), deadline) - began))
        while True:
            keeper = await self._lease()
            turn.watch.free.clear()  # before the read, so that no later hint is missed
            view = await self._look(turn.ref)
            lost = await self._lost(view.state, keeper)
            if lost is not None:
                try:
                    return await self._claim(turn, keeper, view, lost)
                except WrongSequenceError:
                    view = await self._look(turn.ref)  # who was faster
            if self._clock.monotonic() >= deadline:
                raise _timed_out(turn.ref, view.state, wait_s)
            if view.state is not None and view.state.is_held:
                self._hints.tell(turn.ref, "wanted")
                await self._await_hint(turn.watch, keeper.duration_s, began, deadline)

    async def _await_hint(self, watch: LockWatch, lease_s: float, began: float, deadline: float) -> None:
        """Wait for a hint, for at most as long as may pass between two looks."""
        now = self._clock.monotonic()
        limit = min(_LOOK_S_MAX, lease_s / _LOOKS_PER_LEASE, max(0.0, deadline - now))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await watch.free.wait()
                await asyncio.sleep(_HEAD_START_S / (1 + now - began))

    async def _lost(self, lock: Lock | None, keeper: LeaseKeeper) -> int | None:
        """Return the fencing number of a dead holder, 0 if the lock is free, None if its holder lives."""
        if lock is None or not lock.is_held:
            return 0
        if lock.holder == keeper.identity:
            return lock.fencing_number  # taken for a task that was cancelled since; now it is our turn
        return lock.fencing_number if await self._leases.find(lock.holder) is None else None

    async def _claim(self, turn: Turn, keeper: LeaseKeeper, view: View[Lock], lost: int) -> HeldLock:
        """Append `acquired` on condition of the chain as read; if the caller is cancelled, a background task undoes it.

        Raises: WrongSequenceError when somebody was faster.
        """
        identity = keeper.identity
        command = Acquire(holder=identity, lease_s=keeper.duration_s, lost=lost)
        event = decide(turn.ref, view.state, command, self._stamp(identity))
        entry = LOCK.link(self._log.names, [event], view)[0]
        appending = self._spawn(self._log.append([entry]))
        try:
            await asyncio.wait({appending})
            sequence = appending.result()
        except (asyncio.CancelledError, UnreachableError):
            turn.is_handed_on = True
            self._behind(self._undo(turn, keeper, event, entry, appending))
            raise
        held = HeldLock(turn, keeper, LOCK.advance(entry, event, sequence), identity)
        self._held[held.fencing_number] = held
        if not held.is_held:
            turn.is_handed_on = True
            _ = self._start_giving(held)
            raise held.error("the lease of this process was over before the lock was taken")
        if lost:
            logger.warning(
                "%r: taken over from %s, whose lease expired", held, view.state.holder if view.state else "?"
            )
        return held

    async def _look(self, ref: LockRef) -> View[Lock]:
        return LOCK.view(*await end_of_chain(self._log, LOCK.chain(self._log.names, ref.scope, ref.lock_id)))

    # Giving it back.

    def _start_giving(self, held: HeldLock) -> asyncio.Task[bool | None]:
        held.turn.place.owner = None
        return self._spawn(self._give_up(held))

    async def _give_up(self, held: HeldLock) -> bool | None:
        """Append `released` until that is answered or our lease is lost.

        Return whether the lock was ours up to that moment; None: not known.
        """
        held.end("it was given back")
        self._held.pop(held.fencing_number, None)
        turn = held.turn
        try:
            command = Release(fencing_number=held.fencing_number)
            event = decide(turn.ref, held.view.state, command, self._stamp(held.holder))
            entry = LOCK.link(self._log.names, [event], held.view)[0]
            while True:
                try:
                    await self._log.append([entry])
                except WrongSequenceError:
                    return False
                except LedgerError as error:
                    if held.holder != self._identity:
                        return None  # others can take it now without us
                    logger.warning("lock %s/%s cannot be given back yet: %s", held.scope, held.id, error)
                    await asyncio.sleep(_RETRY_S)
                else:
                    return True
        finally:
            self._end_turn(turn)
            self._hints.tell(turn.ref, "free")

    async def _undo(
        self, turn: Turn, keeper: LeaseKeeper, event: LockEvent, entry: Entry, appending: asyncio.Task[int]
    ) -> None:
        """Give back a lock that was taken for a cancelled caller, if it was taken."""
        sequence: int | None = None
        try:
            sequence = await appending
        except WrongSequenceError:
            pass
        except LedgerError:
            sequence = await self._find(turn.ref, event.by, entry)
        finally:
            if sequence is None:
                self._end_turn(turn)
        if sequence is not None:
            await self._give_up(HeldLock(turn, keeper, LOCK.advance(entry, event, sequence), event.by))

    async def _find(self, ref: LockRef, identity: str, entry: Entry) -> int | None:
        """Return the sequence of an append without an answer; None: it is not stored, or our lease is lost anyway."""
        while identity == self._identity:
            try:
                view = await self._look(ref)
            except LedgerError:
                await asyncio.sleep(_RETRY_S)
            else:
                return view.last_sequence if view.last_data == entry.data else None
        return None

    def _rest_from(self, ref: LockRef) -> None:
        now = self._clock.monotonic()
        if len(self._rests) >= _RESTS_MAX:
            self._rests = {each: until for each, until in self._rests.items() if until > now}
        self._rests[ref] = now + _REST_S

    # The lease.

    @property
    def _identity(self) -> str:
        return self._keeper.identity if self._keeper is not None else ""

    async def _lease(self) -> LeaseKeeper:
        """Return the keeper of a lease that lives; the first call takes it.

        Raises: UnreachableError.
        """
        until = self._clock.monotonic() + _LEASE_PATIENCE_S
        async with self._opening:
            if self._closed:
                raise ServerUnreachableError("the ledger is closed: connect again to take locks")
            keeper = self._keeper or await self._open_lease()
        while not keeper.is_valid:
            if self._clock.monotonic() >= until:
                raise ServerUnreachableError(
                    "this process cannot renew its lease, and takes no lock without one"
                )
            await asyncio.sleep(_LEASE_LOOK_S)
        return keeper

    async def _open_lease(self) -> LeaseKeeper:
        keeper = LeaseKeeper(
            self._leases,
            self._clock,
            (),
            running=lambda: len(self._held),
            on_lost=self._on_lost,
            kind="client",
            outage=self._outage,
        )
        await keeper.open(patience_s=_LEASE_PATIENCE_S)
        self._keeper = keeper
        self._keeping = asyncio.get_running_loop().create_task(keeper.run(), name="lease of locks")
        return keeper

    def _on_lost(self, identity: str) -> None:
        for held in list(self._held.values()):
            if held.holder == identity:
                held.end("the lease of this process is over")

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work that must go on when its caller is cancelled; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _behind(self, work: Coroutine[Any, Any, object]) -> None:
        _ = self._spawn(work)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LedgerError):
            logger.error("a lock could not be settled", exc_info=error)


def _check_wait(wait_s: object) -> None:
    # A caller without type checks may give a text or None.
    if (
        isinstance(wait_s, bool)
        or not isinstance(wait_s, int | float)
        or not 0 <= wait_s <= _WAIT_S_MAX  # false for NaN, too
    ):
        raise InvalidInputError(
            f"wait_s must be a number of seconds from 0 to {_WAIT_S_MAX:.0f}, got {wait_s!r}"
        )


def _timed_out(ref: LockRef, lock: Lock | None, wait_s: float) -> LockTimeoutError:
    holder, fencing_number = (lock.holder, lock.fencing_number) if lock is not None else ("", 0)
    return LockTimeoutError(ref.scope, ref.lock_id, holder, fencing_number, wait_s)
