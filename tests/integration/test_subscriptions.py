"""Durable subscriptions against a real server: resuming, sharing, back-pressure, refusals, losses."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ServerFactory
from tests.support.working import Connect, until

from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.errors import (
    InvalidError,
    LedgerError,
    MalformedEventError,
    SequenceGapError,
    ServerUnreachableError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
)
from jobledger.ledger.events import Queued
from jobledger.ledger.streams import api

APPS = Path(__file__).parent / "apps"
SOURCES = os.pathsep.join(str(APPS.parents[2] / part) for part in ("ledger", "projections", "workers", "cli"))
LIMIT_S = 15.0

pytestmark = pytest.mark.anyio


@task(queue="billing", max_attempts=1)
async def charge(number: int) -> None: ...


@task(queue="mail", max_attempts=1)
async def send(number: int) -> None: ...


async def enqueue(ledger: Ledger, *numbers: int) -> None:
    """Add one job `n<number>`, one event, for each."""
    await ledger.enqueue_many(charge, [{"number": n} for n in numbers], ids=lambda each: f"n{each['number']}")


async def take(events: Any, count: int) -> list[Any]:
    async with asyncio.timeout(LIMIT_S):
        return [await anext(events) for _ in range(count)]


async def rest(ledger: Ledger, name: str, **options: Any) -> list[int]:
    """Handle all that a subscription has to give now; return the stream sequences."""
    events = ledger.events(durable=name, follow=False, **options)
    async with asyncio.timeout(LIMIT_S):
        return [stored.stream_sequence async for stored in events]


def sequences(deliveries: list[Any]) -> list[int]:
    return [each.stored.stream_sequence for each in deliveries]


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
        assert [info.acknowledged_sequence for info in await ledger.subscriptions()] == [1]


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
    async with ledger.subscription("s") as sub:
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
        assert 0.39 < loop.time() - at < 5
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
    used = ledger.subscription("s")
    async with used as sub:
        first, second = await take(sub, 2)
        at = loop.time()
        await second.ack()
        await first.nak(0.4)
    async with ledger.subscription("s") as sub:
        (again,) = await take(sub, 1)
        assert 0.39 < loop.time() - at < 5
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
    async with ledger.subscription("s", ack_wait_s=1) as sub, ledger.subscription("s") as other:
        held = await take(sub, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):  # more than two ack waits
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
    async with ledger.subscription("s", ack_wait_s=1, held_s_max=0.5, max_in_flight=1) as sub:
        (lost,) = await take(sub, 1)
        (found,) = await take(sub, 1)
        assert (found.stored.stream_sequence, found.delivered) == (1, 2)
        await found.ack()
        await lost.nak()  # no longer its to settle
    assert "stream sequence 1 was not settled within 0.5 s" in caplog.text
    assert await rest(ledger, "s") == []


# Refusals.


async def test_a_changed_filter_or_ack_wait_is_refused_with_what_to_do(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2, 3)
    assert await rest(ledger, "billing", types=["queued"]) == [1, 2, 3]
    with pytest.raises(SubscriptionMismatchError) as refused:
        await rest(ledger, "billing", types=["completed", "queued"], queue="mail", task="send", ack_wait_s=5)
    assert refused.value.differences == [
        "types is queued, not completed, queued",
        "queue is any, not mail",
        "task is any, not send",
        "ack_wait_s is 30, not 5",
    ]
    assert "events subscriptions remove billing" in str(refused.value)
    assert "from_sequence=4" in str(refused.value)
    assert (await ledger.delete_subscription("billing")).acknowledged_sequence == 3
    await enqueue(ledger, 4)
    assert await rest(ledger, "billing", queue="billing", from_sequence=4) == [4]


async def test_a_subscription_deleted_while_it_is_read_ends_with_an_error_and_is_not_made_anew(
    ledger: Ledger,
) -> None:
    await enqueue(ledger, 1, 2)
    async with ledger.subscription("s") as sub:
        for each in await take(sub, 2):
            await each.ack()
        await until_acknowledged(ledger, "s", 2)
        sub._lost = True  # looks at it again, and so knows where it was
        sub._wake.set()
        await until(lambda: sub._acknowledged == 2)
        await ledger.delete_subscription("s")
        with pytest.raises(
            SubscriptionNotFoundError, match=r"was deleted while it was read.*from_sequence=3"
        ):
            await take(sub, 1)
    assert await ledger.subscriptions() == []
    with pytest.raises(SubscriptionNotFoundError, match="there is no subscription 's'"):
        await ledger.delete_subscription("s")
    with pytest.raises(SubscriptionNotFoundError):
        await rest(ledger, "s", create=False)


async def until_acknowledged(ledger: Ledger, name: str, sequence: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while [i.acknowledged_sequence for i in await ledger.subscriptions() if i.name == name] != [sequence]:
            await asyncio.sleep(0.01)


async def test_a_subscription_that_was_deleted_and_made_anew_is_noticed(ledger: Ledger) -> None:
    await enqueue(ledger, 1)
    async with ledger.subscription("s") as sub:
        for each in await take(sub, 1):
            await each.ack()
        await ledger.delete_subscription("s")
        async with ledger.subscription("s"):
            with pytest.raises(SubscriptionNotFoundError, match="was deleted and made anew"):
                await take(sub, 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"durable": "a.b"}, "subscription 'a.b' is not valid"),
        ({"durable": ""}, "subscription '' is not valid"),
        ({"durable": "x", "max_in_flight": 0}, "max_in_flight must be 1 to 10000"),
        ({"durable": "x", "ack_wait_s": 0.1}, "ack_wait_s must be 1 to 3600"),
        ({"durable": "x", "held_s_max": 0}, "held_s_max must be above 0"),
        ({"durable": "x", "max_in_flite": 1}, "max_in_flite"),
        (
            {"durable": "x", "live": True, "from_sequence": 3},
            "from_sequence and live both say where to begin",
        ),
        ({"max_in_flight": 4}, "give durable= a name"),
        ({"live": True, "follow": False}, "would end before anything could come"),
        ({"types": "completed"}, r"give a list, as in types=\['completed'\]"),
        ({"types": ["acquired"]}, "there is no event type 'acquired'"),
        ({"task": "a b"}, "task name 'a b' is not valid"),
        ({"job": "*"}, "job id '\\*' is not valid"),
    ],
)
async def test_wrong_options_are_refused_at_once(ledger: Ledger, options: Any, sentence: str) -> None:
    with pytest.raises(InvalidError, match=sentence):
        ledger.events(**options)


async def test_a_beginning_beyond_the_end_is_refused(ledger: Ledger) -> None:
    await enqueue(ledger, 1)
    with pytest.raises(InvalidError, match="from_sequence 3 lies beyond the ledger's end, which is 1"):
        await anext(ledger.events(from_sequence=3, durable="x"))
    with pytest.raises(SequenceGapError, match="ends at stream sequence 1, before 3"):
        await anext(ledger.events(from_sequence=3, types=["queued"]))
    assert await ledger.subscriptions() == []


async def test_an_event_that_cannot_be_read_stops_the_reader_and_stays(ledger: Ledger) -> None:
    await enqueue(ledger, 1)
    names = ledger.names
    await ledger.connection.request(f"{names.ledger_root}.job.billing.n9.queued.normal", b"{}")
    with pytest.raises(MalformedEventError, match="stream sequence 2"):
        await rest(ledger, "s")
    assert [info.in_flight for info in await ledger.subscriptions()] == [1]


async def test_a_consumer_of_somebody_elses_making_is_not_used(ledger: Ledger) -> None:
    stream = ledger.names.ledger_stream
    config = {"durable_name": "events_x", "ack_policy": "explicit"}
    await api(ledger.inbox, f"CONSUMER.CREATE.{stream}.events_x", {"stream_name": stream, "config": config})
    with pytest.raises(LedgerError, match="not of jobledger's making"):
        await rest(ledger, "x")
    with pytest.raises(LedgerError, match="not of jobledger's making"):
        await ledger.delete_subscription("x")
    assert await ledger.subscriptions() == []


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


# Losses.


async def test_acks_and_events_survive_a_server_killed_under_its_readers(
    server_factory: ServerFactory,
) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, ledger_bytes_max=16 << 20) as ledger:
        seen: list[int] = []

        async def read() -> None:
            async with ledger.subscription("s", max_in_flight=8, ack_wait_s=2) as sub:
                async for delivery in sub:
                    async with delivery:
                        seen.append(delivery.stored.stream_sequence)

        async def watch() -> list[int]:
            async with ledger.events(live=True) as events:
                begun.set()
                return [stored.stream_sequence for stored in await take(events, 60)]

        begun = asyncio.Event()
        watching, reading = asyncio.create_task(watch()), asyncio.create_task(read())
        await begun.wait()
        await enqueue(ledger, *range(30))
        await until(lambda: len(seen) >= 10)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.stop()
        await server.start()
        await enqueue(ledger, *range(30, 60))
        await until(lambda: set(seen) >= set(range(1, 61)))
        assert await watching == list(range(1, 61))
        # What was acknowledged just before the kill comes again: the server writes acks down a moment later.
        await until_acknowledged(ledger, "s", 60)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_an_ack_that_could_not_be_sent_is_sent_after_the_reconnect(
    server_factory: ServerFactory,
) -> None:
    server = server_factory()
    await server.start()
    async with (
        connect(server.url, ledger_bytes_max=16 << 20) as ledger,
        ledger.subscription("s", ack_wait_s=60) as sub,
    ):
        await enqueue(ledger, 1, 2)
        first, second = await take(sub, 2)
        await server.stop()
        await until(lambda: not ledger.connection.is_connected)
        await first.ack()
        await second.nak()  # lost: comes again after its ack wait
        assert list(sub._owed) == [1]
        await server.start()
        await ledger.connection.wait_connected(LIMIT_S)
        await until_acknowledged(ledger, "s", 1)
        assert not sub._owed


async def test_a_connection_that_is_closed_ends_the_reader(connected: Connect) -> None:
    async with connected() as ledger, ledger.subscription("s") as sub:
        waiting = asyncio.create_task(anext(sub))
        await asyncio.sleep(0)
        await ledger.connection.close()
        with pytest.raises(ServerUnreachableError, match="closed while subscription s was read"):
            async with asyncio.timeout(LIMIT_S):
                await waiting


async def test_what_a_killed_process_held_is_handed_out_again(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2, 3)
    words = [sys.executable, str(APPS / "read_events.py"), ledger.config.url, ledger.names.environment]
    child = await asyncio.create_subprocess_exec(
        *words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCES}
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            lines = [int(await child.stdout.readline()) for _ in range(2)]
        assert lines == [1, 2]
        await until_acknowledged(ledger, "crash", 1)
    finally:
        child.send_signal(signal.SIGKILL)
        await child.wait()
    async with ledger.subscription("crash") as sub:
        found = sorted([(each.stored.stream_sequence, each.delivered) for each in await take(sub, 2)])
    assert found == [(2, 2), (3, 2)]
