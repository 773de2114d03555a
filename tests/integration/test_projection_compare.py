"""Two projections compared, and one proven against its ledger."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.histories import memory_history
from tests.support.limits import LIMIT_S
from tests.support.projections import finish

from jobledger.ledger.model.memory import MemoryLog
from jobledger.projections import (
    DamagedProjectionError,
    PositionMismatchError,
    Projector,
    Store,
    difference,
    rebuild,
    verify,
)
from jobledger.projections import compare as compare_module
from jobledger.projections.background import Background
from jobledger.projections.tables.registry import all_tables

pytestmark = pytest.mark.anyio


def change(path: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(sql).rowcount != 0, "it must change something"


async def test_difference_names_the_first_row_that_differs(tmp_path: Path) -> None:
    log = await memory_history()
    a, b = tmp_path / "a", tmp_path / "b"
    await finish(log, a)
    await finish(log, b)
    assert difference(a, b) is None
    with Store.open(a) as store:
        row = store.job("queue-0", "job-00003")
        assert row is not None
    where = f"(stream sequence {row.last_sequence})"
    change(b, "UPDATE jobs SET task = 'other' WHERE id = 'job-00003'")
    values = f"'app.task_1' in {a} and 'other' in {b}"
    assert difference(a, b) == f"table jobs: task of job-00003/queue-0 is {values} {where}"
    change(b, "DELETE FROM jobs WHERE id = 'job-00003'")
    gone = f"table jobs: job-00003/queue-0 is in {a} and not in {b} {where}"
    assert difference(a, b) == difference(b, a) == gone
    with contextlib.closing(sqlite3.connect(b)) as connection:
        (epoch,) = connection.execute("SELECT min(epoch) FROM attempts").fetchone()
    change(b, f"UPDATE attempts SET id = NULL WHERE epoch = {epoch}")
    found = difference(a, b)
    assert found is not None
    assert found.endswith(f"(stream sequence {min(epoch, row.last_sequence)})")


TAMPERED = {
    "jobs": ("UPDATE jobs SET status = 'held' WHERE last_sequence > 40", True),
    "attempts": ("UPDATE attempts SET duration_ms = 1.0 WHERE epoch > 30", True),
    "dead_letters": ("DELETE FROM dead_letters", True),
    "acts": ("UPDATE acts SET by = 'nobody'", True),
    "queues": ("UPDATE queues SET queued = queued + 1", False),
    "totals": ("UPDATE totals SET completed = completed - 1", False),
    "buckets": ("UPDATE buckets SET minute = minute + 1", False),
    "failures": ("DELETE FROM failures", False),
    "workers": ("INSERT INTO workers (worker) VALUES ('nobody')", False),
    "position": ("UPDATE position SET begins_at = 1, environment = 'other'", False),
}


@pytest.mark.parametrize("table", TAMPERED)
async def test_verify_finds_what_was_changed_in_any_table(tmp_path: Path, table: str) -> None:
    log, path = await memory_history(seed=3), tmp_path / "p"
    await finish(log, path)
    position, found = await verify(log, path)
    assert (position.stream_sequence, found) == ((await log.head()).last_sequence, None)
    sql, has_sequence = TAMPERED[table]
    change(path, sql)
    if table == "position":
        with pytest.raises(PositionMismatchError):
            await finish(log, path)
    _, found = await verify(log, path)
    assert found is not None
    assert found.table == table
    assert (found.stream_sequence is not None) == has_sequence
    assert found.sentence.startswith(f"table {table}: ")
    await rebuild(log, path)
    assert (await verify(log, path))[1] is None


async def test_verify_names_the_lowest_sequence_of_several(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await finish(log, path)
    with Store.open(path) as store:
        sequences = sorted(row.last_sequence for row in store.jobs(limit=1_000))
    for sequence in (sequences[20], sequences[7], sequences[-1]):
        change(path, f"UPDATE jobs SET tenant = 'x' WHERE last_sequence = {sequence}")
    _, found = await verify(log, path)
    assert found is not None
    assert (found.stream_sequence, found.rows) == (sequences[7], 3)


async def test_verify_is_of_one_moment_though_a_projector_moves_the_file_on(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    events = [stored async for batch in log.read() for stored in batch]
    with Projector(log, path) as projector:
        await projector.catch_up(100)

        def move_on(*_: int) -> None:
            projector.commit(events[100:])

        position, found = await verify(log, path, progress=move_on)
        assert (position.stream_sequence, found) == (100, None)
        position, found = await verify(log, path)
        assert (position.stream_sequence, found) == (len(events), None)


async def test_verify_sees_an_index_that_lost_a_row(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await rebuild(log, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        root = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'jobs_by_queue_priority_status_since_us'"
        ).fetchone()[0]
        empty = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'dead_letters_by_dead_at'"
        )
        other = empty.fetchone()[0]
    content = bytearray(path.read_bytes())
    page = slice((root - 1) * page_bytes, root * page_bytes)
    content[page] = content[(other - 1) * page_bytes : other * page_bytes]
    path.write_bytes(content)
    with pytest.raises(DamagedProjectionError, match="jobledger projection rebuild"):
        await verify(log, path)


async def test_a_page_written_over_is_an_error_or_makes_no_difference(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await rebuild(log, path)
    whole = path.read_bytes()
    page_bytes = int.from_bytes(whole[16:18])
    with Store.open(path) as store:
        answers = told(store)
    refused = 0
    for start in range(0, len(whole), page_bytes):
        path.write_bytes(whole[:start] + b"\xa5" * page_bytes + whole[start + page_bytes :])
        try:
            with Store.open(path) as store:
                assert told(store) == answers
        except DamagedProjectionError:
            refused += 1
        with contextlib.suppress(DamagedProjectionError):
            _, found = await verify(log, path)
            assert found is None, "a page without use may be anything"
    assert refused > len(whole) // page_bytes // 2
    await rebuild(log, path)
    assert (await verify(log, path))[1] is None


def told(store: Store) -> list[object]:
    jobs = store.jobs(limit=1_000)
    return [
        jobs,
        store.counts_by_state(),
        store.queues(),
        store.totals(),
        store.buckets(),
        store.failures(),
        store.workers(),
        store.dead_letters(),
        store.slowest(),
        [store.attempts(row.queue, row.id) for row in jobs[:20]],
        *(store.select(f"SELECT * FROM {table.name}") for table in all_tables()),
    ]


async def test_verify_of_an_empty_ledger(tmp_path: Path) -> None:
    log, path = MemoryLog(), tmp_path / "p"
    await finish(log, path)
    position, found = await verify(log, path)
    assert (position.stream_sequence, position.begins_at, found) == (0, 1, None)


class _SlowRows:
    """Stands for the rows of a large file on a slow disk."""

    def __init__(self, *, waits_for_turns: bool) -> None:
        self.turn = threading.Event()  #: the loop had one since the last row
        self.count = 0
        self.ended = False
        self._waits_for_turns = waits_for_turns
        self._whole = compare_module._rows  # pyright: ignore[reportPrivateUsage]

    def __call__(self, *words: Any) -> Iterator[tuple[Any, ...]]:
        for row in self._whole(*words):
            self.count += 1
            if self._waits_for_turns:
                assert self.turn.wait(LIMIT_S), "the loop stands still while it compares"
                self.turn.clear()
            else:
                time.sleep(0.2)
            yield row
        self.ended = True


@pytest.mark.parametrize("cancelled", [False, True])
async def test_comparing_leaves_the_event_loop_free_tells_how_far_it_is_and_ends_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    log, path = await memory_history(jobs=20, steps=100), tmp_path / "p.db"
    await finish(log, path)
    rows = _SlowRows(waits_for_turns=not cancelled)
    monkeypatch.setattr(compare_module, "_rows", rows)
    told: list[tuple[int, int]] = []
    turns = rows_then = 0
    async with anyio.create_task_group() as group:

        async def compare() -> None:
            _, found = await verify(log, path, comparing=lambda done, total: told.append((done, total)))
            assert found is None
            group.cancel_scope.cancel()

        group.start_soon(compare)
        with anyio.fail_after(LIMIT_S):
            while True:
                await anyio.sleep(0.001)
                rows.turn.set()
                turns += rows.count > 0
                if cancelled and turns:
                    break
        rows_then = rows.count
        group.cancel_scope.cancel()
    if cancelled:
        assert rows.count <= rows_then + 2, "at the next row"
        assert not rows.ended
    else:
        assert turns > 20, "while it compared, others had their turn"
        done, total = zip(*told, strict=True)
        assert list(done) == sorted(done)
        assert len(set(total)) == 1
        assert 0 < done[-1] <= total[0]


async def test_a_statement_that_runs_for_long_is_ended_when_nobody_waits(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with closing(sqlite3.connect(tmp_path / "any.db", check_same_thread=False)) as connection:
        apart = Background()
        apart.reads.append(connection)
        with anyio.move_on_after(0.2) as scope:
            await apart.run(lambda: connection.execute(endless).fetchall(), None)
        assert scope.cancelled_caught
        assert connection.execute("SELECT 1").fetchone() == (1,), "and the thread is gone from it"


async def test_a_file_that_is_closed_in_the_moment_of_a_cancel_keeps_it_a_cancel(tmp_path: Path) -> None:
    apart, told = Background(), threading.Event()

    class Told(sqlite3.Connection):
        def interrupt(self) -> None:
            told.set()
            super().interrupt()

    apart.reads.append(sqlite3.connect(tmp_path / "any.db", check_same_thread=False, factory=Told))
    apart.reads[0].close()  # the thread is about to take it from the list

    loop = asyncio.get_running_loop()
    scope = anyio.CancelScope()

    def take_it() -> None:
        loop.call_soon_threadsafe(scope.cancel)
        assert told.wait(LIMIT_S)
        apart.reads.clear()

    with scope:
        await apart.run(take_it, None)
    assert scope.cancelled_caught
    assert not apart.reads, "the thread came to its end first"


async def test_projections_that_begin_differently_are_not_compared_row_for_row(tmp_path: Path) -> None:
    log = await memory_history(jobs=20, steps=100)
    for name in ("whole", "late"):
        await finish(log, tmp_path / name)
    for column in ("begins_at", "counts_begin_at"):
        with closing(sqlite3.connect(tmp_path / "late")) as connection:
            connection.execute(f"UPDATE position SET {column} = 7")
            connection.commit()
        found = difference(tmp_path / "late", tmp_path / "whole")
        assert found is not None
        assert f"{column} is 7 in" in found
        assert "cannot be compared" in found
        (tmp_path / "late").unlink()
        await finish(log, tmp_path / "late")
