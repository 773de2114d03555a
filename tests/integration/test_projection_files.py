"""The projection's file: locked, damaged, of another version, somebody else's, replaced under its readers."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.support.histories import SteppedClock, act, memory_history
from tests.support.limits import LIMIT_S
from tests.support.projections import SMALL, Cut, assert_true, finish, leftovers

from jobledger.ledger.model.memory import MemoryLog
from jobledger.projections import (
    DamagedProjectionError,
    EventGapError,
    NewerSchemaError,
    NotAProjectionError,
    OlderSchemaError,
    ProjectionMissingError,
    Projector,
    Store,
    rebuild,
)

pytestmark = pytest.mark.anyio


async def test_rebuild_under_readers_and_a_running_projector(tmp_path: Path) -> None:
    log, path, clock = await memory_history(), tmp_path / "p", SteppedClock()
    with Projector(log, path, config=SMALL) as projector:
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            await projector.wait_for((await log.head()).last_sequence, timeout_s=LIMIT_S)
            with Store.open(path) as store:
                before = store.jobs(limit=1_000)
                await rebuild(log, path)
                assert store.jobs(limit=1_000) == before
                await act(log, 7_000, "claim", clock)
                await projector.wait_for((await log.head()).last_sequence, timeout_s=LIMIT_S)
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
    child.wait(timeout=LIMIT_S)
    return child.pid


async def test_failed_rebuild_leaves_the_old_file(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await finish(log, path)
    with pytest.raises(EventGapError):
        await rebuild(Cut(log, without=9), path)
    await assert_true(log, path)
    assert not leftovers(tmp_path)


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
