"""What locks promise, tried in memory and on JetStream: exclusion, bounded waiting, loss that shows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.memory_locks import MemoryHints, MemoryLeases

from jobledger.ledger.audit import verify
from jobledger.ledger.client import connect
from jobledger.ledger.clock import SYSTEM_CLOCK
from jobledger.ledger.commands import Stamp
from jobledger.ledger.errors import (
    AppendOutcomeUnknownError,
    InvalidInputError,
    InvalidTokenError,
    LockLostError,
    LockReentryError,
    LockTimeoutError,
)
from jobledger.ledger.held_lock import HeldLock
from jobledger.ledger.identity import new_identity
from jobledger.ledger.lock_events import (
    Acquire,
    Acquired,
    LockEvent,
    decide,
    decode_lock_event,
    seal,
    view_of,
)
from jobledger.ledger.lock_hints import LockWatch
from jobledger.ledger.locks import Locks
from jobledger.ledger.log import Entry, Log
from jobledger.ledger.memory import MemoryLog
from jobledger.ledger.streams import api
from jobledger.ledger.subjects import LockRef

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

LIMIT_S = 8.0
LEASE_S = 1.0
REF = LockRef(scope="account", lock_id="42")


class World:
    """One ledger, as many clients as a test wants, and the power to end their leases."""

    def __init__(self, log: Log, connect_one: Callable[[], AbstractAsyncContextManager[Locks]]) -> None:
        self.log = log
        self.client = connect_one
        self.end_lease: Callable[[Locks], object] = _nothing

    async def events(self) -> list[LockEvent]:
        subject = self.log.names.lock_chain(REF)
        batches = self.log.read_messages(subject=subject)
        return [decode_lock_event(message) async for batch in batches for message in batch]

    async def types(self) -> list[str]:
        return [str(event.__struct_config__.tag) for event in await self.events()]


def _nothing(_: Locks) -> None:
    return None


def identity_of(locks: Locks) -> str:
    assert locks._keeper is not None
    return locks._keeper.identity


@contextlib.asynccontextmanager
async def memory_world(
    log: Log | None = None, leases: MemoryLeases | None = None
) -> AsyncGenerator[World, None]:
    log, leases, hints = log or MemoryLog(), leases or MemoryLeases(LEASE_S), MemoryHints()

    @contextlib.asynccontextmanager
    async def client() -> AsyncGenerator[Locks, None]:
        def stamp(by: str) -> Stamp:
            return Stamp(at=SYSTEM_CLOCK.now(), by=by or new_identity())

        locks = Locks(log, leases, hints, SYSTEM_CLOCK, stamp)
        try:
            yield locks
        finally:
            await locks.close()

    world = World(log, client)
    world.end_lease = lambda locks: leases.expire(identity_of(locks))
    yield world


@contextlib.asynccontextmanager
async def server_world(server: EmbeddedServer) -> AsyncGenerator[World, None]:
    options: dict[str, Any] = {
        "environment": f"t_{secrets.token_hex(6)}",
        "lease_s": LEASE_S,
        "ledger_bytes_max": 1 << 24,
    }

    @contextlib.asynccontextmanager
    async def client() -> AsyncGenerator[Locks, None]:
        async with connect(server.url, **options) as ledger:
            yield ledger.locks

    async with connect(server.url, **options) as ledger:
        world = World(ledger.log, client)
        bucket = ledger.names.workers_bucket

        async def end(locks: Locks) -> None:
            filter_subject = {"filter": f"$KV.{bucket}.{identity_of(locks)}"}
            answer = await api(ledger.inbox, f"STREAM.PURGE.KV_{bucket}", filter_subject)
            assert answer["success"]

        world.end_lease = end
        yield world


@pytest.fixture(params=["memory", "jetstream"])
def make_world(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[World]]:
    if request.param == "memory":
        return memory_world
    server: EmbeddedServer = request.getfixturevalue("nats_server")
    return functools.partial(server_world, server)


@pytest.fixture
async def world(make_world: Callable[[], AbstractAsyncContextManager[World]]) -> AsyncIterator[World]:
    async with make_world() as made:
        yield made


async def expire(world: World, locks: Locks) -> None:
    done = world.end_lease(locks)
    if asyncio.iscoroutine(done):
        await done


@contextlib.asynccontextmanager
async def held_elsewhere(locks: Locks, **options: float) -> AsyncGenerator[asyncio.Event, None]:
    """Hold the lock in a task of its own until the block ends or the event is set."""
    inside, leave = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with locks.hold("account", "42", **options):
            inside.set()
            await leave.wait()

    holding = asyncio.create_task(hold())
    try:
        async with asyncio.timeout(LIMIT_S):
            await inside.wait()
            yield leave
            leave.set()
            await holding
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


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
            async with two.hold("account", "42", wait_s=2.0):
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
        with anyio.move_on_after(0.05):
            async with one.hold("account", "42"):
                await asyncio.sleep(60)
        async with two.hold("account", "42", wait_s=2.0):
            pass
        holding = asyncio.create_task(_hold_for_ever(one))
        while (await world.types()).count("acquired") < 3:
            await asyncio.sleep(0.005)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        async with two.hold("account", "42", wait_s=2.0):
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
        async with two.hold("account", "42", wait_s=2.0):
            pass
        async with one.hold("account", "42", wait_s=2.0):
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
        view = view_of(await world.log.last(world.log.names.lock_chain(REF)))
        stamp = Stamp(at=SYSTEM_CLOCK.now(), by=identity_of(one))
        event = decide(REF, view.lock, Acquire(holder=identity_of(one), lease_s=LEASE_S), stamp)
        number = await world.log.append([seal(view, event, world.log.names)])
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


async def test_waiters_of_one_client_are_bounded_too(world: World) -> None:
    async with world.client() as locks, held_elsewhere(locks):
        with pytest.raises(LockTimeoutError, match=identity_of(locks)):
            async with locks.hold("account", "42", wait_s=0.05):
                pytest.fail("another task holds it")


@pytest.mark.parametrize("wait_s", [-1, float("nan"), float("inf"), 1e9, "3", None, True])
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
            with pytest.raises(InvalidInputError, match="account/42 was entered before: call `lock` anew"):
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
    leases = MemoryLeases(LEASE_S)

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
        assert loop.time() - began < LEASE_S
        assert taken[0].holder in leases.keys  # by the bucket's clock it still lives
        leases.is_cut = False
        async with one.hold("account", "42", wait_s=2.0) as again:
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
        async with two.hold("account", "42", wait_s=2.0):
            pass
        async with one.hold("account", "42", wait_s=2.0):
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
        async with two.hold("account", "42", wait_s=2.0), one.hold("account", "43"):
            pass
    assert (await verify(world.log)).violations == ()
