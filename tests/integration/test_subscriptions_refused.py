"""What a subscription refuses on a real server: changed settings, deletion, wrong options, events that cannot be read."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.support.jetstream import api
from tests.support.subscribing import enqueue, rest, take, until_acknowledged
from tests.support.tables import each_row
from tests.support.working import until

from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import InvalidError, LedgerError, UnknownEventError
from jobledger.ledger.subscriptions.errors import SubscriptionMismatchError, SubscriptionNotFoundError

pytestmark = pytest.mark.anyio


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
        sub._pulling.lose()  # looks at it again, and so knows where it was
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


async def test_a_subscription_that_was_deleted_and_made_anew_is_noticed(ledger: Ledger) -> None:
    await enqueue(ledger, 1)
    async with ledger.subscription("s") as sub:
        for each in await take(sub, 1):
            await each.ack()
        await ledger.delete_subscription("s")
        async with ledger.subscription("s"):
            with pytest.raises(SubscriptionNotFoundError, match="was deleted and made again"):
                await take(sub, 1)


@each_row(
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
        ({"queue": 5}, "queue 5 is not valid"),
        ({"types": 5}, "types must be a list of event types, got 5"),
        ({"types": None}, "types must be a list of event types, got None"),
        ({"types": [5]}, "there is no event type '5'"),
        ({"types": [["queued"]]}, "there is no event type"),
        ({"since": "x"}, "since must be a datetime, such as .*, got 'x'"),
        ({"since": 1_700_000_000}, "since must be a datetime"),
        ({"since": date(2026, 1, 2)}, "since must be a datetime"),
        ({"since": datetime(2026, 1, 2)}, "since has no time zone"),  # noqa: DTZ001
        ({"since": datetime.max.replace(tzinfo=UTC)}, "since must be from 1970 to 2261"),
        (
            {"since": datetime.min.replace(tzinfo=timezone(timedelta(hours=9)))},
            "since must be from 1970 to 2261",
        ),
        ({"from_sequence": "3"}, "from_sequence must be a whole number, got '3'"),
        ({"from_sequence": True}, "from_sequence must be a whole number, got True"),
        ({"from_sequence": 3.0}, "from_sequence must be a whole number"),
        ({"from_sequence": -1}, "from_sequence is -1: sequences begin at 1"),
        (
            {"from_sequence": 10**5_000},
            "from_sequence must be below 2 to the power of 63, got a very long one",
        ),
        ({"from_sequence": 2**64}, "from_sequence must be below 2 to the power of 63"),
        ({"live": "no"}, "live must be True or False, got 'no'"),
        ({"follow": 0}, "follow must be True or False, got 0"),
        ({"durable": 5}, "subscription 5 is not valid"),
        ({"durable": "x", "create": "yes"}, "create must be True or False"),
        ({"durable": "x", "max_in_flight": True}, "max_in_flight must be a whole number, got True"),
        (
            {"durable": "x", "max_in_flight": 10**5_000},
            "max_in_flight must be 1 to 10000, got a very long one",
        ),
        ({"durable": "x", "max_in_flight": "4"}, "max_in_flight must be a whole number"),
        ({"durable": "x", "ack_wait_s": "30"}, "ack_wait_s must be a number, got '30'"),
        ({"durable": "x", "ack_wait_s": float("nan")}, "ack_wait_s must be 1 to 3600"),
        ({"durable": "x", "held_s_max": None}, "held_s_max must be a number, got None"),
    ],
)
async def test_wrong_options_are_refused_at_once(ledger: Ledger, options: Any, sentence: str) -> None:
    with pytest.raises(InvalidError, match=sentence):
        ledger.events(**options)


async def test_a_beginning_beyond_the_end_is_refused(ledger: Ledger) -> None:
    await enqueue(ledger, 1)
    with pytest.raises(InvalidError, match="from_sequence 3 lies beyond the ledger's end, which is 1"):
        await anext(ledger.events(from_sequence=3, durable="x"))
    cases: list[dict[str, Any]] = [{"types": ["queued"]}, {"follow": False}]
    for options in cases:
        with pytest.raises(
            InvalidError, match="from_sequence 3 lies beyond the ledger's end, which is 1: begin at 2"
        ):
            await anext(ledger.events(from_sequence=3, **options))
    assert [each async for each in ledger.events(from_sequence=2, follow=False)] == []
    assert await ledger.subscriptions() == []


@pytest.mark.unsound_ledger("a message that is no event is planted")
async def test_what_is_no_event_is_handed_to_nobody(ledger: Ledger) -> None:
    await enqueue(ledger, 1)
    await ledger.connection.request(f"{ledger.names.ledger_root}.job.billing.n9.queued.normal", b"{}")
    await enqueue(ledger, 10)
    assert await rest(ledger, "s") == [1, 3]
    assert [info.in_flight for info in await ledger.subscriptions()] == [0]
    assert [stored.stream_sequence async for stored in ledger.events(follow=False)] == [1, 3]


@pytest.mark.unsound_ledger("an event of a newer version is planted")
async def test_an_event_of_a_newer_version_stops_the_reader_and_stays(ledger: Ledger) -> None:
    await enqueue(ledger, 1)
    data = b'{"type":"queued","v":2,"at":"2026-01-02T00:00:00Z","by":"w","queue":"billing","job":"n9"}'
    await ledger.connection.request(f"{ledger.names.ledger_root}.job.billing.n9.queued.normal", data)
    with pytest.raises(
        UnknownEventError, match="stream sequence 2 was written by a newer jobledger: upgrade"
    ):
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
