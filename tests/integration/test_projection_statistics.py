"""Statistics: equal to a slow count of every event, whatever the history and however it was cut into transactions."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.histories import LIMITED_STEPS, STEPS, SteppedClock, act, ref_of
from tests.support.projections import SMALL, assert_true, finish

from jobledger.audit.export import ExportLog, JoinedLog, write_export
from jobledger.ledger.model.chain import link, load
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Carry, Claim, Command, Enqueue, Fail, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.events import EVENT_TYPES, ErrorInfo, Order, Priority, event_type
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import (
    HISTOGRAM_BOUNDS_S,
    PositionArchivedError,
    ProjectionConfigError,
    Projector,
    ProjectorConfig,
    Store,
    difference,
    rebuild,
    verify,
)
from jobledger.projections.statistics.spread import install
from jobledger.projections.statistics.tally import COUNTERS, summed

pytestmark = pytest.mark.anyio

BEGIN = datetime(2025, 3, 1, tzinfo=UTC)
ALL_COUNTERS = COUNTERS
FINAL = ("completed", "cancelled", "dead_lettered", "discarded")
OUTCOMES = ("completed", "failed", "interrupted", "snoozed", "paused", "cancelled")
Key = tuple[datetime, str, str]


class JumpyClock:
    """A server's clock of any pace, which is sometimes set back."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._now = BEGIN

    def now(self) -> datetime:
        seconds = self._chance.choice((0.0, 0.000_001, 0.02, 1.0, 7.0, 70.0, 5_000.0, -3.0))
        self._now += timedelta(seconds=seconds)
        return self._now

    def monotonic(self) -> float:
        return 0.0


class SlowCount:
    """Every statistic, counted anew from the events with nothing in common with the projection but `evolve`."""

    def __init__(self) -> None:
        self.counts: dict[Key, Counter[str]] = defaultdict(Counter)
        self.durations: dict[tuple[Key, str], list[timedelta]] = defaultdict(list)
        self.failures: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        self.workers: dict[str, Counter[str]] = defaultdict(Counter)
        self.lives: dict[str, list[datetime]] = defaultdict(list)
        self.jobs: dict[tuple[str, str], Job] = {}
        self._marks: dict[tuple[str, str], dict[str, datetime]] = defaultdict(dict)

    def add(self, stored: StoredEvent) -> None:
        event, now = stored.event, stored.stored_at
        name, place = event_type(event), (event.queue, event.job)
        before = self.jobs.get(place)
        after = self.jobs[place] = evolve(before, event, stored.stream_sequence)
        key = (now.replace(second=0, microsecond=0), after.queue, after.task)
        marks = self._marks[place]
        for counter in self._counters(name, event, before, after):
            self.counts[key][counter] += 1
        for part, since in self._times(
            name, now, None if before is None else before.state.value, after, marks
        ):
            self.durations[key, part].append(now - since)
        self._blame(name, event, now, before, after)
        if name in ("failed", "dead_lettered"):
            assert after.error is not None
            self.failures[after.queue, after.task, after.error.type][name] += 1

    def _counters(self, name: str, event: Any, before: Job | None, after: Job) -> list[str]:
        found = [name] if name in (*OUTCOMES, "started", "dead_lettered", "discarded", "fenced") else []
        if name == "paused" and before is not None and before.state != "running":
            found = []
        if before is None and name != "carried":
            found.append("enqueued")
        is_ready = name in ("queued", "held")
        if is_ready and event.cause in ("requeued", "redispatched", "admitted", "ungranted"):
            found.append(event.cause)
        if is_ready and before is not None and before.state == "retry_wait":
            found += ["retried"] * (before.attempts[-1].state == "failed")
        if name == "failed" and after.state == "queued":
            found.append("retried")
        lost_before = [] if before is None else [each for each in before.attempts if each.state == "lost"]
        lost = [each for each in after.attempts if each.state == "lost"]
        return found + ["lost"] * (len(lost) - len(lost_before))

    def _times(
        self, name: str, now: datetime, was: str | None, after: Job, marks: dict[str, datetime], /
    ) -> list[tuple[str, datetime]]:
        found: list[tuple[str, datetime]] = []
        if was is None:
            marks["first"] = now
        if was == "queued" and name == "started":
            found.append(("wait", marks["queued"]))
        if was == "running" and name in OUTCOMES:
            found.append(("run", marks["started"]))
        if after.state in FINAL and was not in FINAL:
            found.append(("total", marks["first"]))
        if after.state == "queued" and was != "queued":
            marks["queued"] = now
        if name == "started":
            marks["started"] = now
        return found

    def _blame(self, name: str, event: Any, now: datetime, before: Job | None, after: Job) -> None:
        running = None if before is None else before.running_attempt
        if name == "started":
            self.workers[event.worker]["attempts"] += 1
            self.lives[event.worker].append(now)
        if name == "fenced":
            self.workers[event.worker]["fenced"] += 1
            self.lives[event.worker].append(now)
        if running is None:
            return
        if name in ("completed", "failed", "interrupted"):
            self.workers[running.worker][name] += 1
        if name in (*OUTCOMES, "checkpointed", "progressed", "step_started", "step_completed", "step_failed"):
            self.lives[running.worker].append(now)
        if after.attempts[running.number - 1].state == "lost":
            self.workers[running.worker]["lost"] += 1


async def slow_count(log: MemoryLog) -> SlowCount:
    count = SlowCount()
    async for batch in log.read():
        for stored in batch:
            count.add(stored)
    return count


def shown(durations: Sequence[timedelta]) -> tuple[int, Any, tuple[int, ...]]:
    seconds = [max(each.total_seconds(), 0.0) for each in durations]
    counts = tuple(sum(each <= bound for each in seconds) for bound in HISTOGRAM_BOUNDS_S)
    return len(seconds), pytest.approx(sum(seconds)), counts


def assert_equal(store: Store, count: SlowCount, path: Path) -> None:
    """Every table of statistics says what the slow count says."""
    words = (
        [name for name in store.totals()[0].__struct_fields__ if name in ALL_COUNTERS] if count.jobs else []
    )
    found = {(row.begins_at, row.queue, row.task): row for row in store.buckets()}
    wanted = {(f"{key[0]:%Y-%m-%dT%H:%M:%S.000000Z}", *key[1:]): key for key in count.counts}
    assert set(found) == set(wanted)
    for name, row in found.items():
        key = wanted[name]
        assert {word: getattr(row, word) for word in words} == {
            word: count.counts[key][word] for word in words
        }
        for part in ("wait", "run", "total"):
            histogram = getattr(row, part)
            assert (histogram.count, histogram.sum_s, histogram.counts) == shown(
                count.durations[key, part]
            ), (name, part)
    failures = {(row.queue, row.task, row.error_type): row for row in store.failures()}
    assert {key: (row.failed, row.dead_lettered) for key, row in failures.items()} == {
        key: (each["failed"], each["dead_lettered"]) for key, each in count.failures.items()
    }
    workers = {row.worker: msgspec.structs.asdict(row) for row in store.workers()}
    assert set(workers) == set(count.lives)
    for worker, said in workers.items():
        assert said["last_at"] == f"{max(count.lives[worker]):%Y-%m-%dT%H:%M:%S.%fZ}"
        assert said["first_at"] == f"{min(count.lives[worker]):%Y-%m-%dT%H:%M:%S.%fZ}"
        for word in ("attempts", "completed", "failed", "lost", "interrupted", "fenced"):
            assert said[word] == count.workers[worker][word], (worker, word)
    assert_consistent(store, path)


def assert_consistent(store: Store, path: Path) -> None:
    """What the tables say of each other: `queues` counts `jobs`, `totals` sums `buckets`."""
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT queue, priority, status, count(*) FROM jobs GROUP BY queue, priority, status"
        jobs = {tuple(row[:3]): row[3] for row in connection.execute(sql)}
        columns = [each[1] for each in connection.execute("PRAGMA table_info(totals)")][2:]
        install(connection)
        sums = ", ".join(map(summed, columns))
        minutes = f"SELECT queue, task, {sums} FROM buckets GROUP BY queue, task ORDER BY queue, task"
        totals = f"SELECT queue, task, {', '.join(columns)} FROM totals ORDER BY queue, task"
        assert connection.execute(minutes).fetchall() == connection.execute(totals).fetchall()
    queues = {
        (row.queue, row.priority, state): count
        for row in store.queues()
        for state, count in row.counts.items()
        if count
    }
    assert queues == jobs
    assert sum(store.counts_by_state().values()) == sum(jobs.values())


@settings(max_examples=25, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(STEPS)), max_size=80),
    seed=st.integers(0, 99),
    batch=st.sampled_from((1, 3, 40)),
)
def test_statistics_equal_a_slow_count_of_any_history(
    moves: Sequence[tuple[int, str]], seed: int, batch: int
) -> None:
    async def compare(path: Path) -> None:
        log, clock = MemoryLog(clock=JumpyClock(seed)), SteppedClock()
        for number, step in moves:
            await act(log, number, step, clock)
        await finish(log, path, ProjectorConfig(batch_events_max=batch, cache_jobs_max=2))
        with Store.open(path) as store:
            assert_equal(store, await slow_count(log), path)

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(compare, Path(folder) / "p")


async def test_statistics_equal_a_slow_count_of_a_long_history_with_every_event(tmp_path: Path) -> None:
    log, chance, clock = MemoryLog(clock=JumpyClock(1)), random.Random(6), SteppedClock()
    for _ in range(9_000):
        await act(log, chance.randrange(500), chance.choice(LIMITED_STEPS), clock)
    seen = {event_type(stored.event) async for batch in log.read() for stored in batch}
    assert seen == set(EVENT_TYPES), "else this would prove less than it says"
    await finish(log, tmp_path / "p")
    await assert_true(log, tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        assert_equal(store, await slow_count(log), tmp_path / "p")
        assert all(sum(getattr(row, word) for row in store.totals()) for word in ALL_COUNTERS)


async def fail(log: MemoryLog, number: int, error_type: str) -> None:
    """Let a new job of one queue and task fail once for all."""
    ref = JobRef(queue="email", job_id=f"job-{number:05}")
    at = BEGIN + timedelta(seconds=number)
    error = ErrorInfo(kind="exception", type=error_type, message="no")
    for step in ("enqueue", "claim", "fail"):
        chain = await load(log, ref)
        commands: dict[str, Command] = {
            "enqueue": Enqueue(ref=ref, task="app.send"),
            "claim": Claim(worker="w-1", lease_s=15),
            "fail": Fail(epoch=chain.job.claim_epoch if chain.job else 0, error=error, give_up="rejected"),
        }
        await log.append(
            link(chain, decide(chain.job, commands[step], Stamp(at=at, by="test")), log.names).entries
        )


async def test_types_of_errors_are_bounded_alike_however_events_are_cut(tmp_path: Path) -> None:
    log = MemoryLog(clock=JumpyClock(4))
    kinds = [f"Error{number:03}" for number in range(130)]
    for number, kind in enumerate([*kinds, *reversed(kinds), "X" * 300, "(other)"]):
        await fail(log, number, kind)
    for name, batch in (("one", 1), ("some", 37), ("all", 10_000)):
        await finish(log, tmp_path / name, ProjectorConfig(batch_events_max=batch))
    assert difference(tmp_path / "one", tmp_path / "some") is None
    assert difference(tmp_path / "one", tmp_path / "all") is None
    with Store.open(tmp_path / "one") as store:
        found = {row.error_type: (row.failed, row.dead_lettered) for row in store.failures()}
    assert found == dict.fromkeys(kinds[:100], (2, 2)) | {"(other)": (62, 62)}


async def test_a_long_type_of_error_is_cut(tmp_path: Path) -> None:
    log = MemoryLog()
    await fail(log, 1, "X" * 300)
    await finish(log, tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        assert [row.error_type for row in store.failures(queue="email", task="app.send")] == ["X" * 200]
        assert store.failures(queue="sms") == []


PRIORITIES_OF_FOUR: tuple[Priority, ...] = ("normal", "high", "normal", "normal")


async def test_queues_tell_since_when_their_oldest_waits_and_runs(tmp_path: Path) -> None:
    clock = SteppedClock()
    log = MemoryLog(clock=clock)
    for number, priority in enumerate(PRIORITIES_OF_FOUR):
        ref = JobRef(queue="email", job_id=f"job-{number}")
        order = Enqueue(ref=ref, task="app.send", order=Order(priority=priority, max_attempts=3))
        chain = await load(log, ref)
        await log.append(link(chain, decide(None, order, Stamp(at=clock.now(), by="t")), log.names).entries)
    stored = [each async for batch in log.read() for each in batch]
    chain = await load(log, JobRef(queue="email", job_id="job-0"))
    started = decide(chain.job, Claim(worker="w", lease_s=15), Stamp(at=clock.now(), by="t"))
    sequence = await log.append(link(chain, started, log.names).entries)
    await finish(log, tmp_path / "p")
    running = await log.get(sequence)
    assert running is not None
    with Store.open(tmp_path / "p") as store:
        high, normal = store.queues("email")
        assert store.queues("sms") == []
    text = "%Y-%m-%dT%H:%M:%S.%fZ"
    assert (high.priority, high.oldest_waiting, high.oldest_running) == (
        "high",
        stored[1].stored_at.strftime(text),
        None,
    )
    assert normal.oldest_waiting == stored[2].stored_at.strftime(text)
    assert normal.oldest_running == running.stored_at.strftime(text)
    assert (normal.counts["queued"], normal.counts["running"], normal.counts["completed"]) == (2, 1, 0)


async def test_buckets_are_chosen_by_time_queue_task_and_step(tmp_path: Path) -> None:
    log, clock = MemoryLog(clock=JumpyClock(9)), SteppedClock()
    for number in range(300):
        await act(log, number, "claim", clock)
    await finish(log, tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        minutes, hours = store.buckets(), store.buckets(step_s=3_600)
        assert [row.begins_at for row in minutes] == sorted(row.begins_at for row in minutes)
        assert sum(row.enqueued for row in minutes) == sum(row.enqueued for row in hours) == 300
        assert len(hours) < len(minutes)
        assert all(row.begins_at.endswith(":00:00.000000Z") for row in hours)
        some = store.buckets(minutes[7].begins_at, minutes[20].begins_at)
        assert some == [
            row for row in minutes if minutes[7].begins_at <= row.begins_at < minutes[20].begins_at
        ]
        one = store.buckets(queue="queue-1", task="app.task_0")
        assert one == [row for row in minutes if (row.queue, row.task) == ("queue-1", "app.task_0")]
        assert store.buckets(limit=3) == minutes[:3]
        wrong: tuple[dict[str, Any], ...] = (
            {"step_s": 90},
            {"step_s": 0},
            {"since": "yesterday"},
            {"limit": 0},
        )
        for options in wrong:
            with pytest.raises(ProjectionConfigError):
                store.buckets(**options)


async def test_quantiles_lie_between_the_smallest_and_the_largest(tmp_path: Path) -> None:
    log, clock = MemoryLog(clock=JumpyClock(2)), SteppedClock()
    for number in range(200):
        await act(log, number % 100, "claim", clock)
    await finish(log, tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        (row, *_) = store.totals(queue="queue-1")
    assert row.run.quantile_s(0.5) is None, "nothing ended"
    found = [row.wait.quantile_s(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert found == sorted(found, key=lambda each: each or 0.0)
    assert (found[0], found[-1]) == (row.wait.smallest_s, row.wait.largest_s)
    assert found[-1]


async def archived_history(tmp_path: Path) -> tuple[MemoryLog, int, ExportLog]:
    """Return a ledger whose first half was exported, carried over and purged; `followed` and `late` read before."""
    log, chance, clock = MemoryLog(clock=JumpyClock(6)), random.Random(8), SteppedClock()
    for _ in range(1_500):
        await act(log, chance.randrange(60), chance.choice(STEPS), clock)
    head = (await log.head()).last_sequence
    through = head // 2
    with Projector(log, tmp_path / "late") as late:
        await late.catch_up(through - 1)
    with Projector(log, tmp_path / "there") as there:
        await there.catch_up(through)
    await finish(log, tmp_path / "followed")
    await write_export(log, tmp_path / "export", first=1, last=through)
    for number in range(60):
        chain = await load(log, ref_of(number))
        try:
            carried = decide(chain.job, Carry(through=through), Stamp(at=clock.now(), by="archive"))
        except RefusedError:
            continue
        await log.append(link(chain, carried, log.names).entries)
    archived = Archived(
        reactor=ARCHIVE,
        at=clock.now(),
        by="archive",
        through_sequence=through,
        manifest_sha256="a" * 64,
        head_hash="b" * 64,
        digest="c" * 64,
        count=through,
    )
    await log.append(REACTOR.link(log.names, [archived], REACTOR.view(None)))
    await log.purge(through)
    return log, through, ExportLog(tmp_path / "export", log.names)


async def test_a_ledger_without_its_archived_beginning_is_projected_from_where_it_begins(
    tmp_path: Path,
) -> None:
    log, through, _ = await archived_history(tmp_path)
    fresh, followed = tmp_path / "fresh", tmp_path / "followed"
    await finish(log, fresh)
    await finish(log, followed)
    await finish(log, tmp_path / "there")  # what it read last is gone, and nothing that it had not read
    assert difference(followed, tmp_path / "there") is None
    await assert_true(log, fresh)
    assert (await verify(log, fresh))[1] is None
    with Store.open(fresh) as store, Store.open(followed) as whole:
        assert (store.position().begins_at, whole.position().begins_at) == (through + 1, 1)
        assert_consistent(store, fresh)
        assert_consistent(whole, followed)
        rows = store.jobs(limit=1_000)
        assert rows
        for row in rows:  # each job that is there is there whole, as who saw its beginning has it
            assert msgspec.json.encode(row) == msgspec.json.encode(whole.job(row.queue, row.id))
            assert store.attempts(row.queue, row.id) == whole.attempts(row.queue, row.id)
        for here, there in zip(store.totals(), whole.totals(), strict=True):
            assert here.enqueued < there.enqueued


async def test_projection_that_missed_archived_events_stops_and_archives_bring_them_back(
    tmp_path: Path,
) -> None:
    log, _, export = await archived_history(tmp_path)
    followed, late = tmp_path / "followed", tmp_path / "late"
    await finish(log, followed)
    with pytest.raises(PositionArchivedError, match="jobledger projection rebuild"):
        await finish(log, late)
    with pytest.raises(PositionArchivedError, match="--archive"):
        await verify(log, followed)
    joined = JoinedLog([export], log)
    assert (await verify(joined, followed))[1] is None
    await finish(joined, late)
    await rebuild(joined, tmp_path / "rebuilt")
    assert difference(late, followed) is None
    assert difference(tmp_path / "rebuilt", followed) is None
    await finish(log, late, SMALL)  # and goes on without the archive


async def test_ids_that_were_free_again_after_an_archive_are_other_jobs_in_a_rebuild_too(
    tmp_path: Path,
) -> None:
    """Also where they come behind new jobs in one transaction: a draft has no journal to go back with."""
    log, _, export = await archived_history(tmp_path)
    joined, followed, clock = JoinedLog([export], log), tmp_path / "followed", SteppedClock()
    gone = [number for number in range(60) if await log.last(log.names.chain(ref_of(number))) is None]
    assert len(gone) > 5
    for step in ("claim", "claim", "complete"):  # of which the first enqueues
        for number in gone:
            assert await act(log, 100 + number, step, clock)
            assert await act(log, number, step, clock)
    await finish(log, followed)
    for config in (SMALL, ProjectorConfig(batch_events_max=100)):
        rebuilt = tmp_path / f"rebuilt-{config.batch_events_max}"
        await rebuild(joined, rebuilt, config=config)
        assert difference(rebuilt, followed) is None
    with Store.open(followed) as store:
        assert_consistent(store, followed)
