"""Files of past moments that are kept: each has the rows of its own moment, whoever reads meanwhile."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.support.histories import memory_history

from jobledger.ledger.model.memory import MemoryLog
from jobledger.projections import Projector, Snapshots, Store, as_of
from jobledger.projections.past_files import PastFiles

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def log(anyio_backend: object) -> MemoryLog:
    return await memory_history(jobs=12, steps=200)


def answers(store: Store) -> Any:
    rows = store.jobs(limit=10_000)
    return rows, store.queues(), store.totals(), store.position().stream_sequence


async def expected(log: MemoryLog, path: Path, moment: int) -> Any:
    async with as_of(log, path, moment) as store:
        return answers(store)


def kept(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir() if each.suffix == ".db"}


def past_files(log: MemoryLog, folder: Path, kept_max: int = 2) -> PastFiles:
    place = folder / "past"
    place.mkdir()
    return PastFiles(log, folder / "p", place, snapshots=Snapshots(folder / "p"), kept_max=kept_max)


async def test_a_moment_that_is_kept_is_not_made_again_and_no_more_are_kept_than_were_asked_for(
    log: MemoryLog, tmp_path: Path
) -> None:
    past = past_files(log, tmp_path)
    first = await past.lend(10)
    assert await past.lend(10) == first
    for moment in (20, 15, 30, 5):
        with Store.open(await past.lend(moment)) as store:
            assert answers(store) == await expected(log, tmp_path / "p", moment)
        assert len(kept(tmp_path / "past")) <= 2
    assert not first.exists()


async def test_what_is_read_stays_as_it_is_while_others_go_on_from_there(
    log: MemoryLog, tmp_path: Path
) -> None:
    past = past_files(log, tmp_path, kept_max=1)
    with Store.open(lent := await past.lend(10)) as reader:
        then = answers(reader)
        later = await past.lend(25)
        assert later != lent
        assert answers(reader) == then
    past.give_back(later)
    assert await past.lend(40) == later, "nobody reads it, so it goes forward itself"
    with Store.open(later) as store:
        assert answers(store) == await expected(log, tmp_path / "p", 40)


async def test_a_file_of_another_past_is_not_gone_on_with(log: MemoryLog, tmp_path: Path) -> None:
    past = past_files(log, tmp_path)
    path = await past.lend(10)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE position SET event_hash = 'other'")
    connection.close()
    with Store.open(await past.lend(20)) as store:
        assert answers(store) == await expected(log, tmp_path / "p", 20)
    assert not path.exists()


async def test_the_present_projection_is_where_a_moment_after_it_begins(
    log: MemoryLog, tmp_path: Path
) -> None:
    with Projector(log, tmp_path / "p") as projector:
        await projector.catch_up(until=25)
    before = (tmp_path / "p").read_bytes()
    past = past_files(log, tmp_path)
    with Store.open(await past.lend(35)) as store:
        assert answers(store) == await expected(log, tmp_path / "p", 35)
    assert (tmp_path / "p").read_bytes() == before
