"""Durable subscriptions against a real server: resuming, filters, sharing, back-pressure; live streams."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.subscribing import LIMIT_S, enqueue, rest, send, sequences, take
from tests.support.working import Connect, until

from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import InvalidError
from jobledger.ledger.model.events import Queued

pytestmark = pytest.mark.anyio
#: Longer than anything here is waited for: what comes before was not brought by it.
ACK_WAIT_S = 2 * LIMIT_S


# One by one.


async def test_a_durable_reader_goes_on_where_it_stopped(ledger: Ledger) -> None:
    await enqueue(ledger, *range(6))
    seen: list[int] = []
    async with ledger.events(durable="billing", types=["queued"]) as events:
        async for stored in events:
            if stored.stream_sequence == 4:
                break  # not dealt with: must come again, and first
            seen.append(stored.stream_sequence)
    async with ledger.events(durable="billing", types=["queued"]) as events:
        seen += [stored.stream_sequence for stored in await take(events, 3)]
    assert seen == [1, 2, 3, 4, 5, 6]


async def test_a_handler_that_raises_leaves_its_event_to_the_next_reader(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2)

    async def handle() -> None:
        async for stored in ledger.events(durable="billing"):
            _ = 1 / (stored.stream_sequence - 2)

    with pytest.raises(ZeroDivisionError):
        await handle()
    found: list[int] = []
    async with asyncio.timeout(LIMIT_S):  # it is given back when the iterator is collected
        while not found:
            found = await rest(ledger, "billing")
    assert found == [2]
    assert await rest(ledger, "billing") == []
    (info,) = await ledger.subscriptions()
    assert (info.lag, info.in_flight, info.acknowledged_sequence) == (0, 0, 2)


async def test_an_event_is_acknowledged_only_when_the_next_one_is_asked_for(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2)
    async with ledger.events(durable="billing", max_in_flight=1) as events:
        _ = await anext(events)
        assert [info.in_flight for info in await ledger.subscriptions()] == [1]
        assert (await anext(events)).stream_sequence == 2
        async with asyncio.timeout(LIMIT_S):  # the server was told, and has counted it a moment later
            while [info.acknowledged_sequence for info in await ledger.subscriptions()] != [1]:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [1, 2, 3, 4]),
        ({"from_sequence": 3}, [3, 4]),
        ({"from_sequence": 5}, []),
        ({"live": True}, []),
        ({"since": datetime(2026, 1, 1, tzinfo=UTC)}, [1, 2, 3, 4]),
        ({"since": datetime.now(UTC) + timedelta(days=300)}, []),
    ],
)
async def test_a_subscription_begins_where_its_first_reader_says(
    ledger: Ledger, options: dict[str, Any], wanted: list[int]
) -> None:
    await enqueue(ledger, 1, 2, 3, 4)
    assert await rest(ledger, "x", **options) == wanted
    if "since" not in options:
        await enqueue(ledger, 5)
        assert await rest(ledger, "x", **options) == [5]  # where it begins counts only the first time


async def test_each_filter_lets_through_what_it_names(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2)
    await ledger.enqueue(send.options(id="n1"), 7)
    await ledger.enqueue(send.options(queue="billing", id="s8"), 8)
    await ledger.cancel((await ledger.job("n2")).ref)
    chosen: dict[str, dict[str, Any]] = {
        "types": {"types": ["queued"]},
        "two": {"types": ["cancelled", "queued", "completed"], "queue": "billing"},
        "queue": {"queue": "mail"},
        "job": {"job": "n1"},
        "task": {"task": "send"},
        "both": {"task": "send", "queue": "billing", "types": ["queued"]},
        "none": {"job": "nobody"},
    }
    expected = {
        "types": [1, 2, 3, 4],
        "two": [1, 2, 4, 5],
        "queue": [3],
        "job": [1, 3],
        "task": [3, 4],
        "both": [4],
    }
    for name, options in chosen.items():
        assert await rest(ledger, name, **options) == expected.get(name, []), name
        once = [stored.stream_sequence async for stored in ledger.events(follow=False, **options)]
        assert once == expected.get(name, []), name
    lags = {info.name: info.lag for info in await ledger.subscriptions()}
    assert lags == dict.fromkeys(chosen, 0)  # what the client leaves out is acknowledged all the same


# Deliveries that are settled one by one.


async def test_never_more_than_max_in_flight_are_out_and_a_settled_one_makes_room(ledger: Ledger) -> None:
    await enqueue(ledger, *range(30))
    most = 0
    async with ledger.subscription("slow", max_in_flight=5) as sub:
        held = await take(sub, 5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await anext(sub)
        assert (await sub.info()).in_flight == 5
        done: list[int] = []
        while len(done) < 25:
            most = max(most, len(sub._held))
            oldest = held.pop(0)
            await oldest.ack()
            done += sequences([oldest])
            held += await take(sub, 1)
        assert done == list(range(1, 26))
    assert most == 5
    assert await rest(ledger, "slow") == [26, 27, 28, 29, 30]


async def test_nak_brings_an_event_back_after_its_delay_and_counts_the_hand_out(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2)
    loop = asyncio.get_running_loop()
    async with ledger.subscription("s", ack_wait_s=ACK_WAIT_S) as sub:
        first, second = await take(sub, 2)
        assert (first.delivered, first.event.job, repr(first)) == (
            1,
            "n1",
            "EventDelivery(Queued at 1, delivered 1)",
        )
        at = loop.time()
        await first.nak(0.4)
        await first.ack()  # too late: settled is settled
        await second.ack()
        (again,) = await take(sub, 1)
        assert 0.39 < loop.time() - at < ACK_WAIT_S
        assert (again.stored.stream_sequence, again.delivered) == (1, 2)
        with pytest.raises(InvalidError, match="delay_s must be 0 to 86400, got -1"):
            await again.nak(-1)
        await again.nak(0)
        (third,) = await take(sub, 1)
        assert third.delivered == 3
        await third.ack()
    assert await rest(ledger, "s") == []


async def test_a_delivery_as_a_block_is_settled_by_how_the_block_ends(ledger: Ledger) -> None:
    await enqueue(ledger, 1)
    async with ledger.subscription("s") as sub:
        (first,) = await take(sub, 1)
        with pytest.raises(ZeroDivisionError):
            async with first:
                _ = 1 / 0
        (again,) = await take(sub, 1)
        async with again as delivery:
            match delivery.event:
                case Queued(job=job):
                    assert job == "n1"
                case _:
                    pytest.fail("the union is made for match")
    assert await rest(ledger, "s") == []


async def test_a_delay_lasts_when_its_reader_leaves(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2)
    loop = asyncio.get_running_loop()
    used = ledger.subscription("s", ack_wait_s=ACK_WAIT_S)
    async with used as sub:
        first, second = await take(sub, 2)
        at = loop.time()
        await second.ack()
        await first.nak(0.4)
    async with ledger.subscription("s") as sub:
        (again,) = await take(sub, 1)
        assert 0.39 < loop.time() - at < ACK_WAIT_S
        await again.ack()
    with pytest.raises(InvalidError, match="was opened before: make another one"):
        await used.open()
    with pytest.raises(InvalidError, match="is read inside its block"):
        await anext(ledger.subscription("s"))


async def test_readers_of_one_name_share_its_events(connected: Connect) -> None:
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def read(reader: int, sub: Any) -> None:
        async for delivery in sub:
            async with delivery:
                await asyncio.sleep(0)
            seen[reader].append(delivery.stored.stream_sequence)

    async with connected() as one, connected() as two:
        async with (
            one.subscription("shared", max_in_flight=4) as mine,
            two.subscription("shared", max_in_flight=4) as others,
            asyncio.TaskGroup() as group,
        ):
            # Two loops over one subscription, and one in what could be another process.
            readers = [group.create_task(read(n, sub)) for n, sub in enumerate((mine, mine, others))]
            await enqueue(one, *range(300))
            await until(lambda: sum(map(len, seen.values())) >= 300)
            for each in readers:
                each.cancel()
        assert await rest(one, "shared") == []
    assert sorted(itertools.chain(*seen.values())) == list(range(1, 301))  # each event once
    assert all(seen.values())


async def test_a_slow_handler_keeps_what_it_and_its_queue_hold(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2)
    async with ledger.subscription("s", ack_wait_s=2) as sub:
        held = await take(sub, 1)
        async with asyncio.timeout(LIMIT_S):
            while (await sub.info()).in_flight < 2:  # else the other one may be given the second
                await asyncio.sleep(0.01)
        async with ledger.subscription("s") as other:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(4.5):  # more than two ack waits
                    await anext(other)
        held += await take(sub, 1)
        assert [each.delivered for each in held] == [1, 1]
        for each in held:
            await each.ack()
    assert await rest(ledger, "s") == []


async def test_an_event_that_is_held_for_too_long_goes_to_others(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    await enqueue(ledger, 1)
    async with ledger.subscription("s", ack_wait_s=1, held_s_max=1.0, max_in_flight=1) as sub:
        (lost,) = await take(sub, 1)
        (found,) = await take(sub, 1)
        assert (found.stored.stream_sequence, found.delivered) == (1, 2)
        await found.ack()
        await lost.nak()  # no longer its to settle
    assert "stream sequence 1 was not settled within 1 s" in caplog.text
    assert await rest(ledger, "s") == []


# Live.


async def test_live_sees_everything_from_its_start_on_and_nothing_before(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2)
    async with ledger.events(live=True, types=["queued"]) as events:
        await enqueue(ledger, *range(3, 13))  # before the first look
        assert [stored.stream_sequence for stored in await take(events, 10)] == list(range(3, 13))


async def test_a_stream_ends_with_its_block_and_cannot_be_closed_under_a_reader(ledger: Ledger) -> None:
    await enqueue(ledger, 1)
    async with ledger.events() as events:
        assert len(await take(events, 1)) == 1
    with pytest.raises(StopAsyncIteration):
        await anext(events)
