"""The consumer kit by itself: one place that asks, keeps, settles once, and begins again after a loss."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest
from tests.support.limits import LIMIT_S
from tests.support.log_entries import entry, event, fill
from tests.support.working import until

from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import UnreachableError
from jobledger.ledger.nats.consumer import (
    ACK,
    NAK,
    Batches,
    ConsumerLoop,
    HeldDeliveries,
    Source,
    growing_s,
    keep_serving,
    nak,
    tell,
)
from jobledger.ledger.nats.durables import delete_consumer, ensure_consumer, find_consumer, reactor_consumer
from jobledger.ledger.nats.pull import REQUESTS_MAX, Delivery, Ended, PullConsumer

pytestmark = pytest.mark.anyio

ACK_WAIT_S = 1.0


async def source_of(ledger: Ledger) -> Source:
    source = Source(stream=ledger.names.ledger_stream, consumer="kit")
    config = reactor_consumer((), ack_wait_s=ACK_WAIT_S)
    await ensure_consumer(ledger.inbox, source.stream, source.consumer, config)
    return source


class Taker:
    """Takes part in the consumer, keeps what comes and settles it when told."""

    def __init__(self, ledger: Ledger, *, in_flight_max: int = 100, is_finite: bool = False) -> None:
        self.held = HeldDeliveries[int](ledger.connection, ACK_WAIT_S)
        self.seen: list[Delivery] = []
        self.finds = 0
        self._source: Source | None = None
        self._ledger = ledger
        self._moved = asyncio.Event()
        self.loop = ConsumerLoop(
            ledger.connection,
            "kit",
            held=self.held,
            in_flight_max=in_flight_max,
            on_delivery=self._on_delivery,
            is_finite=is_finite,
        )

    def _on_delivery(self, delivery: Delivery) -> None:
        self.held.hold(delivery.stream_sequence, delivery)
        self.seen.append(delivery)
        self._moved.set()

    async def run(self) -> None:
        await self.loop.run(self._find)

    async def _find(self) -> Source:
        self.finds += 1
        return await source_of(self._ledger)

    async def until(self, count: int) -> list[int]:
        async with asyncio.timeout(LIMIT_S):
            while len(self.seen) < count:
                self._moved.clear()
                await self._moved.wait()
        return [each.stream_sequence for each in self.seen]

    @contextlib.asynccontextmanager
    async def taking(self) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def pulling(ledger: Ledger, seen: list[int], ended: list[Ended]) -> AsyncGenerator[PullConsumer, None]:
    """Take from the consumer by requests of the test's own."""
    source = await source_of(ledger)

    def on_delivery(delivery: Delivery) -> None:
        seen.append(delivery.stream_sequence)
        tell(ledger.connection, delivery, ACK)

    consumer = PullConsumer(
        ledger.connection, source.stream, source.consumer, on_delivery=on_delivery, on_ended=ended.append
    )
    await consumer.open()
    try:
        yield consumer
    finally:
        await consumer.close()


async def unsettled(ledger: Ledger, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            info = await find_consumer(ledger.inbox, ledger.names.ledger_stream, "kit")
            if info is not None and info.unsettled == count:
                return
            await asyncio.sleep(0.01)


async def test_a_delivery_is_settled_once_whoever_says_what_afterwards(ledger: Ledger) -> None:
    await fill(ledger.log, 2)
    taker = Taker(ledger)
    async with taker.taking():
        assert await taker.until(2) == [1, 2]
        assert taker.held.settle(1, ACK)
        assert not taker.held.settle(1, NAK)
        taker.held.drop(2)
        assert not taker.held.settle(2, ACK)
        assert len(taker.held) == 0
        taker.loop.wake()
        assert await taker.until(3) == [1, 2, 2]  # the dropped one, after its ack wait
        assert taker.seen[-1].delivered == 2


async def standing(ledger: Ledger) -> int:
    """Return how many requests the server knows of."""
    info = await find_consumer(ledger.inbox, ledger.names.ledger_stream, "kit")
    assert info is not None
    return info.waiting


@pytest.mark.parametrize(
    ("probes", "stands", "there"), [((40, 3), 1, 38), ((8, 2), 0, 8), ((5,), 8, 10), ((7, 9), 2, 0)]
)
async def test_what_requests_that_overlap_are_still_owed_is_known_exactly(
    ledger: Ledger, probes: tuple[int, ...], stands: int, there: int
) -> None:
    """The server serves them in turns: a client that thinks of another order waits for what will never come."""
    await fill(ledger.log, there)
    seen, ended = list[int](), list[Ended]()
    async with pulling(ledger, seen, ended) as consumer:
        for batch in probes:
            consumer.request(batch)
        if stands:
            consumer.wait_for(stands)
        assert (consumer.probed, consumer.asked) == (sum(probes), sum(probes) + stands)
        await until(lambda: len(seen) == there and not consumer.probed)
        assert await standing(ledger) == REQUESTS_MAX - len(consumer.free) == bool(consumer.asked)
        # What is believed to be owed is what comes, and after it nothing is owed.
        more = consumer.asked
        for number in range(more):
            await ledger.log.append([entry(ledger.log, 0, event(f"more-{number}"))])
        await until(lambda: len(seen) == there + more)
        assert (consumer.asked, len(consumer.free)) == (0, REQUESTS_MAX)
        assert await standing(ledger) == 0
        assert sorted(seen) == list(range(1, there + more + 1))
        assert set(ended) <= {"empty"}


async def test_what_comes_of_a_void_request_is_handed_on_and_hides_no_other(ledger: Ledger) -> None:
    seen, ended = list[int](), list[Ended]()
    async with pulling(ledger, seen, ended) as consumer:
        for _ in range(REQUESTS_MAX):
            consumer.wait_for(2)
        assert not consumer.free
        consumer.forget()
        assert (consumer.asked, len(consumer.free)) == (0, REQUESTS_MAX)
        consumer.wait_for(3)  # the server owes the old ones all the same
        await fill(ledger.log, 2 * REQUESTS_MAX + 3)
        await until(lambda: len(seen) == 2 * REQUESTS_MAX + 3)
        assert (consumer.asked, len(consumer.free)) == (0, REQUESTS_MAX)
        consumer.request(5)
        await until(lambda: ended == ["empty"])
        assert (consumer.asked, len(consumer.free)) == (0, REQUESTS_MAX)


async def test_what_is_on_hand_is_kept_from_others_and_given_back_in_order(ledger: Ledger) -> None:
    await fill(ledger.log, 3)
    one, two = Taker(ledger), Taker(ledger)
    async with one.taking():
        await one.until(3)
        keeping = asyncio.create_task(one.held.keep_alive())
    async with two.taking():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5 * ACK_WAIT_S):
                await two.until(1)
        assert one.held.is_fresh(1)
        keeping.cancel()
        one.held.give_back()
        assert (await two.until(3), len(one.held)) == ([1, 2, 3], 0)


async def test_what_is_on_hand_for_too_long_is_told_and_no_longer_kept(ledger: Ledger) -> None:
    await fill(ledger.log, 1)
    taker, overdue = Taker(ledger), list[int]()
    async with taker.taking():
        await taker.until(1)
        keeping = taker.held.keep_alive(held_s_max=0.0, on_overdue=overdue.append)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(ACK_WAIT_S / 2):
                await keeping
    assert overdue == [1]


async def test_the_server_is_not_told_again_of_what_it_has_just_heard(ledger: Ledger) -> None:
    await fill(ledger.log, 2)
    taker = Taker(ledger)
    async with taker.taking():
        await taker.until(2)
        new, old = taker.held.find(1), taker.held.find(2)
        assert new is not None
        assert old is not None
        old.alive_at -= 60.0
        keeping = asyncio.create_task(taker.held.keep_alive(quiet_s=60.0))
        await until(lambda: old.alive_at > old.since)
        keeping.cancel()
        assert new.alive_at <= new.since


async def test_no_more_is_asked_for_than_there_is_room_for(ledger: Ledger) -> None:
    await fill(ledger.log, 10)
    taker = Taker(ledger, in_flight_max=4)
    async with taker.taking():
        assert await taker.until(4) == [1, 2, 3, 4]
        await unsettled(ledger, 10)
        for sequence in (1, 2, 3, 4):
            taker.held.settle(sequence, ACK)
        taker.loop.wake()
        assert await taker.until(8) == list(range(1, 9))


async def test_a_finite_loop_ends_when_there_is_nothing_more(ledger: Ledger) -> None:
    await fill(ledger.log, 5)
    taker = Taker(ledger, is_finite=True)
    async with asyncio.timeout(LIMIT_S):
        await taker.run()
    assert ([each.stream_sequence for each in taker.seen], taker.loop.is_dry) == ([1, 2, 3, 4, 5], True)


async def test_a_consumer_that_was_deleted_is_looked_for_and_taken_from_again(ledger: Ledger) -> None:
    await fill(ledger.log, 1)
    taker = Taker(ledger)
    async with taker.taking():
        await taker.until(1)
        taker.held.settle(1, ACK)
        assert await delete_consumer(ledger.inbox, ledger.names.ledger_stream, "kit")
        assert await taker.until(2) == [1, 1]  # the new one begins at the beginning
    assert taker.finds >= 2


async def test_batches_are_what_there_is(ledger: Ledger) -> None:
    await fill(ledger.log, 5)
    async with asyncio.timeout(LIMIT_S), Batches(ledger.connection, await source_of(ledger)) as batches:
        sizes = [len(await batches.take(3)) for _ in range(3)]
    assert sizes == [3, 2, 0]


async def test_serving_begins_again_after_a_loss_and_not_after_anything_else(ledger: Ledger) -> None:
    calls = iter((UnreachableError("gone"), False, True))

    async def serve() -> bool:
        outcome = next(calls)
        if isinstance(outcome, UnreachableError):
            raise outcome
        return outcome

    async with asyncio.timeout(LIMIT_S):
        await keep_serving(ledger.connection, serve, retry_s=0.0)
    assert next(calls, None) is None

    async def fail() -> bool:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        await keep_serving(ledger.connection, fail)


@pytest.mark.parametrize(
    ("delay_s", "word"), [(0.0, b"-NAK"), (1.5, b'-NAK {"delay":1500000000}'), (1e-12, b'-NAK {"delay":1}')]
)
def test_a_nak_says_how_long_to_wait(delay_s: float, word: bytes) -> None:
    assert nak(delay_s) == word


def test_what_fails_again_and_again_waits_longer_each_time() -> None:
    assert [growing_s(delivered) for delivered in (1, 2, 3, 8, 500)] == [0.25, 0.5, 1.0, 30.0, 30.0]
