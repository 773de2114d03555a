"""Projections of real histories: followed, interrupted, killed, rebuilt, damaged."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.histories import STEPS, SteppedClock, act, memory_history, random_history

from jobledger.ledger.chain import load
from jobledger.ledger.client import connect
from jobledger.ledger.codec import Message, digest
from jobledger.ledger.events import EVENT_TYPES, event_type
from jobledger.ledger.job import JobState
from jobledger.ledger.log import Entry, Log
from jobledger.ledger.memory import MemoryLog
from jobledger.ledger.subjects import JobRef, LockRef, Names
from jobledger.projections import (
    DamagedProjectionError,
    DeadLetterFilter,
    EventGapError,
    JobRow,
    NewerSchemaError,
    NotAProjectionError,
    OlderSchemaError,
    PositionMismatchError,
    ProjectionBusyError,
    ProjectionMissingError,
    ProjectionStorageError,
    ProjectionTimeoutError,
    Projector,
    ProjectorConfig,
    Store,
    difference,
    rebuild,
)

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

SMALL = ProjectorConfig(batch_events_max=7, cache_jobs_max=3, linger_s=0.0)


async def finish(log: Log, path: Path, config: ProjectorConfig = SMALL) -> None:
    with Projector(log, path, config=config) as projector:
        await projector.catch_up()


async def assert_true(log: Log, path: Path) -> None:
    """The rows at `path` are what a rebuild gives, and each fold is what the chain gives."""
    fresh = path.with_name(f"{path.name}-fresh-{secrets.token_hex(4)}")
    await rebuild(log, fresh)
    assert difference(path, fresh) is None
    with Store.open(path) as store:
        for row in store.jobs(limit=100_000):
            chain = await load(log, JobRef(queue=row.queue, job_id=row.id))
            assert store.folded(row.queue, row.id) == chain.job


class _Cut(MemoryLog):
    """A log of which one event is not handed out."""

    def __init__(self, whole: MemoryLog, *, without: int) -> None:
        super().__init__(names=whole.names)
        self.__dict__.update(whole.__dict__)
        self._without = without

    async def read_messages(
        self,
        *,
        from_sequence: int = 1,
        from_time: datetime | None = None,
        subject: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Message], None]:
        whole = super().read_messages(
            from_sequence=from_sequence, from_time=from_time, subject=subject, follow=follow
        )
        async for batch in whole:
            yield [stored for stored in batch if stored.stream_sequence != self._without]


async def test_catching_up_in_pieces_equals_catching_up_at_once(tmp_path: Path) -> None:
    log = await memory_history()
    head = (await log.head()).last_sequence
    for until in (*range(0, head, 23), head + 1_000):
        with Projector(log, tmp_path / "pieces", config=SMALL) as projector:
            position = await projector.catch_up(until)
            assert position.stream_sequence == min(until, head)
    await finish(log, tmp_path / "whole", ProjectorConfig())
    assert difference(tmp_path / "pieces", tmp_path / "whole") is None
    await assert_true(log, tmp_path / "pieces")


async def test_events_of_other_aggregates_move_only_the_position(tmp_path: Path) -> None:
    log, path = MemoryLog(), tmp_path / "p"
    chain = log.names.lock_chain(LockRef(scope="account", lock_id="42"))
    subject = chain.replace(">", "acquired")
    await log.append([Entry(subject, b"one", chain, 0)])
    with Projector(log, path, config=SMALL) as projector:
        assert (await projector.catch_up()).stream_sequence == 1
        assert await act(log, 1, "enqueue", SteppedClock())
        assert await log.append([Entry(subject, b"two", chain, 1)]) == 3
        position = await projector.catch_up()
    assert (position.stream_sequence, position.event_hash) == (3, digest(b"two"))
    with Projector(log, path, config=SMALL) as projector:  # the position is found again
        assert (await projector.catch_up()).stream_sequence == 3
    await assert_true(log, path)
    with Store.open(path) as store:
        assert len(store.jobs()) == 1


@settings(max_examples=30, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(STEPS)), max_size=60), cut=st.integers(0, 60)
)
def test_a_rebuilt_projection_equals_the_followed_one_on_any_history(
    moves: Sequence[tuple[int, str]], cut: int
) -> None:
    async def compare(folder: Path) -> None:
        log, clock, path = MemoryLog(), SteppedClock(), folder / "followed"
        for place, (number, step) in enumerate(moves):
            await act(log, number, step, clock)
            if place == cut:
                await finish(log, path)
        await finish(log, path)
        await assert_true(log, path)

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(compare, Path(folder))


async def test_progress_counts_to_the_head(tmp_path: Path) -> None:
    log = await memory_history()
    head = (await log.head()).last_sequence
    seen: list[tuple[int, int]] = []
    with Projector(log, tmp_path / "p", config=SMALL) as projector:
        await projector.catch_up(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (head, head)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) == -(-head // SMALL.batch_events_max)


async def test_running_projector_commits_what_arrives_within_its_linger(tmp_path: Path) -> None:
    log, clock = await memory_history(), SteppedClock()
    path = tmp_path / "p"
    with Projector(log, path) as projector:
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            await projector.wait_for((await log.head()).last_sequence)
            await act(log, 7_000, "claim", clock)
            began = time.perf_counter()
            await projector.wait_for((await log.head()).last_sequence)
            assert time.perf_counter() - began < 1.0  # 50 ms, and a busy machine
            group.cancel_scope.cancel()
    await assert_true(log, path)


async def test_wait_for_gives_up_in_time(tmp_path: Path) -> None:
    with (
        Projector(MemoryLog(), tmp_path / "p") as projector,
        pytest.raises(ProjectionTimeoutError, match="did not reach stream sequence 5"),
    ):
        await projector.wait_for(5, timeout_s=0.01)


async def test_failed_transaction_leaves_rows_and_position_of_the_one_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, path = await memory_history(), tmp_path / "p"
    real, calls = Projector._write_position, 0

    def failing(self: Projector, *values: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise OSError(28, "No space left on device")
        return real(self, *values)

    monkeypatch.setattr(Projector, "_write_position", failing)
    head = (await log.head()).last_sequence
    config = ProjectorConfig(batch_events_max=1, cache_jobs_max=3)
    with Projector(log, path, config=config) as projector:
        for until in range(20, head + 20, 20):
            with contextlib.suppress(Exception):
                await projector.catch_up(until)
    assert calls >= 3
    monkeypatch.undo()
    await finish(log, path)
    await assert_true(log, path)


CHILD = """
import importlib.util, sys, anyio
from pathlib import Path
spec = importlib.util.spec_from_file_location("history", sys.argv[1])
history = importlib.util.module_from_spec(spec)
sys.modules["history"] = history
spec.loader.exec_module(history)

async def main():
    log = await history.memory_history(seed=5, jobs=120, steps=1_500)
    with history.Projector(log, Path(sys.argv[2]), config=history.ProjectorConfig(batch_events_max=2)) as projector:
        await projector.catch_up(progress=lambda done, total: print(done, flush=True))

anyio.run(main)
"""


@pytest.mark.timeout(120)
async def test_projector_killed_at_any_moment_goes_on_where_it_was(tmp_path: Path) -> None:
    log = await memory_history(seed=5, jobs=120, steps=1_500)
    path, chance = tmp_path / "p", random.Random(11)
    before = 0
    for _ in range(10):
        run_and_kill(path, commits=chance.randrange(1, 8), then_s=chance.random() * 0.003)
        with Store.open(path) as store:
            reached = store.position().stream_sequence
        assert reached > before
        before = reached
    assert before < (await log.head()).last_sequence, "the kills must come before the end"
    await finish(log, path)
    await assert_true(log, path)


def run_and_kill(path: Path, *, commits: int, then_s: float) -> None:
    """Let a process project, and kill it a moment after some commits: anywhere in a later transaction."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, __file__, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    with child.stdout:
        for _ in range(commits):
            assert child.stdout.readline()
        time.sleep(then_s)
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=10)


async def test_ledger_made_anew_stops_the_projector(tmp_path: Path) -> None:
    path = tmp_path / "p"
    await finish(await memory_history(seed=1), path)
    other = await memory_history(seed=2, steps=2_000)
    with Projector(other, path) as projector:
        with pytest.raises(PositionMismatchError, match=r"another event there.*jobledger projection rebuild"):
            await projector.catch_up()
        with pytest.raises(PositionMismatchError):
            await projector.run()


async def test_rewound_ledger_stops_the_projector(tmp_path: Path) -> None:
    path = tmp_path / "p"
    await finish(await memory_history(seed=1), path)
    with pytest.raises(PositionMismatchError, match="no event there"):
        await finish(await memory_history(seed=1, steps=20), path)


async def test_ledger_of_another_environment_stops_the_projector(tmp_path: Path) -> None:
    await finish(MemoryLog(names=Names("staging")), tmp_path / "p")
    with pytest.raises(PositionMismatchError, match="'staging'"):
        await finish(MemoryLog(), tmp_path / "p")


@pytest.mark.parametrize("without", [1, 2, 50])
async def test_missing_event_stops_the_projector_with_true_rows(tmp_path: Path, without: int) -> None:
    log, path = await memory_history(), tmp_path / "p"
    with pytest.raises(EventGapError, match=f"stream sequence {without} is missing"):
        await finish(_Cut(log, without=without), path)
    with pytest.raises(EventGapError), Projector(_Cut(log, without=without), path) as projector:
        await projector.run()
    with Store.open(path) as store:
        assert store.position().stream_sequence < without
    await finish(log, path)
    await assert_true(log, path)


async def test_several_projectors_on_one_file_apply_each_event_once(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    head = (await log.head()).last_sequence
    configs = [ProjectorConfig(batch_events_max=size, linger_s=0) for size in (3, 11, 40)]
    projectors = [Projector(log, path, config=config) for config in configs]
    clock = SteppedClock()
    async with anyio.create_task_group() as group:
        for projector in projectors:
            group.start_soon(projector.run)
        for number in range(8_000, 8_050):
            await act(log, number, "claim", clock)
            await anyio.lowlevel.checkpoint()
        for projector in projectors:
            await projector.wait_for(head + 50)
        group.cancel_scope.cancel()
    for projector in projectors:
        projector.close()
    await assert_true(log, path)


async def test_projectors_that_take_turns_never_build_on_what_the_other_outdated(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    events = [stored async for batch in log.read() for stored in batch]
    with Projector(log, path) as one, Projector(log, path) as two:
        await one.prepare()
        await two.prepare()
        for end in range(5, len(events) + 5, 5):
            projector = one if end % 2 else two
            assert projector.commit(events[max(0, end - 12) : end])
    await assert_true(log, path)


async def test_transaction_that_failed_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, path = await memory_history(), tmp_path / "p"
    events = [stored async for batch in log.read() for stored in batch]
    with Projector(log, path) as projector:
        await projector.prepare()
        projector.commit(events[:50])
        monkeypatch.setattr(Projector, "_write_position", no_space)
        with pytest.raises(ProjectionStorageError, match="No space left"):
            projector.commit(events[50:])
        monkeypatch.undo()
        assert projector.position is not None
        assert projector.position.stream_sequence == 50
        projector.commit(events[50:])
    await assert_true(log, path)


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


async def test_projector_of_another_ledger_on_the_same_file_is_refused_in_mid_course(tmp_path: Path) -> None:
    log, other, path = await memory_history(seed=1), await memory_history(seed=2), tmp_path / "p"
    with Projector(log, path) as first, Projector(other, path) as second:
        await first.catch_up(0)
        await second.prepare()
        await first.catch_up(10)
        events = [stored async for batch in other.read() for stored in batch]
        with pytest.raises(PositionMismatchError, match="the projector that came before"):
            second.commit(events)
    await finish(log, path)
    await assert_true(log, path)


async def test_locked_file_is_waited_for_in_bounds(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await finish(MemoryLog(), path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(ProjectionBusyError, match=r"locked by another process for 0\.05 s"):
            await finish(log, path, ProjectorConfig(busy_timeout_s=0.05))
    await finish(log, path)
    await assert_true(log, path)


async def test_rebuild_under_readers_and_a_running_projector(tmp_path: Path) -> None:
    log, path, clock = await memory_history(), tmp_path / "p", SteppedClock()
    with Projector(log, path, config=SMALL) as projector:
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            await projector.wait_for((await log.head()).last_sequence)
            with Store.open(path) as store:
                before = store.jobs(limit=1_000)
                await rebuild(log, path)
                assert store.jobs(limit=1_000) == before
                await act(log, 7_000, "claim", clock)
                await projector.wait_for((await log.head()).last_sequence)
                assert store.jobs(limit=1_000) == before, "a reader keeps the file it opened"
            with Store.open(path) as store:
                assert len(store.jobs(limit=1_000)) == len(before) + 1
            group.cancel_scope.cancel()
    await assert_true(log, path)


async def test_rebuild_is_not_poisoned_by_the_old_files_log(tmp_path: Path) -> None:
    """The old file has a -wal full of other rows, held by a connection that closes only after the swap."""
    log, path = await memory_history(seed=1), tmp_path / "p"
    old = Projector(await memory_history(seed=2), path)
    await old.catch_up()
    assert path.with_name("p-wal").stat().st_size > 0
    await rebuild(log, path)
    assert not path.with_name("p-wal").exists()
    with Store.open(path) as store:
        assert len(store.jobs(limit=1_000)) > 0
        old.close()
        await finish(log, path)
    await assert_true(log, path)
    assert not leftovers(tmp_path)


async def test_swap_that_crashed_half_way_is_finished_by_the_next_opener(tmp_path: Path) -> None:
    log, path = await memory_history(seed=1), tmp_path / "p"
    old = Projector(await memory_history(seed=2), path)
    await old.catch_up()
    await rebuild(log, tmp_path / "new")
    (tmp_path / "new").rename(tmp_path / "p.ready")  # complete, and its maker died
    with Store.open(path) as store:
        assert store.position().event_hash
    assert not (tmp_path / "p.ready").exists()
    old.close()
    await finish(log, path)
    await assert_true(log, path)


async def test_drafts_of_dead_processes_are_removed(tmp_path: Path) -> None:
    stale = tmp_path / f"p.rebuild-{dead_process_id()}"
    living = tmp_path / f"p.rebuild-{os.getppid()}"
    stale.write_bytes(b"half")
    living.write_bytes(b"half")
    await rebuild(MemoryLog(), tmp_path / "p")
    assert not stale.exists()
    assert living.exists()


def dead_process_id() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(timeout=10)
    return child.pid


async def test_failed_rebuild_leaves_the_old_file(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await finish(log, path)
    with pytest.raises(EventGapError):
        await rebuild(_Cut(log, without=9), path)
    await assert_true(log, path)
    assert not leftovers(tmp_path)


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if ".rebuild" in path.name or ".ready" in path.name]


@pytest.mark.parametrize("damage", ["garbage", "header", "cut", "tables"])
async def test_damaged_file_names_the_way_out_and_rebuild_is_it(tmp_path: Path, damage: str) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await finish(log, path)
    content = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"not a database at all\n" * 100)
    elif damage == "header":
        path.write_bytes(b"\0" * 40 + content[40:])
    elif damage == "cut":
        path.write_bytes(content[:4096])
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("DROP TABLE position")
    with pytest.raises(DamagedProjectionError, match="jobledger projection rebuild"):
        await finish(log, path)
    with pytest.raises(DamagedProjectionError, match="jobledger projection rebuild"):
        Store.open(path)
    await rebuild(log, path)
    await assert_true(log, path)


async def test_newer_schema_is_refused_and_older_is_rebuilt(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await finish(log, path)
    set_version(path, 99)
    with pytest.raises(NewerSchemaError, match="jobledger projection rebuild"):
        await finish(log, path)
    with pytest.raises(NewerSchemaError):
        Store.open(path)
    set_version(path, 0)
    with pytest.raises(OlderSchemaError, match="jobledger projection rebuild"):
        Store.open(path)
    await finish(log, path)
    await assert_true(log, path)


def set_version(path: Path, version: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version:d}")


async def test_database_of_something_else_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "p"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE invoices (id)")
    content = path.read_bytes()
    with pytest.raises(NotAProjectionError):
        await finish(MemoryLog(), path)
    with pytest.raises(NotAProjectionError):
        await rebuild(MemoryLog(), path)
    with pytest.raises(NotAProjectionError):
        Store.open(path)
    assert path.read_bytes() == content


def test_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ProjectionMissingError, match="jobledger projection rebuild"):
        Store.open(tmp_path / "p")


async def test_difference_names_the_first_row_that_differs(tmp_path: Path) -> None:
    log = await memory_history()
    a, b = tmp_path / "a", tmp_path / "b"
    await finish(log, a)
    await finish(log, b)
    assert difference(a, b) is None
    with contextlib.closing(sqlite3.connect(b)) as connection, connection:
        connection.execute("UPDATE jobs SET task = 'other' WHERE id = 'job-00003'")
    found = difference(a, b)
    assert found is not None
    assert found.startswith("table jobs: task of job-00003/queue-0 is 'app.task_1' in")
    with contextlib.closing(sqlite3.connect(b)) as connection, connection:
        connection.execute("DELETE FROM jobs WHERE id = 'job-00003'")
    assert difference(a, b) == f"table jobs: job-00003/queue-0 is in {a} and not in {b}"
    assert difference(b, a) == f"table jobs: job-00003/queue-0 is in {a} and not in {b}"


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


async def test_projection_of_a_real_ledger(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    path = tmp_path / "p"
    async with connect(nats_server.url, environment=f"t_{secrets.token_hex(6)}") as ledger:
        log = ledger.log
        with Projector(log, path, config=ProjectorConfig(linger_s=0.01)) as projector:
            async with anyio.create_task_group() as group:
                group.start_soon(projector.run)
                await random_history(log, 3, jobs=20, steps=120)
                await projector.wait_for((await log.head()).last_sequence)
                group.cancel_scope.cancel()
        await random_history(log, 4, jobs=30, steps=60)
        await finish(log, path)
        await assert_true(log, path)


async def test_the_histories_have_every_kind_of_event() -> None:
    """Else the tests above would prove less than they say."""
    log = await memory_history(seed=5, jobs=120, steps=1_500)
    seen = {event_type(stored.event) async for batch in log.read() for stored in batch}
    assert seen == set(EVENT_TYPES)


async def test_a_file_that_never_was_a_projection_is_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("remember the milk\n", encoding="utf-8")
    log = MemoryLog()
    for attempt in range(
        2
    ):  # the first refusal must leave nothing that makes the second one believe it is ours
        with pytest.raises(NotAProjectionError):
            await rebuild(log, notes)
        with pytest.raises(NotAProjectionError), Projector(log, notes) as projector:
            await projector.catch_up()
        with pytest.raises(NotAProjectionError):
            Store.open(notes)
        assert notes.read_text(encoding="utf-8") == "remember the milk\n", attempt
    assert os.listdir(tmp_path) == ["notes.txt"]  # noqa: PTH208 - names are what is asked for
