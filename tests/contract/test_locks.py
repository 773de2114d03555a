"""What locks promise, tried in memory and on JetStream: exclusion, turns, bounded waiting, refusals."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.support.lock_worlds import LIMIT_S, World, held_elsewhere, identity_of
from tests.support.tables import each_row

from jobledger.audit.verify import verify
from jobledger.ledger.locks import Locks
from jobledger.ledger.model.errors import (
    InvalidInputError,
    InvalidTokenError,
    LockLostError,
    LockReentryError,
    LockTimeoutError,
)
from jobledger.ledger.nats.lock_hints import LockWatch

pytestmark = pytest.mark.anyio


async def test_a_lock_is_held_for_the_block_and_its_numbers_grow(world: World) -> None:
    async with world.client() as locks:
        async with locks.hold("account", "42") as first:
            first.check()
            assert first.is_held
        async with locks.hold("account", "42") as second:
            assert second.fencing_number > first.fencing_number
            with pytest.raises(LockLostError, match="it was given back"):
                first.check()
        async with locks.hold("account", "43"), locks.hold("document", "42"):
            pass  # other locks
    assert await world.types() == ["acquired", "released"] * 2
    assert (await verify(world.log)).violations == ()


async def test_who_cannot_have_it_is_told_who_holds_it_since_when(world: World) -> None:
    async with world.client() as one, world.client() as two, one.hold("account", "42") as held:
        for wait_s in (0, 0.2):
            with pytest.raises(LockTimeoutError) as caught:
                async with two.hold("account", "42", wait_s=wait_s):
                    pytest.fail("it is held")
            assert caught.value.holder == held.holder
            assert caught.value.fencing_number == held.fencing_number
        async with two.hold("account", "43", wait_s=0):
            pass
    assert await world.types() == ["acquired", "released"]


async def test_the_next_one_gets_it_as_soon_as_it_is_free(world: World) -> None:
    async with world.client() as one, world.client() as two, held_elsewhere(one) as leave:
        asyncio.get_running_loop().call_later(0.05, leave.set)
        async with two.hold("account", "42", wait_s=LIMIT_S):
            assert leave.is_set()
    assert await world.types() == ["acquired", "released"] * 2


async def test_of_nine_clients_one_at_a_time_is_inside(world: World) -> None:
    inside: list[int] = []
    entered: list[int] = []

    async def race(locks: Locks, number: int) -> None:
        async with locks.hold("account", "42", wait_s=LIMIT_S) as held:
            inside.append(number)
            assert inside == [number]
            entered.append(held.fencing_number)
            await asyncio.sleep(0.002)
            held.check()
            inside.remove(number)

    async with contextlib.AsyncExitStack() as clients:
        racers = [await clients.enter_async_context(world.client()) for _ in range(9)]
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(race(locks, number) for number, locks in enumerate(racers)))
    assert entered == sorted(set(entered))
    assert await world.types() == ["acquired", "released"] * 9
    assert (await verify(world.log)).violations == ()


async def test_tasks_of_one_client_take_turns_in_order(world: World) -> None:
    order: list[int] = []

    async def take(locks: Locks, number: int) -> None:
        async with locks.hold("account", "42", wait_s=LIMIT_S):
            order.append(number)
            await asyncio.sleep(0)

    async with world.client() as locks, asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(take(locks, number) for number in range(20)))
        assert not locks._places
    assert order == list(range(20))


async def test_who_comes_back_at_once_leaves_room_for_who_waits(world: World) -> None:
    """One client takes the lock again and again without a pause; the other gets it all the same, soon."""
    done = asyncio.Event()
    turns = 0

    async def greedy(locks: Locks) -> None:
        nonlocal turns
        while not done.is_set():
            async with locks.hold("account", "42"):
                turns += 1
                await asyncio.sleep(0.001)

    async with world.client() as one, world.client() as two, asyncio.timeout(LIMIT_S):
        greeds = asyncio.create_task(greedy(one))
        while turns < 10:
            await asyncio.sleep(0.001)
        for _ in range(5):
            before = turns
            async with two.hold("account", "42", wait_s=LIMIT_S):
                assert turns - before < 100
        done.set()
        await greeds


def _hear_nothing(_watch: LockWatch, _hint: bytes) -> None:
    return None


async def test_without_hints_a_waiter_looks_by_itself(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(LockWatch, "hear", _hear_nothing)
    async with world.client() as one, world.client() as two, held_elsewhere(one) as leave:
        asyncio.get_running_loop().call_later(0.05, leave.set)
        async with two.hold("account", "42", wait_s=LIMIT_S):
            assert leave.is_set()


async def test_a_task_that_asks_for_what_it_holds_is_refused(world: World) -> None:
    async with world.client() as locks:
        async with locks.hold("account", "42"):
            with pytest.raises(LockReentryError, match="holds lock account/42 already"):
                async with locks.hold("account", "42"):
                    pytest.fail("it would wait for itself")
            async with locks.hold("account", "43"):
                pass
        async with locks.hold("account", "42"):  # after the block it is free for the same task
            pass


async def test_waiters_of_one_client_are_bounded_too(world: World) -> None:
    async with world.client() as locks, held_elsewhere(locks):
        with pytest.raises(LockTimeoutError, match=identity_of(locks)):
            async with locks.hold("account", "42", wait_s=0.05):
                pytest.fail("another task holds it")


@each_row("wait_s", [-1, float("nan"), float("inf"), 1e9, "3", None, True])
async def test_a_wait_without_a_limit_is_refused(world: World, wait_s: float) -> None:
    async with world.client() as locks:
        with pytest.raises(InvalidInputError, match="wait_s must be a number of seconds from 0 to 86400"):
            async with locks.hold("account", "42", wait_s=wait_s):
                pytest.fail("refused")
    assert await world.types() == []


async def test_a_block_is_entered_once(world: World) -> None:
    async with world.client() as locks:
        block = locks.hold("account", "42")
        async with block as held:
            with pytest.raises(InvalidInputError, match="account/42 was entered before: call `lock` again"):
                await block.__aenter__()
            held.check()
        with pytest.raises(InvalidInputError, match="account/42 was entered before"):
            await block.__aenter__()
    assert await world.types() == ["acquired", "released"]


async def test_names_that_no_subject_can_have_are_refused(world: World) -> None:
    async with world.client() as locks:
        for scope, lock_id, field in (
            ("a.b", "c", "lock scope"),
            ("a", "*", "lock id"),
            ("a", "", "lock id"),
        ):
            with pytest.raises(InvalidTokenError, match=field):
                async with locks.hold(scope, lock_id):
                    pytest.fail("refused")
