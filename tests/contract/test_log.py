"""What every log promises of appending: conditions, order, batches, races, limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.log_entries import LIMIT_S, chain_of, collect, entry, event, fill, link, links, sequences

from jobledger.ledger.model.errors import (
    LedgerFullError,
    PayloadTooLargeError,
    SequenceGapError,
    WrongSequenceError,
)
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef

pytestmark = pytest.mark.anyio

MakeLog = Callable[..., AbstractAsyncContextManager[Log]]


async def test_an_empty_log_is_empty(log: Log) -> None:
    head = await log.head()
    assert (head.first_sequence, head.last_sequence, head.stored_bytes) == (1, 0, 0)
    assert await log.read_chain(chain_of(log)) == []
    assert await log.get(1) is None
    assert await collect(log.read()) == []


async def test_sequences_are_dense_from_one(log: Log) -> None:
    assert await log.append([entry(log, 0)]) == 1
    assert await log.append([entry(log, 0, event("j2"))]) == 2
    assert await log.append([entry(log, 1, event(last=True))]) == 3
    assert (await log.head()).last_sequence == 3


@pytest.mark.parametrize("expected", [0, 1, 3])
async def test_a_stale_condition_is_refused_and_changes_nothing(log: Log, expected: int) -> None:
    first = entry(log, 0)
    await log.append([first])
    await log.append([link(log, first, 1, event(by="w2"))])  # the chain is at 2
    before = await log.head()
    with pytest.raises(WrongSequenceError) as caught:
        async with asyncio.timeout(LIMIT_S):
            await log.append([entry(log, expected, event(last=True))])
    assert (caught.value.chain, caught.value.expected) == (chain_of(log), expected)
    assert await log.head() == before
    assert sequences(await log.read_chain(chain_of(log))) == [1, 2]


async def test_a_condition_on_a_chain_that_does_not_exist_is_refused(log: Log) -> None:
    await fill(log, 3)
    with pytest.raises(WrongSequenceError):
        async with asyncio.timeout(LIMIT_S):
            await log.append([entry(log, 2, event(last=True))])
    assert (await log.head()).last_sequence == 3


async def test_a_refused_writer_may_go_on(log: Log) -> None:
    await log.append([entry(log, 0)])
    with pytest.raises(WrongSequenceError):
        await log.append([entry(log, 0, event(by="w2"))])
    assert await log.append([entry(log, 1, event(by="w2", last=True))]) == 2


async def test_other_chains_do_not_move_a_condition(log: Log) -> None:
    await log.append([entry(log, 0)])
    await fill(log, 5)
    await log.append([entry(log, 0, event("j1", queue="other"))])
    await log.append([entry(log, 0, event("j1-2"))])
    assert await log.append([entry(log, 1, event(last=True))]) == 9


async def test_several_entries_are_stored_as_one_in_order(log: Log) -> None:
    first = entry(log, 0)
    await log.append([first])
    batch = [*links(log, 2, after=first, expected=1), entry(log, 0, event("j2"))]
    assert await log.append(batch) == 2
    assert [stored.data for stored in await collect(log.read(from_sequence=2))] == [
        each.data for each in batch
    ]
    assert sequences(await log.read_chain(chain_of(log))) == [1, 2, 3]


@pytest.mark.parametrize("bad_last", [True, False])
async def test_of_two_chains_one_failed_condition_stores_nothing(log: Log, bad_last: bool) -> None:
    await log.append([entry(log, 0)])
    good, bad = entry(log, 0, event("j2")), entry(log, 0, event(by="late"))
    with pytest.raises(WrongSequenceError) as caught:
        async with asyncio.timeout(LIMIT_S):
            await log.append([good, bad] if bad_last else [bad, good])
    assert caught.value.chain == chain_of(log)
    assert (await log.head()).last_sequence == 1
    assert await log.read_chain(chain_of(log, "j2")) == []
    assert await log.append([good]) == 2


async def test_a_thousand_entries_are_one_append(log: Log) -> None:
    first = entry(log, 0)
    batch = links(log, 1_000, after=first, expected=await log.append([first]))
    assert await log.append(batch) == 2
    assert sequences(await log.read_chain(chain_of(log))) == list(range(1, 1_002))


async def test_the_clock_of_the_log_is_aware_and_does_not_go_back(log: Log) -> None:
    await fill(log, 5)
    events = await collect(log.read())
    moments = [stored.stored_at for stored in events]
    assert all(moment.utcoffset() == timedelta(0) for moment in moments)
    assert moments == sorted(moments)
    assert abs(datetime.now(UTC) - moments[0]) < timedelta(minutes=1)
    assert [(await log.get(n)) for n in (1, 5)] == [events[0], events[4]]


async def test_the_head_counts_bytes(log: Log) -> None:
    await fill(log, 2)
    before = (await log.head()).stored_bytes
    await log.append([entry(log, 0, event(text="x" * 10_000))])
    assert (await log.head()).stored_bytes - before > 10_000


async def test_a_cancelled_append_is_stored_or_not_and_leaves_the_log_usable(log: Log) -> None:
    task = asyncio.ensure_future(log.append([entry(log, 0)]))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await log.append([entry(log, 0, event("j2"))])
    assert sequences(await log.read_chain(chain_of(log))) in ([], [1])
    assert sequences(await collect(log.read())) in ([1], [1, 2])


async def test_an_event_that_is_too_large_is_refused_and_changes_nothing(log: Log) -> None:
    large = entry(log, 0, event("large", text="x" * (1 << 20)))
    with pytest.raises(PayloadTooLargeError):
        await log.append([large])
    with pytest.raises(PayloadTooLargeError):
        await log.append([entry(log, 0), large])
    assert (await log.head()).last_sequence == 0
    assert await log.append([entry(log, 0)]) == 1


async def stored_until_full(log: Log) -> int:
    for number in range(100):
        try:
            await log.append([entry(log, 0, event(f"j{number}", text="x" * 10_000))])
        except LedgerFullError:
            return number
    pytest.fail("the log took more than it may hold")


async def test_a_full_log_refuses_and_keeps_what_it_has(make_log: MakeLog) -> None:
    async with make_log(stored_bytes_max=1 << 17) as log:
        async with asyncio.timeout(LIMIT_S):
            stored = await stored_until_full(log)
        assert 5 < stored < 14
        batch = [entry(log, 0, event(f"k{number}", text="x" * 10_000)) for number in range(5)]
        with pytest.raises(LedgerFullError):
            await asyncio.wait_for(log.append(batch), LIMIT_S)
        assert sequences(await collect(log.read())) == list(range(1, stored + 1))


async def test_of_nine_writers_racing_for_a_chain_one_wins(log: Log) -> None:
    async def race(job_id: str, writer: int) -> int | None:
        try:
            return await log.append([entry(log, 0, event(job_id, by=f"w{writer}"))])
        except WrongSequenceError:
            return None

    chains = [f"race-{number}" for number in range(50)]
    async with asyncio.timeout(LIMIT_S):
        results = await asyncio.gather(*(race(job_id, writer) for job_id in chains for writer in range(9)))
    for number, job_id in enumerate(chains):
        answers = results[number * 9 : number * 9 + 9]
        (stored,) = await log.read_chain(chain_of(log, job_id))
        assert [answer for answer in answers if answer is not None] == [stored.stream_sequence]
        assert stored.event.by == f"w{answers.index(stored.stream_sequence)}"
    assert (await log.head()).last_sequence == 50


async def test_of_writers_racing_on_a_growing_chain_one_wins_each_round(log: Log) -> None:
    last = await log.append([entry(log, 0)])
    for round_number in range(10):
        answers = await asyncio.gather(
            *(
                log.append(
                    [entry(log, last, event(by=f"w{writer}-{round_number}")), entry(log, None, event(by="b"))]
                )
                for writer in range(5)
            ),
            return_exceptions=True,
        )
        won = [answer for answer in answers if isinstance(answer, int)]
        lost = [answer for answer in answers if isinstance(answer, WrongSequenceError)]
        assert (len(won), len(lost)) == (1, 4)
        assert won == [last + 1]
        last += 2


async def test_submitted_appends_arrive_in_order_and_answer_each_for_itself(log: Log) -> None:
    order: list[Any] = [(f"s{number}", 0) for number in range(200)]
    order.insert(100, ("s7", 0))  # the id exists by then
    futures = [
        log.submit([entry(log, expected, event(job_id, by=f"{n}"))])
        for n, (job_id, expected) in enumerate(order)
    ]
    async with asyncio.timeout(LIMIT_S):
        answers = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(answers.pop(100), WrongSequenceError)
    assert answers == list(range(1, 201))


async def test_what_is_purged_is_gone_and_the_rest_is_as_it_was(log: Log) -> None:
    first, second = event("j1"), event("j2")
    await log.append([entry(log, 0, first)])
    await log.append([entry(log, 0, second)])
    await log.append([entry(log, 1, event("j1", text="later"))])
    await log.purge(2)
    await log.purge(1)  # again, and less: nothing to do
    head = await log.head()
    assert (head.first_sequence, head.last_sequence) == (3, 3)
    assert await log.get(2) is None
    chain = log.names.chain(JobRef(queue="email", job_id="j1"))
    assert [stored.stream_sequence for stored in await log.read_chain(chain)] == [3]
    assert await log.read_chain(log.names.chain(JobRef(queue="email", job_id="j2"))) == []
    # The beginning is where the log begins by now; a place before it is not held any more.
    for begin in (1, 3):
        async with aclosing(log.read(from_sequence=begin)) as batches:
            assert [stored.stream_sequence async for batch in batches for stored in batch] == [3]
    with pytest.raises(SequenceGapError, match="begins at stream sequence 3: 2 was moved into an archive"):
        async with aclosing(log.read(from_sequence=2)) as batches:
            _ = [batch async for batch in batches]
    # A chain that is gone begins again; one that is held in part goes on.
    assert await log.append([entry(log, 0, event("j2"))]) == 4
    with pytest.raises(WrongSequenceError):
        await log.append([entry(log, 1, event("j1"))])
    assert await log.append([entry(log, 3, event("j1"))]) == 5
    await log.purge(5)
    assert (await log.head()).first_sequence == 6
    async with aclosing(log.read()) as batches:
        assert [batch async for batch in batches] == []
    assert await log.append([entry(log, 0, event("j1"))]) == 6
