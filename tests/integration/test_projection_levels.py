"""What queues held at the end of each minute: held against a fold of the events, whatever way they come."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.histories import BEGIN, SteppedClock, random_history
from tests.support.projections import assert_true, finish

from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.times import time_text
from jobledger.projections import Projector, ProjectorConfig, Store, difference
from jobledger.projections.statistics import levels as levels_module

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
Held = dict[str, Counter[str]]  # by queue and state


class Jumping(SteppedClock):
    """A server's clock whose steps differ: most within a minute, some over several, and a few back."""

    def __init__(self, seed: int, longest_s: float) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._longest_s = longest_s
        self._now = BEGIN

    def now(self) -> datetime:
        step = self._chance.choice((0.001, 1.0, 7.0, self._longest_s * self._chance.random(), -2.0))
        self._now += timedelta(seconds=step)
        return self._now


async def made(seed: int, *, longest_s: float = 200.0, steps: int = 300, jobs: int = 40) -> MemoryLog:
    log = MemoryLog(clock=Jumping(seed, longest_s))
    await random_history(log, seed, jobs=jobs, steps=steps)
    return log


async def held(log: Log, every: timedelta = MINUTE) -> dict[datetime, Held]:
    """Return what the events add up to at the end of each minute (or hour), up to the one that is not over."""
    jobs: dict[tuple[str, str], Job] = {}
    found: dict[datetime, Held] = {}
    end = None
    async for batch in log.read():
        for stored in batch:
            if end is None:
                end = BEGIN + every
            while stored.stored_at >= end:
                found[end] = _counted(jobs)
                end += every
            key = (stored.event.queue, stored.event.job)
            jobs[key] = evolve(jobs.get(key), stored.event, stored.stream_sequence)
    return found


def _counted(jobs: dict[tuple[str, str], Job]) -> Held:
    found: Held = {}
    for (queue, _), job in jobs.items():
        found.setdefault(queue, Counter())[job.state.value] += 1
    return found


def lean(counts: dict[str, int]) -> dict[str, int]:
    return {state: count for state, count in counts.items() if count}


def queues_at(store: Store, at: datetime) -> dict[str, dict[str, int]]:
    known = store.levels_at(at)
    assert known is not None
    assert known.at <= time_text(at)
    return {queue: lean(counts) for queue, counts in known.queues.items()}


async def test_levels_are_what_the_events_add_up_to_at_each_minutes_end(tmp_path: Path) -> None:
    log = await made(1)
    expected = await held(log)
    await finish(log, tmp_path / "p", ProjectorConfig())
    assert len(expected) > 40
    with Store.open(tmp_path / "p") as store:
        for end, by_queue in expected.items():
            for at in (end, end + timedelta(seconds=59)):
                assert queues_at(store, at) == by_queue
        first, last = min(expected), max(expected)
        for queue in (None, "queue-1"):
            story = {level.at: lean(level.counts) for level in store.levels(first, last, queue=queue)}
            now: dict[str, int] = {}
            for end, by_queue in expected.items():
                now = story.pop(time_text(end), now)
                all_of = (
                    sum(by_queue.values(), Counter[str]())
                    if queue is None
                    else by_queue.get(queue, Counter())
                )
                assert now == dict(all_of), (queue, end)
            assert story == {}


async def test_what_happened_last_holds_until_something_happens(tmp_path: Path) -> None:
    log = await made(2, steps=40)
    await finish(log, tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        late = BEGIN + timedelta(days=400)
        now = {row.queue: lean(row.counts) for row in store.queues()}
        assert queues_at(store, late) == now
        assert lean(store.levels(BEGIN, late)[-1].counts) == lean(store.counts_by_state())
        assert store.levels(late, late + MINUTE)[0].at == time_text(late)
        assert store.levels_at(BEGIN - timedelta(minutes=5)) is None
        assert store.levels(BEGIN - timedelta(days=2), BEGIN - timedelta(days=1)) == []
        assert store.levels(BEGIN, late, queue="nowhere")[0].counts["queued"] == 0


async def test_an_empty_ledger_has_no_levels(tmp_path: Path) -> None:
    await finish(MemoryLog(), tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        assert store.levels_at(BEGIN) is None
        assert store.levels(BEGIN, BEGIN + MINUTE) == []


@pytest.mark.parametrize("seed", [3, 4])
async def test_rows_are_the_same_however_the_events_are_cut(tmp_path: Path, seed: int) -> None:
    log = await made(seed)
    head = (await log.head()).last_sequence
    await finish(log, tmp_path / "whole", ProjectorConfig())
    for size in (1, 3, 50):
        path = tmp_path / f"by-{size}"
        for until in (head // 3, head // 2, head):  # by projectors that begin in the middle, too
            with Projector(log, path, config=ProjectorConfig(batch_events_max=size)) as projector:
                await projector.catch_up(until=until)
        assert difference(path, tmp_path / "whole") is None
    assert head > 100
    await assert_true(log, tmp_path / "whole")


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(levels_module, "ROWS_MAX", 60)
    return 60


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(path)
    found = database.execute("SELECT queue, minute FROM levels ORDER BY minute").fetchall()
    assert database.execute("SELECT rows FROM levels_span").fetchone() == (len(found),)
    database.close()
    return found


async def test_of_older_minutes_each_hours_last_one_is_kept_for_ninety_days(tmp_path: Path) -> None:
    log = await made(5, longest_s=200_000, steps=900, jobs=150)
    expected = await held(log, timedelta(hours=1))
    for size in (11, 4_000):
        await finish(log, tmp_path / f"by-{size}", ProjectorConfig(batch_events_max=size))
    assert difference(tmp_path / "by-11", tmp_path / "by-4000") is None
    with Store.open(tmp_path / "by-11") as store:
        newest = max(expected)
        for end, by_queue in expected.items():
            if newest - end < timedelta(days=89):
                assert queues_at(store, end) == by_queue
            elif newest - end > timedelta(days=92):
                assert store.levels_at(end) is None
        assert newest - min(expected) > timedelta(days=120)
    hours = Counter((queue, minute // 60) for queue, minute in rows_of(tmp_path / "by-11"))
    recent = int(newest.timestamp()) // 3_600 - 72
    assert [each for each, count in hours.items() if count > 1 and each[1] < recent] == []


async def test_rows_are_bounded_and_what_is_kept_is_right(tmp_path: Path, few_rows: int) -> None:
    log = await made(6, longest_s=900, steps=900, jobs=300)
    expected = await held(log)
    for size in (7, 4_000):
        await finish(log, tmp_path / f"by-{size}", ProjectorConfig(batch_events_max=size))
    assert difference(tmp_path / "by-7", tmp_path / "by-4000") is None
    rows = rows_of(tmp_path / "by-7")
    assert len(rows) < few_rows + 4 * 60  # until its hour is over
    assert len(expected) > 10 * few_rows
    known = 0
    with Store.open(tmp_path / "by-7") as store:
        for end, by_queue in expected.items():
            if store.levels_at(end) is not None:
                known += 1
                assert queues_at(store, end) == by_queue
    assert 10 < known < len(expected) // 2
