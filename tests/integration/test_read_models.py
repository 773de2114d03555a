"""Read models of users: rows and position in one transaction, whatever their `apply` does."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import pytest
from tests.support.histories import SteppedClock, act, memory_history
from tests.support.limits import LIMIT_S
from tests.support.tables import each_row

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import event_type
from jobledger.ledger.model.memory import MemoryLog
from jobledger.projections import (
    DamagedProjectionError,
    NewerReadModelError,
    NotAProjectionError,
    PositionMismatchError,
    Projector,
    ProjectorConfig,
    ReadModelDefinitionError,
    ReadModelFailedError,
    ReadModelLayout,
    rebuild,
)
from jobledger.projections.tables.registry import all_tables

pytestmark = pytest.mark.anyio

SMALL = ProjectorConfig(batch_events_max=7, linger_s=0.0)
Apply = Callable[[sqlite3.Connection, Sequence[StoredEvent]], Any]
PUT = "INSERT INTO seen VALUES (?, ?) ON CONFLICT (type) DO UPDATE SET count = count + excluded.count"


class Counts:
    """How many events of each type there were."""

    name = "counts"
    version = 1
    tables: Any = MappingProxyType({"seen": {"type": str, "count": int}})
    keys: Any = MappingProxyType({"seen": "type"})

    def apply(self, connection: sqlite3.Connection, events: Sequence[StoredEvent]) -> Any:
        for stored in events:
            connection.execute(PUT, (event_type(stored.event), 1))


def made(**changes: Any) -> ReadModelLayout:
    """Return a layout for a model that differs from Counts in these."""
    return ReadModelLayout(type("Changed", (Counts,), changes)())


async def follow(log: MemoryLog, path: Path, layout: ReadModelLayout) -> int:
    with Projector(log, path, config=SMALL, layout=layout) as projector:
        return (await projector.catch_up()).stream_sequence


def rows(path: Path, sql: str = "SELECT * FROM seen ORDER BY 1") -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def position(path: Path) -> int:
    return int(rows(path, "SELECT stream_sequence FROM position")[0][0])


async def truth(log: MemoryLog, until: int = 10**9) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    async for batch in log.read():
        for stored in batch:
            if stored.stream_sequence <= until:
                kind = event_type(stored.event)
                counts[kind] = counts.get(kind, 0) + 1
    return sorted(counts.items())


def failing_at(sequence: int, *, after: Callable[[sqlite3.Connection], Any] | None = None) -> Apply:
    def apply(_self: Any, connection: sqlite3.Connection, events: Sequence[StoredEvent]) -> None:
        for stored in events:
            connection.execute(PUT, (event_type(stored.event), 1))
            if stored.stream_sequence == sequence:
                if after is None:
                    raise KeyError("no such customer")
                after(connection)

    return apply  # type: ignore[return-value] # bound to the class


async def test_followed_in_pieces_and_rebuilt_it_holds_every_event_once(tmp_path: Path) -> None:
    log, path, clock = await memory_history(), tmp_path / "p", SteppedClock()
    with Projector(log, path, config=SMALL, layout=made()) as projector:
        for until in (1, 20, 21, 90):
            await projector.catch_up(until)
            assert rows(path) == await truth(log, until)
    head = await follow(log, path, made())
    assert rows(path) == await truth(log)
    with Projector(log, path, layout=made()) as projector:
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            await act(log, 7_000, "claim", clock)
            await projector.wait_for(head + 1, timeout_s=LIMIT_S)
            group.cancel_scope.cancel()
    assert rows(path) == await truth(log)
    await rebuild(log, path, layout=made())
    assert (rows(path), position(path)) == (await truth(log), head + 1)


def test_our_own_tables_are_made_as_sqlite_utils_makes_them() -> None:
    """Files of releases that imported it have these statements."""
    from sqlite_utils import Database  # noqa: PLC0415 - slow to import

    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        theirs = Database(connection, execute_plugins=False)
        for table in all_tables():
            types = {name: column.type for name, column in table.columns.items()}
            statement = theirs.create_table_sql(table.name, types, pk=table.key)
            table.create(connection)
            made = connection.execute(
                "SELECT sql FROM sqlite_master WHERE name = ?", (table.name,)
            ).fetchone()
            assert made[0] == statement.strip().removesuffix(";")


async def test_sql_tables_and_sqlite_utils_work(tmp_path: Path) -> None:
    from sqlite_utils import Database  # noqa: PLC0415 - slow to import

    def apply(_self: Any, connection: sqlite3.Connection, events: Sequence[StoredEvent]) -> None:
        connection.row_factory = sqlite3.Row  # undone after the call
        table: Any = Database(connection, execute_plugins=False).table("seen")
        for stored in events:
            kind = event_type(stored.event)
            found = list(table.rows_where("type = ?", [kind]))
            table.upsert({"type": kind, "count": found[0]["count"] + 1 if found else 1}, pk="type")

    sql = (
        "CREATE TABLE seen (type TEXT PRIMARY KEY, count INTEGER); CREATE INDEX seen_by_count ON seen (count)"
    )
    log, path = await memory_history(), tmp_path / "p"
    await follow(log, path, made(apply=apply, tables=sql))
    assert rows(path) == await truth(log)


async def test_an_exception_names_class_event_and_place_and_keeps_nothing_of_the_batch(
    tmp_path: Path,
) -> None:
    log, path = await memory_history(), tmp_path / "p"
    stored = await log.get(40)
    assert isinstance(stored, StoredEvent)
    words = (
        rf"read model \S*:Changed failed at stream sequence 40 \(`{event_type(stored.event)}` of job "
        rf"{stored.event.job}\): KeyError: 'no such customer'; nothing of this batch was kept, so mend `apply`"
    )
    with pytest.raises(ReadModelFailedError, match=words):
        await follow(log, path, made(apply=failing_at(40)))
    assert position(path) == 35
    assert rows(path) == await truth(log, 35)
    await follow(log, path, made())  # mended, it goes on there
    assert rows(path) == await truth(log)


REFUSED: list[tuple[Callable[[sqlite3.Connection], Any], str]] = [
    (lambda connection: connection.commit(), "COMMIT, `commit\\(\\)` and their like are the projector's"),
    (lambda connection: connection.execute("ROLLBACK"), "ROLLBACK, `commit"),
    (lambda connection: connection.executescript("SELECT 1"), "COMMIT, "),
    (
        lambda connection: connection.execute("UPDATE position SET stream_sequence = 9"),
        "the table position is",
    ),
    (lambda connection: connection.execute("drop table Position"), "the table position is"),
    (lambda connection: connection.execute("DELETE FROM read_model"), "the table read_model is"),
    (lambda connection: connection.execute("PRAGMA application_id = 3"), "the pragma application_id is"),
    (lambda connection: connection.execute("SELECT * FROM nowhere"), "no such table: nowhere"),
]


@pytest.mark.parametrize(("act_on", "words"), REFUSED)
async def test_what_would_part_rows_from_position_is_refused(tmp_path: Path, act_on: Any, words: str) -> None:
    log, path = await memory_history(), tmp_path / "p"
    with pytest.raises(ReadModelFailedError, match=words):
        await follow(log, path, made(apply=failing_at(40, after=act_on)))
    assert (position(path), rows(path)) == (35, await truth(log, 35))
    await follow(log, path, made())
    assert rows(path) == await truth(log)


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_statement_that_ends_the_transaction_keeps_nothing_of_what_comes_after(
    tmp_path: Path, swallows: bool
) -> None:
    """Each statement after it would be kept by itself, and the batch applied once more the next time."""
    log, path = await memory_history(), tmp_path / "p"

    def apply(self: Counts, connection: sqlite3.Connection, events: Sequence[StoredEvent]) -> None:
        for stored in events:
            with contextlib.suppress(sqlite3.DatabaseError) if swallows else contextlib.nullcontext():
                if stored.stream_sequence == 40:
                    connection.execute("INSERT OR ROLLBACK INTO seen SELECT type, 0 FROM seen LIMIT 1")
                if stored.stream_sequence == 41:
                    connection.execute("CREATE TABLE IF NOT EXISTS other (x)")
            with contextlib.suppress(sqlite3.DatabaseError) if swallows else contextlib.nullcontext():
                connection.execute(
                    PUT, (event_type(stored.event), 1)
                )  # prepared before: it asks no authorizer

    words = "ended the transaction: where it says ROLLBACK it must say ABORT"
    with pytest.raises(ReadModelFailedError, match=words):
        await follow(log, path, made(apply=apply))
    assert (position(path), rows(path)) == (35, await truth(log, 35))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'other'").fetchall()
    await follow(log, path, made())
    assert rows(path) == await truth(log)


async def test_what_apply_makes_is_of_its_transaction_too(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"

    def apply(self: Counts, connection: sqlite3.Connection, events: Sequence[StoredEvent]) -> None:
        Counts.apply(self, connection, events)
        connection.execute("CREATE TABLE IF NOT EXISTS later (x)")
        connection.isolation_level = "DEFERRED"
        connection.execute("INSERT INTO later VALUES (1)")
        if events[-1].stream_sequence > 40:
            connection.execute("DROP TABLE later")
            raise ValueError("enough")

    with pytest.raises(ReadModelFailedError, match="enough"):
        await follow(log, path, made(apply=apply))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM later").fetchone()[0] == len(
            range(7, position(path) + 1, 7)
        )


@pytest.mark.parametrize("answer", [1, iter(())])
async def test_an_answer_means_a_misunderstanding(tmp_path: Path, answer: Any) -> None:
    def apply(_self: Any, _connection: sqlite3.Connection, _events: Sequence[StoredEvent]) -> Any:
        return answer

    layout = made(apply=apply)
    with pytest.raises(
        ReadModelFailedError, match=r"among stream sequences 1 to 7: TypeError: apply returned a"
    ):
        await follow(await memory_history(), tmp_path / "p", layout)


async def test_a_newer_version_is_made_anew_and_an_older_one_stops(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await follow(log, path, made())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM seen")
    with Projector(log, path, layout=made()) as older:
        await older.prepare()
        await follow(log, path, made(version=2))
        assert rows(path) == await truth(log)
        assert rows(path, "SELECT version FROM read_model") == [(2,)]
        assert await act(log, 9_000, "claim", SteppedClock())
        words = "was made by version 2 of this read model, and this is version 1: run the newer one"
        with pytest.raises(NewerReadModelError, match=words):  # it would undo, and be undone, for ever
            await older.catch_up()
    await rebuild(log, path, layout=made())
    assert rows(path, "SELECT version FROM read_model") == [(1,)]


async def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    log, ours, theirs = await memory_history(), tmp_path / "ours", tmp_path / "theirs"
    with Projector(log, ours) as projector:
        await projector.catch_up()
    await follow(log, theirs, made())
    before = ours.read_bytes(), theirs.read_bytes()
    for path, layout in ((ours, made()), (theirs, made(name="another"))):
        with pytest.raises(NotAProjectionError):
            await follow(log, path, layout)
    with Projector(log, theirs) as projector, pytest.raises(NotAProjectionError):
        await projector.catch_up()
    with pytest.raises(NotAProjectionError):
        await rebuild(log, ours, layout=made())
    with pytest.raises(NotAProjectionError):
        await rebuild(log, theirs)
    assert (ours.read_bytes(), theirs.read_bytes()) == before


async def test_another_past_and_damage_stop_it(tmp_path: Path) -> None:
    path = tmp_path / "p"
    await follow(await memory_history(seed=1), path, made())
    with pytest.raises(PositionMismatchError):
        await follow(await memory_history(seed=2), path, made())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM read_model")
    with pytest.raises(DamagedProjectionError, match="does not say whose it is"):
        await follow(await memory_history(seed=1), path, made())


async def test_a_model_that_remembers_is_told_to_forget(tmp_path: Path) -> None:
    """Two of one model in turn on one file: each keeps its counts in memory, and would write old ones."""

    def apply(self: Any, connection: sqlite3.Connection, events: Sequence[StoredEvent]) -> None:
        if not hasattr(self, "counts"):
            self.counts = dict(connection.execute("SELECT type, count FROM seen"))
        for stored in events:
            kind = event_type(stored.event)
            self.counts[kind] = self.counts.get(kind, 0) + 1
        connection.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?)", self.counts.items())

    def forget(self: Any) -> None:
        self.__dict__.pop("counts", None)

    log, path = await memory_history(), tmp_path / "p"
    with (
        Projector(log, path, config=SMALL, layout=made(apply=apply, forget=forget)) as one,
        Projector(log, path, config=SMALL, layout=made(apply=apply, forget=forget)) as other,
    ):
        for until in range(10, 200, 20):
            await one.catch_up(until)
            await other.catch_up(until + 10)
        assert rows(path) == await truth(log, 200)


def _plain(_self: Any, _connection: Any, _events: Any) -> None: ...


async def _async(_self: Any, _connection: Any, _events: Any) -> None: ...


def _generator(_self: Any, _connection: Any, _events: Any) -> Iterator[None]:
    yield


@each_row(
    ("changes", "words"),
    [
        ({"name": "two words"}, "`name` must be 1 to 64 characters"),
        ({"name": 7}, "`name` must be 1 to 64 characters"),
        ({"version": 0}, "`version` must be a whole number from 1, got '0'"),
        ({"version": True}, "`version` must be a whole number"),
        ({"version": 2**31}, "`version` must be a whole number"),
        ({"tables": {}}, "`tables` must be SQL, or a mapping"),
        ({"tables": ["seen"]}, "`tables` must be SQL, or a mapping"),
        ({"tables": {"seen": "type"}}, "`tables\\['seen'\\]` must be a mapping"),
        ({"keys": "type"}, "`keys` must be a mapping"),
        ({"apply": 1}, "`apply` must be a method"),
        ({"apply": _async}, "`apply` must be a plain method: an async one"),
        ({"apply": _generator}, "`apply` must be a plain method: as a generator"),
        ({"forget": 1}, "`forget` must be a method"),
    ],
)
def test_what_has_not_the_shape_is_refused_at_once(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ReadModelDefinitionError, match=rf":Changed is no read model: {words}"):
        made(**changes)


def test_what_lacks_a_name_is_refused_at_once() -> None:
    with pytest.raises(ReadModelDefinitionError, match="int is no read model: it has no `name`"):
        ReadModelLayout(3)  # type: ignore[arg-type]
    assert made(apply=_plain).model.name == "counts"


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ("CREATE TABLE", "OperationalError: incomplete input"),
        ("CREATE TABLE Position (x)", "the name position is the projector's"),
        ({"read_model": {"x": int}}, "the name read_model is the projector's"),
        ("BEGIN; CREATE TABLE seen (type, count)", "leaves a transaction open"),
        ({"seen": {"type": object()}}, "its tables cannot be made"),
        (
            "CREATE TABLE seen (type UNIQUE on conflict\n rollback)",
            "seen would end the projector's transaction",
        ),
        (
            "CREATE TABLE seen (x); CREATE TRIGGER t AFTER INSERT ON seen BEGIN SELECT raise (ROLLBACK, 'no'); END",
            "t would end the projector's transaction: where it says ROLLBACK it must say ABORT",
        ),
    ],
)
async def test_tables_that_cannot_be_made_are_refused_and_no_file_is_left(
    tmp_path: Path, tables: Any, words: str
) -> None:
    path = tmp_path / "p"
    with pytest.raises(ReadModelDefinitionError, match=words):
        await follow(await memory_history(steps=20), path, made(tables=tables))
    assert not path.exists()
