"""What a projection answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.support.histories import SteppedClock, act
from tests.support.projections import finish

from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import (
    DeadLetterFilter,
    JobRow,
    Store,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    log, clock = MemoryLog(), SteppedClock()
    for number in range(30):
        await act(log, number, "claim", clock)
    for number in range(12):
        await act(log, number, "claim", clock)
    for number in range(6):
        await act(log, number, "complete", clock)
    for number in range(6, 10):
        await act(log, number, "give_up", clock)
    await act(log, 6, "requeue_large", clock)
    await act(log, 7, "discard", clock)
    await act(log, 8, "requeue_edited", clock)
    await finish(log, tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        yield store


def numbers(found: Sequence[JobRow]) -> list[int]:
    return [int(row.id[-5:]) for row in found]


async def test_jobs_are_listed_by_every_filter_in_order(store: Store) -> None:
    assert numbers(store.jobs(limit=3)) == [29, 28, 27]
    assert numbers(store.jobs(limit=3, order="oldest")) == [0, 1, 2]
    assert numbers(store.jobs(state=JobState.COMPLETED)) == [5, 4, 3, 2, 1, 0]
    assert numbers(store.jobs(queue="queue-1", limit=4)) == [28, 25, 22, 19]
    assert numbers(store.jobs(queue="queue-1", limit=4, order="oldest")) == [1, 4, 7, 10]
    assert numbers(store.jobs(queue="queue-1", state="completed")) == [4, 1]
    assert numbers(store.jobs(queue="queue-1", task="app.task_0", limit=2)) == [28, 22]
    since = store.jobs(limit=2)[-1].created_at
    assert numbers(store.jobs(since=since)) == [29, 28]
    assert store.jobs(queue="nowhere") == []


async def test_one_job_is_read_with_its_attempts(store: Store) -> None:
    row = store.job("queue-0", "job-00003")
    assert row is not None
    assert msgspec.json.decode(msgspec.json.encode(row))["input"] == {"number": 3}
    assert (row.status, row.attempt_count, row.worker) == ("completed", 1, None)
    (attempt,) = store.attempts("queue-0", "job-00003")
    assert (attempt.id, attempt.status, attempt.worker) == ("queue-0/job-00003/1", "completed", "w-3")
    assert attempt.duration_ms is not None
    assert store.job("queue-1", "job-00003") is None
    assert store.attempts("queue-1", "job-00003") == []


async def test_requeued_job_shows_its_new_input(store: Store) -> None:
    edited, large = store.job("queue-2", "job-00008"), store.job("queue-0", "job-00006")
    assert edited is not None
    assert large is not None
    assert edited.input == msgspec.Raw(b'{"number":-1}')
    assert large.input == msgspec.Raw(b'{"sha256":"%s","size_bytes":70000}' % (b"ab" * 32))


async def test_prefix_finds_jobs_and_an_exact_id_is_alone(store: Store) -> None:
    assert store.find("job-00003") == [JobRef(queue="queue-0", job_id="job-00003")]
    assert [each.job_id for each in store.find("job-0001")] == [
        f"job-000{number}" for number in range(10, 20)
    ]
    assert len(store.find("job-")) == 20
    assert [each.job_id for each in store.find("job-0001", queue="queue-0")] == [
        "job-00012",
        "job-00015",
        "job-00018",
    ]
    assert store.find("job-00003x") == []
    assert store.find("%") == store.find("zzz") == []


async def test_dead_letters_are_those_that_wait_for_a_person(store: Store) -> None:
    (letter,) = store.dead_letters()
    assert (letter.job_id, letter.reason, letter.error_type, letter.attempts) == (
        "job-00009",
        "rejected",
        "ValueError",
        1,
    )
    assert letter.traceback == "Traceback ..."
    assert store.dead_letters(queue="queue-1") == []
    assert store.dead_letters(reason="rejected", queue="queue-0") == [letter]
    after = letter.dead_at.replace("0Z", "1Z")  # text order is time order
    for chosen, found in [
        (DeadLetterFilter(fingerprint=letter.fingerprint[:5]), [letter]),
        (DeadLetterFilter(fingerprint="g"), []),
        (DeadLetterFilter(since=letter.dead_at), [letter]),
        (DeadLetterFilter(until=letter.dead_at), []),
        (DeadLetterFilter(until=after, task=letter.task), [letter]),
    ]:
        assert store.dead_letters(chosen=chosen) == found
        assert store.dead_letter_count(chosen) == len(found)
        groups = store.dead_letter_groups(chosen=chosen)
        assert [(group.count, group.job_id, group.newest) for group in groups] == [
            (1, each.job_id, each.dead_at) for each in found
        ]


async def test_counts_queues_slowest_and_position(store: Store) -> None:
    counts = store.counts_by_state()
    assert {state: count for state, count in counts.items() if count} == {
        "completed": 6,
        "discarded": 1,
        "dead_lettered": 1,
        "queued": 20,
        "running": 2,
    }
    assert sum(store.counts_by_state("queue-0").values()) == 10
    queues = {row.queue: row for row in store.queues()}
    counts = {state: count for state, count in queues["queue-0"].counts.items() if count}
    assert counts == {"completed": 2, "dead_lettered": 1, "queued": 7}
    durations = [row.duration_ms for row in store.slowest(5)]
    assert durations == sorted(durations, reverse=True)
    assert len(durations) == 5
    assert store.position().stream_sequence == 30 + 12 + 6 + 8 + 3
