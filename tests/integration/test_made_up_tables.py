"""Tables of an aggregate that the product does not have: declared in one module and one line, and kept like ours."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from tests.support.histories import random_history
from tests.support.made_up import THING, THING_TABLES, Dropped, Made, dropped, made
from tests.support.projections import SMALL, assert_true, finish

from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.chain import commit_all
from jobledger.ledger.model.memory import MemoryLog
from jobledger.projections import (
    SCHEMA_VERSION,
    NewerSchemaError,
    Projector,
    ProjectorConfig,
    Store,
    as_of,
    difference,
    rebuild,
    verify,
)
from jobledger.projections.tables.registry import TABLES

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.unsound_ledger("an aggregate is made up, which only the test knows"),
]


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGGREGATES, THING.name, THING)
    monkeypatch.setitem(TABLES, THING.name, THING_TABLES)


async def _happens(log: MemoryLog, event: Made | Dropped) -> int:
    """Append an event to the chain of its thing; return its sequence."""
    newest = THING.view(await log.last(THING.chain_of(log.names, event)))
    return await commit_all(log, [(newest, [event])])


async def _told() -> tuple[MemoryLog, list[int]]:
    """A log of jobs and things, and the sequences at which something happened to a thing."""
    log, places = MemoryLog(), list[int]()
    for event in (made("ball", size=3), made("doll"), dropped("ball"), made("ball", size=5)):
        await random_history(log, len(places), jobs=20, steps=40)
        places.append(await _happens(log, event))
    return log, places


def _things(path: Path) -> list[tuple[object, ...]]:
    with Store.open(path) as store:
        return _in(store)


def _in(store: Store) -> list[tuple[object, ...]]:
    return store.select("SELECT kind, name, size, times, last_sequence FROM things ORDER BY kind, name")


async def test_its_rows_follow_from_its_events_beside_those_of_jobs(tmp_path: Path) -> None:
    log, places = await _told()
    for number, batch in enumerate((1, 3, 7, 4_000)):
        path = tmp_path / str(number)
        await finish(log, path, ProjectorConfig(batch_events_max=batch))
        assert _things(path) == [("toy", "ball", 5, 2, places[3]), ("toy", "doll", 1, 1, places[1])]
        await assert_true(
            log, path
        )  # also the jobs are what their chains say, and a rebuild gives the same rows


async def test_following_goes_on_with_its_rows(tmp_path: Path) -> None:
    log, _ = await _told()
    await finish(log, tmp_path / "p")
    newer = await _happens(log, dropped("doll"))
    await finish(log, tmp_path / "p")
    assert _things(tmp_path / "p")[1] == ("toy", "doll", 0, 1, newer)
    await assert_true(log, tmp_path / "p")


async def test_its_table_is_compared_and_verified(tmp_path: Path) -> None:
    log, places = await _told()
    one, two = tmp_path / "one", tmp_path / "two"
    await finish(log, one)
    await rebuild(log, two)
    assert difference(one, two) is None
    with contextlib.closing(sqlite3.connect(two)) as connection, connection:
        connection.execute("UPDATE things SET size = 7 WHERE name = 'doll'")
    where = f"(stream sequence {places[1]})"
    assert difference(one, two) == f"table things: size of toy/doll is 1 in {one} and 7 in {two} {where}"
    _, found = await verify(log, two)
    assert found is not None
    assert (found.table, found.row, found.stream_sequence, found.rows) == ("things", "toy/doll", places[1], 1)
    await rebuild(log, two)
    assert (await verify(log, two))[1] is None


async def test_a_past_moment_has_its_rows_as_they_were(tmp_path: Path) -> None:
    log, places = await _told()
    await finish(log, tmp_path / "p")
    for place, balls in zip(places, ((3, 1), (3, 1), (0, 1), (5, 2)), strict=True):
        async with as_of(log, tmp_path / "p", place) as store:
            assert _in(store)[0] == ("toy", "ball", *balls, place if place != places[1] else places[0])
    async with as_of(log, tmp_path / "p", places[0] - 1) as store:
        assert _in(store) == []


async def test_a_file_made_before_it_had_tables_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = await _told()
    path = tmp_path / "p"
    with monkeypatch.context() as before:
        before.delitem(TABLES, THING.name)
        await finish(log, path)
        with Store.open(path) as store:
            assert store.position().schema_version == SCHEMA_VERSION
            assert store.position().stream_sequence == (await log.head()).last_sequence, "things move it on"
    await finish(log, path)
    assert len(_things(path)) == 2
    monkeypatch.delitem(TABLES, THING.name)
    with pytest.raises(NewerSchemaError, match=f"has schema {SCHEMA_VERSION + 1} and this version knows"):
        Store.open(path)


async def test_a_transaction_that_fails_keeps_neither_its_rows_nor_those_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, places = await _told()
    path = tmp_path / "p"
    with Projector(log, path, config=SMALL) as projector:
        before = await projector.catch_up(places[0] - 1)
        with monkeypatch.context() as broken:
            broken.setattr(THING, "evolve", _fails)
            with pytest.raises(RuntimeError, match="no thing"):
                await projector.catch_up(places[0] + 2)
        with Store.open(path) as store:
            assert store.position() == before
        await projector.catch_up()
    await assert_true(log, path)


def _fails(*_: object) -> None:
    raise RuntimeError("no thing")
