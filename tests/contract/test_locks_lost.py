"""Locks that end otherwise than by their block: lost leases, errors, cancellation, appends without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio
import pytest
from tests.support.lock_worlds import LEASE_S, LIMIT_S, REF, World, held_elsewhere, identity_of, memory_world
from tests.support.memory_locks import MemoryLeases

from jobledger.audit.verify import verify
from jobledger.ledger.held_lock import HeldLock
from jobledger.ledger.locks import Locks
from jobledger.ledger.model.clock import SYSTEM_CLOCK
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import AppendOutcomeUnknownError, LockLostError
from jobledger.ledger.model.lock import LOCK, Acquire, Acquired, decide
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog

pytestmark = pytest.mark.anyio


async def expire(world: World, locks: Locks) -> None:
    done = world.end_lease(locks)
    if asyncio.iscoroutine(done):
        await done


async def test_a_lost_lease_cancels_the_block_and_shows(world: World) -> None:
    async def lose(one: Locks, two: Locks, taken: list[HeldLock]) -> None:
        async with asyncio.timeout(LIMIT_S), one.hold("account", "42") as held:
            taken.append(held)
            await expire(world, one)
            async with two.hold("account", "42", wait_s=LIMIT_S) as next_held:
                assert next_held.fencing_number > held.fencing_number
                await asyncio.sleep(60)  # cancelled when our next renewal is refused

    async with world.client() as one, world.client() as two:
        taken: list[HeldLock] = []
        with pytest.raises(LockLostError) as caught:
            await lose(one, two, taken)
        (held,) = taken
        assert caught.value.fencing_number == held.fencing_number
        assert not held.is_held
        async with one.hold("account", "42") as again:  # the client goes on under another identity
            assert again.holder != held.holder
    events = [event for event in await world.events() if isinstance(event, Acquired)]
    assert [event.took_over for event in events] == [0, held.fencing_number, 0]
    assert (await verify(world.log)).violations == ()


async def test_a_block_that_ends_after_a_takeover_says_so(world: World) -> None:
    """Nobody noticed inside, since nothing waited; the ledger refuses the `released`."""
    async with world.client() as one, world.client() as two:
        with pytest.raises(LockLostError, match="taken over"):  # noqa: PT012 - the block itself raises
            async with one.hold("account", "42"):
                await expire(world, one)
                async with held_elsewhere(two, wait_s=LIMIT_S):
                    pass
    assert await world.types() == ["acquired", "acquired", "released"]


async def test_an_error_of_the_block_comes_out_as_it_is(world: World) -> None:
    async with world.client() as one, world.client() as two:
        with pytest.raises(ZeroDivisionError):
            async with one.hold("account", "42"):
                _ = 1 / 0
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - also of a block that lost its lock
            async with one.hold("account", "42"):
                await expire(world, one)
                async with held_elsewhere(two, wait_s=LIMIT_S):
                    pass
                _ = 1 / 0
        async with two.hold("account", "42", wait_s=LIMIT_S):
            pass


async def test_a_cancelled_block_gives_the_lock_back(world: World) -> None:
    async with world.client() as one, world.client() as two:
        with anyio.CancelScope() as scope:
            async with one.hold("account", "42"):
                scope.cancel()
                await asyncio.sleep(60)
        assert scope.cancelled_caught
        async with two.hold("account", "42", wait_s=LIMIT_S):
            pass
        holding = asyncio.create_task(_hold_for_ever(one))
        while (await world.types()).count("acquired") < 3:
            await asyncio.sleep(0.005)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        async with two.hold("account", "42", wait_s=LIMIT_S):
            pass


async def _hold_for_ever(locks: Locks) -> None:
    async with locks.hold("account", "42"):
        await asyncio.sleep(60)


@pytest.mark.parametrize("steps", range(14))
async def test_whoever_is_cancelled_while_taking_it_leaves_it_free(world: World, steps: int) -> None:
    """Cancelled after any number of the loop's turns: before, in and after the append."""
    async with world.client() as one, world.client() as two:
        async with one.hold("account", "42"):
            pass  # the lease is there
        taking = asyncio.create_task(_hold_for_ever(one))
        for _ in range(steps):
            await asyncio.sleep(0)
        if world.log.__class__ is not MemoryLog:
            await asyncio.sleep(0.0003 * steps)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        async with two.hold("account", "42", wait_s=LIMIT_S):
            pass
        async with one.hold("account", "42", wait_s=LIMIT_S):
            pass
        async with asyncio.timeout(LIMIT_S):
            while one._places or two._places:
                await asyncio.sleep(0.005)
    types = await world.types()
    assert types == ["acquired", "released"] * (len(types) // 2)


async def test_what_was_stored_for_nobody_is_taken_at_once_by_its_own_process(world: World) -> None:
    """An append that everybody had given up arrived late: its process lives, and no task of it is inside."""
    async with world.client() as one:
        async with one.hold("account", "42"):
            pass
        view = LOCK.view(await world.log.last(LOCK.chain(world.log.names, REF.scope, REF.lock_id)))
        stamp = Stamp(at=SYSTEM_CLOCK.now(), by=identity_of(one))
        event = decide(REF, view.state, Acquire(holder=identity_of(one), lease_s=LEASE_S), stamp)
        number = await world.log.append([LOCK.link(world.log.names, [event], view)[0]])
        async with one.hold("account", "42", wait_s=0) as held:
            assert held.fencing_number > number
    assert await world.types() == ["acquired", "released", "acquired", "acquired", "released"]
    assert (await verify(world.log)).violations == ()


async def test_a_client_that_ends_frees_its_locks_and_cancels_their_blocks(world: World) -> None:
    outcomes: list[str] = []

    async def hold(locks: Locks, inside: asyncio.Event) -> None:
        try:
            async with locks.hold("account", "42"):
                inside.set()
                await asyncio.sleep(60)
        except LockLostError:
            outcomes.append("lost")

    async with world.client() as two:
        inside = asyncio.Event()
        async with world.client() as one:
            holding = asyncio.create_task(hold(one, inside))
            await inside.wait()
        await holding
        assert outcomes == ["lost"]
        async with two.hold("account", "42", wait_s=LIMIT_S):
            pass


async def test_the_number_guards_what_the_lock_cannot() -> None:
    """A resource that remembers the highest number refuses whoever was taken over and does not know it."""
    written: list[str] = []
    highest = 0

    def write(held: HeldLock, text: str) -> bool:
        nonlocal highest
        if held.fencing_number < highest:
            return False
        highest = held.fencing_number
        written.append(text)
        return True

    async with memory_world() as world, world.client() as one, world.client() as two:
        with pytest.raises(LockLostError):  # noqa: PT012 - the block itself raises
            async with one.hold("account", "42") as old:
                assert write(old, "one")
                await expire(world, one)
                async with two.hold("account", "42") as new:
                    assert write(new, "two")
                assert not write(old, "one again")
    assert written == ["one", "two"]


async def test_a_client_cut_off_from_its_lease_stops_before_others_may_begin() -> None:
    lease_s = 6.0  # its margin, a twentieth of it, is for the machine
    leases = MemoryLeases(lease_s)

    async def stay(locks: Locks, taken: list[HeldLock]) -> None:
        async with locks.hold("account", "42") as held:
            taken.append(held)
            leases.is_cut = True
            await asyncio.sleep(60)

    async with memory_world(leases=leases) as world, world.client() as one:
        loop, taken = asyncio.get_running_loop(), list[HeldLock]()
        began = loop.time()
        with pytest.raises(LockLostError, match="cancelled"):
            await stay(one, taken)
        assert loop.time() - began < lease_s
        assert taken[0].holder in leases.keys  # by the bucket's clock it still lives
        leases.is_cut = False
        async with one.hold("account", "42", wait_s=LIMIT_S) as again:
            assert again.holder != taken[0].holder
    # The block is over, so the lock could be given back, lease or not.
    assert await world.types() == ["acquired", "released"] * 2


class _Forgetful(MemoryLog):
    """A log that stores or does not, and gives no answer, as often as it is told."""

    def __init__(self, *, stores: bool) -> None:
        super().__init__()
        self.silent = 0
        self._stores = stores
        self._answers: dict[bytes, int] = {}

    async def append(self, entries: Sequence[Entry]) -> int:
        if not self.silent:
            known = self._answers.get(entries[0].data)  # found out by its bytes, as JetStream's log does
            return known or await super().append(entries)
        self.silent -= 1
        if self._stores:
            self._answers[entries[0].data] = await super().append(entries)
        raise AppendOutcomeUnknownError("no answer")


@pytest.mark.parametrize("stores", [True, False])
async def test_an_append_without_an_answer_leaves_no_lock_behind(stores: bool) -> None:
    log = _Forgetful(stores=stores)
    async with memory_world(log) as world, world.client() as one, world.client() as two:
        log.silent = 1
        with pytest.raises(AppendOutcomeUnknownError):
            async with one.hold("account", "42"):
                pytest.fail("nobody knows")
        async with two.hold("account", "42", wait_s=LIMIT_S):
            pass
        async with one.hold("account", "42", wait_s=LIMIT_S):
            pass
    assert await world.types() == ["acquired", "released"] * (3 if stores else 2)


@pytest.mark.parametrize("stores", [True, False])
async def test_giving_back_goes_on_behind_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch, stores: bool
) -> None:
    """The block ends with its lease alive, so nobody can have been in; the next one waits for the `released`."""
    monkeypatch.setattr("jobledger.ledger.locks._RELEASE_S", 0.05)
    monkeypatch.setattr("jobledger.ledger.locks._RETRY_S", 0.1)
    log = _Forgetful(stores=stores)
    async with memory_world(log) as world, world.client() as one, world.client() as two:
        async with one.hold("account", "42"):
            log.silent = 1
        assert one._background
        async with two.hold("account", "42", wait_s=LIMIT_S), one.hold("account", "43"):
            pass
    assert (await verify(world.log)).violations == ()
