"""What every log promises of reading: everything once and in order, filters, followers, what cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.log_entries import (
    LIMIT_S,
    NOW,
    chain_of,
    collect,
    entry,
    event,
    fill,
    link,
    links,
    reading,
    sequences,
)

from jobledger.ledger.model.chain import catch_up, fold, load
from jobledger.ledger.model.codec import StoredEvent, encode
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    SequenceGapError,
    UnknownEventError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import Cancelled, ErrorInfo, Failed, JobEvent, Queued, Started
from jobledger.ledger.model.lock import LOCK
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.subjects import JobRef, LockRef

pytestmark = pytest.mark.anyio
_COMMON: dict[str, Any] = {"job": "j1", "queue": "email", "task": "t", "at": NOW, "by": "w"}
_ERROR = ErrorInfo(kind="exception", type="ValueError", message="no")
EVENTS: dict[str, JobEvent] = {
    "queued": Queued(**_COMMON),
    "started": Started(**_COMMON, attempt=1, worker="w", lease_s=15.0),
    "failed": Failed(**_COMMON, attempt=1, error=_ERROR),
    "cancelled": Cancelled(**_COMMON),
}


async def test_a_chain_is_read_in_order_with_its_exact_bytes(log: Log) -> None:
    raw = msgspec.Raw(b'{ "b": 1.0,\t"a": "\\u00e9" }')
    first = Queued(job="j1", queue="email", task="t", at=NOW, by="w", input=raw)
    entries = [
        entry(log, 0, first),
        entry(log, None, event(text="é\u200b漢\U0001f600")),
        entry(log, None, event(last=True)),
    ]
    await fill(log, 3)
    await log.append(entries)
    await fill_more(log, "x", 3)
    chain = await log.read_chain(chain_of(log))
    assert [stored.data for stored in chain] == [each.data for each in entries]
    assert sequences(chain) == [4, 5, 6]
    assert chain[0].event == first
    assert all(encode(stored.event) == stored.data for stored in chain)


async def fill_more(log: Log, prefix: str, count: int) -> None:
    await log.append([entry(log, 0, event(f"{prefix}-{number}")) for number in range(count)])


async def test_a_long_chain_is_read_whole(log: Log) -> None:
    batch = links(log, 700)
    await log.append(batch)
    assert [stored.data for stored in await log.read_chain(chain_of(log))] == [each.data for each in batch]


@pytest.mark.parametrize("text_bytes", [10, 100_000])
async def test_many_chains_read_at_once_are_each_their_own(log: Log, text_bytes: int) -> None:
    # More than go into one request, and in the second case more than is answered at once.
    ids = [f"many-{number}" for number in range(120)]
    made = {each: entry(log, 0, event(each, text=f"{each} " + "x" * text_bytes)) for each in ids}
    for each in made.values():
        await log.append([each])
    wanted = [*ids, "nobody", ids[7]]
    async with asyncio.timeout(LIMIT_S):
        found = await asyncio.gather(*(log.read_chain(chain_of(log, each)) for each in wanted))
    assert [[stored.data for stored in chain] for chain in found] == [
        [made[each].data] if each in made else [] for each in wanted
    ]


async def test_a_chain_of_many_types_far_apart_is_read_whole(log: Log) -> None:
    kinds = ["queued", "started", "failed", "queued", "started", "failed", "queued", "cancelled"]
    made: list[Entry] = []
    expected = 0
    for kind in kinds:
        one = EVENTS[kind]
        made.append(link(log, made[-1], expected, one) if made else entry(log, expected, one))
        expected = await log.append([made[-1]])
        await fill_more(log, f"between-{len(made)}", 40)
    assert [stored.data for stored in await log.read_chain(chain_of(log))] == [each.data for each in made]


async def test_a_chain_whose_links_are_broken_is_still_read_whole(log: Log) -> None:
    broken = [entry(log, 0), entry(log, None, event(last=True)), entry(log, None, event(by="w2"))]
    await log.append(broken)
    assert [stored.data for stored in await log.read_chain(chain_of(log))] == [each.data for each in broken]


async def test_a_filter_may_span_queues_but_not_ids(log: Log) -> None:
    for number, (job_id, queue) in enumerate(
        [("j1", "a"), ("j1", "b"), ("j10", "a"), ("j", "a"), ("j1", "c")]
    ):
        assert await log.append([entry(log, 0, event(job_id, queue=queue))]) == number + 1
    assert sequences(await log.read_chain(log.names.chains_of_id("j1"))) == [1, 2, 5]
    assert sequences(await log.read_chain(chain_of(log, "j1", "b"))) == [2]
    assert sequences(await log.read_chain(log.names.all_events)) == [1, 2, 3, 4, 5]
    assert await log.read_chain(log.names.chains_of_id("nobody")) == []


async def test_get_gives_the_event_at_a_sequence(log: Log) -> None:
    data = await fill(log, 3)
    found = await log.get(2)
    assert found is not None
    assert (found.stream_sequence, found.data) == (2, data[1])
    assert [await log.get(sequence) for sequence in (0, 4, -1)] == [None, None, None]


@pytest.mark.parametrize(("start", "expected"), [(1, [1, 2, 3, 4, 5]), (3, [3, 4, 5]), (5, [5]), (6, [])])
async def test_reading_starts_at_a_sequence(log: Log, start: int, expected: list[int]) -> None:
    await fill(log, 5)
    assert sequences(await collect(log.read(from_sequence=start))) == expected


async def test_reading_gives_everything_once_and_in_order(log: Log) -> None:
    data = await fill(log, 2_500)
    events = await collect(log.read())
    assert sequences(events) == list(range(1, 2_501))
    assert [stored.data for stored in events] == data


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("start", [3, 100])
async def test_reading_from_beyond_the_head_is_refused(log: Log, start: int, follow: bool) -> None:
    await fill(log, 1)
    with pytest.raises(SequenceGapError):
        await collect(log.read(from_sequence=start, follow=follow))


async def test_reading_starts_at_a_time(log: Log) -> None:
    await fill(log, 3)
    third = (await collect(log.read()))[-1].stored_at
    while datetime.now(UTC) <= third:  # the next event gets a later microsecond
        await asyncio.sleep(0)
    await fill_more(log, "later", 2)
    fourth = (await collect(log.read()))[3].stored_at
    assert sequences(await collect(log.read(from_time=fourth))) == [4, 5]
    assert await collect(log.read(from_time=datetime.now(UTC) + timedelta(hours=1))) == []
    assert len(await collect(log.read(from_time=NOW))) == 5


async def test_reading_may_be_filtered_by_subject(log: Log) -> None:
    await log.append([entry(log, 0, event("a", queue="q1"))])
    await log.append([entry(log, 0, event("b", queue="q2"))])
    await log.append([entry(log, 1, event("a", queue="q1", last=True))])
    root = log.names.ledger_root
    assert sequences(await collect(log.read(subject=f"{root}.job.q1.>"))) == [1, 3]
    assert sequences(await collect(log.read(subject=f"{root}.job.*.*.cancelled"))) == [3]
    assert sequences(await collect(log.read(subject=log.names.dispatches("q2", "normal")))) == [2]
    assert sequences(await collect(log.read(subject=f"{root}.job.q1.>", from_sequence=2))) == [3]
    assert await collect(log.read(subject=f"{root}.job.q9.>")) == []


async def test_a_finite_read_ends_where_the_log_ended_when_it_began(log: Log) -> None:
    await fill(log, 400)
    found: list[StoredEvent] = []
    async with reading(log.read()) as reader, asyncio.timeout(LIMIT_S):
        async for batch in reader:
            if not found:
                await fill_more(log, "later", 50)
            found.extend(batch)
    assert sequences(found) == list(range(1, 401))


async def test_following_gets_what_comes_later(log: Log) -> None:
    await fill(log, 2)
    found: list[StoredEvent] = []
    async with reading(log.read(follow=True)) as reader, asyncio.timeout(LIMIT_S):
        async for batch in reader:
            found.extend(batch)
            if len(found) == 2:
                await fill_more(log, "later", 3)
            if len(found) == 5:
                break
    assert sequences(found) == [1, 2, 3, 4, 5]


async def test_following_an_empty_log_waits_for_its_first_event(log: Log) -> None:
    async with reading(log.read(follow=True)) as reader, asyncio.timeout(LIMIT_S):
        first = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        await fill(log, 1)
        assert sequences(await first) == [1]


async def test_following_a_filter_passes_over_the_rest(log: Log) -> None:
    subject = f"{log.names.ledger_root}.job.q1.>"
    async with reading(log.read(follow=True, subject=subject)) as reader, asyncio.timeout(LIMIT_S):
        first = asyncio.ensure_future(anext(reader))
        await fill(log, 3)
        await log.append([entry(log, 0, event("a", queue="q1"))])
        assert sequences(await first) == [4]


async def test_two_readers_do_not_disturb_each_other(log: Log) -> None:
    await fill(log, 300)
    one, other = await asyncio.gather(collect(log.read()), collect(log.read(from_sequence=150)))
    assert (sequences(one), sequences(other)) == (list(range(1, 301)), list(range(150, 301)))


async def test_a_cancelled_reader_leaves_the_log_usable(log: Log) -> None:
    await fill(log, 3)

    async def read_on() -> None:
        async with reading(log.read(follow=True)) as reader:
            async for _ in reader:
                seen.set()

    seen = asyncio.Event()
    task = asyncio.ensure_future(read_on())
    async with asyncio.timeout(LIMIT_S):
        await seen.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    await fill_more(log, "later", 1)
    assert sequences(await collect(log.read())) == [1, 2, 3, 4]
    assert (await log.get(4)) is not None


async def test_what_no_version_knows_stops_its_readers_and_nobody_else(log: Log) -> None:
    await log.append([entry(log, 0)])
    subject = f"{log.names.ledger_root}.job.email.new.escalated"
    await log.append([Entry(subject, newer("escalated", "email", "new"), chain_of(log, "new"), 0)])
    with pytest.raises(
        UnknownEventError, match="stream sequence 2 was written by a newer jobledger: upgrade"
    ):
        await collect(log.read())
    with pytest.raises(UnknownEventError):
        await log.read_chain(chain_of(log, "new"))
    with pytest.raises(UnknownEventError):
        await log.get(2)
    assert sequences(await log.read_chain(chain_of(log))) == [1]


def newer(kind: str, queue: str = "", job: str = "") -> bytes:
    """An event as a later version may append it."""
    said = {"type": kind, "v": 1, "at": NOW, "by": "w", "prev": "", "queue": queue, "job": job}
    return msgspec.json.encode(said)


async def test_what_precedes_an_event_of_a_newer_version_is_read_first_and_what_follows_can_be(
    log: Log,
) -> None:
    await fill(log, 2)
    subject = f"{log.names.ledger_root}.job.email.new.escalated"
    await log.append([Entry(subject, newer("escalated", "email", "new"), chain_of(log, "new"), 0)])
    await log.append([entry(log, 0, event("later"))])
    before: list[StoredEvent] = []
    with pytest.raises(CorruptLedgerError) as caught:
        await collect(log.read(), into=before)
    assert sequences(before) == [1, 2]
    assert (caught.value.stream_sequence, caught.value.next_sequence) == (3, 4)
    assert sequences(await collect(log.read(from_sequence=caught.value.next_sequence))) == [4]


async def test_every_way_to_read_tells_the_subject(log: Log) -> None:
    appended = entry(log, 0)
    await log.append([appended])
    found = [*await collect(log.read()), *await log.read_chain(chain_of(log)), await log.get(1)]
    assert [stored and stored.subject for stored in found] == [appended.subject] * 3


def lock_entry(log: Log, expected: int | None, data: bytes, event_type: str = "acquired") -> Entry:
    ref = LockRef(scope="account", lock_id="42")
    return Entry(
        LOCK.of_type(log.names, event_type, ref.scope, ref.lock_id),
        data,
        LOCK.chain(log.names, ref.scope, ref.lock_id),
        expected,
    )


async def test_events_of_another_aggregate_are_skipped_by_job_readers_and_counted(log: Log) -> None:
    await log.append([entry(log, 0), lock_entry(log, 0, b"one"), entry(log, None, event(last=True))])
    await log.append([lock_entry(log, 2, b"two", "released")])
    assert sequences(await collect(log.read())) == [1, 3]  # and no gap at 2
    assert sequences(await collect(log.read(from_sequence=2))) == [3]
    assert await collect(log.read(from_sequence=4)) == []
    assert sequences(await log.read_chain(log.names.all_events)) == [1, 3]
    with pytest.raises(WrongSequenceError):
        await log.append([lock_entry(log, 2, b"late")])


async def test_who_keeps_a_position_reads_every_aggregate(log: Log) -> None:
    await log.append([entry(log, 0), lock_entry(log, 0, b"one"), entry(log, None, event(last=True))])
    async with aclosing(log.read_messages()) as batches, asyncio.timeout(LIMIT_S):
        found = [message async for batch in batches for message in batch]
    assert [(each.stream_sequence, isinstance(each, StoredEvent)) for each in found] == [
        (1, True),
        (2, False),
        (3, True),
    ]
    assert (found[1].data, found[1].subject) == (b"one", f"{log.names.ledger_root}.lock.account.42.acquired")
    assert await log.get(2) == found[1]
    assert await log.get(3) == found[2]
    subject = LOCK.chain(log.names, "account", "42")
    async with aclosing(log.read_messages(subject=subject)) as batches, asyncio.timeout(LIMIT_S):
        assert [message async for batch in batches for message in batch] == [found[1]]


async def test_a_chain_is_read_on_from_what_is_known_of_it(log: Log) -> None:
    chain, batch = chain_of(log), links(log, 600)
    assert (await log.newest_sequence(chain), await log.read_on(chain, 0)) == (0, [])
    await log.append(batch)
    await fill_more(log, "x", 2)
    found = await log.read_on(chain, 290)
    assert (sequences(found), found.last_sequence) == (list(range(291, 601)), 600)
    assert [stored.data for stored in found] == [each.data for each in batch[290:]]
    nothing = await log.read_on(chain, 600)
    assert (nothing, nothing.last_sequence, await log.newest_sequence(chain)) == ([], 600, 600)
    known = fold((await log.read_chain(chain))[:290])
    assert await catch_up(log, JobRef(queue="email", job_id="j1"), known) == await load(
        log, JobRef(queue="email", job_id="j1")
    )


async def test_what_does_not_follow_on_the_known_view_is_not_built_upon_it(log: Log) -> None:
    ref = JobRef(queue="email", job_id="j1")
    await log.append([entry(log, 0, event(text="other"))])
    other = await load(log, ref)
    await log.append(links(log, 1, expected=1))  # linked to nothing that is known
    assert (await catch_up(log, ref, other)).last_sequence == 2
    assert await catch_up(log, ref, other) == await load(log, ref)


async def test_the_last_message_of_a_chain_is_found_without_the_chain(log: Log) -> None:
    chain = lock_entry(log, 0, b"").chain
    assert await log.last(chain) is None
    await log.append([lock_entry(log, 0, b"one"), entry(log, 0), lock_entry(log, None, b"two", "released")])
    await log.append([entry(log, 0, event("j2"))])
    found = await log.last(chain)
    assert found is not None
    assert (found.stream_sequence, found.data) == (3, b"two")
    newest = await log.last(log.names.all_events)
    assert newest is not None
    assert newest.stream_sequence == 4


@pytest.mark.parametrize("text", ["", "x" * 20_000], ids=["small", "more than one page"])
async def test_subjects_in_use_are_told_from_others(log: Log, text: str) -> None:
    kept = [event(f"j{number}", text=text, last=True) for number in range(300)]
    await log.append([entry(log, 0, each) for each in kept])
    subjects = [log.names.event(each) for each in kept]
    unused = [log.names.event(event(f"j{number}", queue="other", last=True)) for number in range(300)]
    assert await log.present([*unused, *subjects]) == set(subjects)
    assert await log.present(unused) == set()
    assert await log.present([]) == set()


async def test_an_aggregate_that_no_version_knows_stops_the_reader(log: Log) -> None:
    subject = f"{log.names.ledger_root}.comet.nightly.ticked"
    await log.append([entry(log, 0), Entry(subject, newer("ticked"), f"{subject}.>", 0)])
    with pytest.raises(UnknownEventError, match="stream sequence 2 is about something"):
        await collect(log.read())
