"""Tables of runs: written once, queried in a locked engine, read by their own run alone, gone after their time."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import io
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import msgspec
import pyarrow as arrow_package  # noqa: ICN001
import pyarrow.parquet as pq
import pytest
from tests.support.jetstream import api
from tests.support.working import LIMIT_S, Connect, attempts, becomes, ended, types, until, working

from jobledger.ledger import Backoff, InvalidInputError, Job, JobState, Ledger, Run, Signal, Table, workflow
from jobledger.ledger.tables.parquet import RowWriter, batches_of, read_rows
from jobledger.ledger.tables.record import TableRecord, read_record
from jobledger.ledger.tables.stores import MissingFileError, open_store
from jobledger.workers import WorkerConfig
from jobledger.workers.runs.engine import EngineLimits, open_locked, select
from jobledger.workers.runs.tables import TableCache, engine_limits

pa: Any = arrow_package  # without type information
pytestmark = pytest.mark.anyio

CALLS: Counter[str] = Counter()
AT_ONCE = Backoff(base_s=0)
go = Signal("go", bool)
TOTALS = "SELECT sku, sum(cents)::BIGINT AS cents FROM rows GROUP BY sku ORDER BY sku"


class Sale(msgspec.Struct):
    sku: str
    cents: int
    note: str | None = None


class Total(msgspec.Struct):
    sku: str
    cents: int


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()


def sales(count: int) -> Iterator[Sale]:
    for number in range(count):
        CALLS["rows"] += 1
        yield Sale(f"sku-{number % 3}", number)


async def slowly(count: int) -> AsyncIterator[dict[str, Any]]:
    for number in range(count):
        yield {"sku": f"sku-{number % 3}", "cents": number}


def record_of(job: Job, key: str) -> TableRecord:
    return read_record(bytes(job.steps[key].result))


async def files(ledger: Ledger) -> int:
    bucket = ledger.names.tables_bucket
    info = await api(ledger.inbox, f"STREAM.INFO.OBJ_{bucket}", {"subjects_filter": f"$O.{bucket}.M.>"})
    return len(info["state"].get("subjects") or {})


@workflow(queue="etl", max_attempts=2, backoff=AT_ONCE)
async def totals(run: Run, count: int, fail: bool = False) -> list[Total]:
    rows = await run.write("rows", sales(count))
    sums = await run.sql(TOTALS, into="sums", rows=rows)
    CALLS["after"] += 1
    if fail and CALLS["after"] == 1:
        raise RuntimeError("behind two tables")
    return await run.fetch(sums, Total)


async def test_rows_are_written_queried_and_read_and_made_once(ledger: Ledger) -> None:
    async with working(ledger, totals):
        job = await ledger.enqueue(totals, 3_000, fail=True)
        found = await job.result(timeout_s=LIMIT_S)
    assert found == [Total(f"sku-{k}", sum(range(k, 3_000, 3))) for k in range(3)]
    assert CALLS == {"rows": 3_000, "after": 2}
    assert (await types(job)).count("step_completed") == 2
    steps = (await job.snapshot()).steps
    assert {step.kind for step in steps.values()} == {"table"}
    rows = record_of(await job.snapshot(), "rows")
    assert (rows.rows, rows.schema) == (3_000, {"sku": "string", "cents": "int64", "note": "string"})
    assert rows.expires_at is not None
    assert timedelta(hours=47.9) < rows.expires_at - ledger.clock.now() <= timedelta(hours=48)
    assert await files(ledger) == 2


@workflow(queue="etl", max_attempts=1)
async def of_all_kinds(run: Run) -> list[int]:
    dicts = await run.write("dicts", slowly(5))
    arrow = await run.write("arrow", [pa.table({"n": [1, 2]}), pa.record_batch({"n": [3]})])
    none = await run.write("none", [], row=Sale)
    table = await none.arrow()
    path = await arrow.path()
    sums = await run.sql("SELECT n FROM a ORDER BY n DESC", into="down", a=arrow)
    assert (await sums.arrow()).column("n").to_pylist() == [3, 2, 1]
    assert [table.num_columns, path.stat().st_size] == [3, arrow.bytes]
    return [dicts.rows, arrow.rows, none.rows]


async def test_dicts_batches_of_arrow_and_no_rows_are_tables_too(ledger: Ledger) -> None:
    async with working(ledger, of_all_kinds):
        assert await (await ledger.enqueue(of_all_kinds)).result(timeout_s=LIMIT_S) == [5, 3, 0]


async def test_the_same_ordered_query_gives_the_same_bytes_and_each_run_has_files_of_its_own(
    ledger: Ledger,
) -> None:
    async with working(ledger, totals):
        jobs = [await ledger.enqueue(totals, 500) for _ in range(2)]
        first, second = [record_of(await ended(job), "sums") for job in jobs]
    assert first.sha256 == second.sha256
    assert first.file != second.file
    assert await files(ledger) == 4
    store = open_store(ledger)
    assert await store.remove(first)
    assert not await store.remove(first)
    copy = io.BytesIO()
    await store.copy_to(second, copy)
    assert hashlib.sha256(copy.getvalue()).hexdigest() == second.sha256


@workflow(queue="etl", max_attempts=1)
async def borrows(run: Run, sha256: str, file: str) -> list[str]:
    """Try to read what another run made, by every way that its code has."""
    own = await run.write("own", [{"n": 1}])
    said: list[str] = []
    forged = Table(
        msgspec.structs.replace(own.record, sha256=sha256, file=file), own.step, run._passage.journal.tables
    )
    for attempt in (lambda: run.fetch(forged, Total), lambda: run.sql("FROM t", into="x", t=forged)):
        try:
            await attempt()
        except InvalidInputError as error:
            said.append(str(error))
    return said


async def test_a_run_reads_no_table_of_another_run(ledger: Ledger) -> None:
    async with working(ledger, totals, borrows):
        made = await ended(await ledger.enqueue(totals, 10))
        other = record_of(made, "sums")
        job = await ledger.enqueue(borrows.options(id="thief"), other.sha256, other.file)
        said = await job.result(timeout_s=LIMIT_S)
    assert said == ["table 'own' is not of run thief: a run reads only its own tables"] * 2


ESCAPES = {
    "read_parquet": "SELECT * FROM read_parquet('{other}')",
    "file as a table": "SELECT * FROM '{other}'",
    "read_csv": "SELECT * FROM read_csv('/etc/passwd')",
    "read_text": "SELECT * FROM read_text('/etc/passwd')",
    "glob": "SELECT * FROM glob('{folder}/*')",
    "copy": "COPY rows TO '{folder}/stolen.parquet'",
    "copy of the given file": "COPY rows TO '{given}'",
    "attach": "ATTACH '{folder}/stolen.db'",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "httpfs": "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')",
    "s3": "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "set": "SET enable_external_access = true",
    "set paths": "SET allowed_paths = ['{other}']",
    "reset": "RESET enable_external_access",
    "pragma": "PRAGMA enable_external_access = true",
    "pragma threads": "PRAGMA threads = 64",
    "export": "EXPORT DATABASE '{folder}/all'",
    "variable of Python": "SELECT * FROM a_variable",
    "query()": "SELECT * FROM query('COPY rows TO ''{folder}/x.parquet''')",
    "two statements": "SELECT 1; SET threads = 64",
    "out of the brackets": "SELECT 1) TO '{folder}/x.parquet'; --",
    "sqlite": "SELECT * FROM sqlite_scan('{folder}/x.db', 't')",
    "environment": "SELECT getenv('HOME')",
    "secrets": "CREATE PERSISTENT SECRET s (TYPE s3)",
}
LIMITS = EngineLimits(memory_bytes=64 << 20, threads=1)


def made_files(folder: Path) -> tuple[Path, Path]:
    for name in ("given", "other"):
        pq.write_table(pa.table({"n": [1]}), folder / f"{name}.parquet")
    return folder / "given.parquet", folder / "other.parquet"


def refused(function: Callable[..., Any], *given: Any) -> bool:
    try:
        function(*given)
    except (duckdb.Error, InvalidInputError):
        return True
    return False


def test_the_engine_refuses_every_way_out(tmp_path: Path) -> None:
    """As a query of a run, and, below that, as any statement on the engine once it is locked."""
    given, other = made_files(tmp_path)
    words = {"given": given, "other": other, "folder": tmp_path}
    before = {path: path.read_bytes() for path in (given, other)}
    a_variable = pa.table({"n": [1]})
    assert a_variable.num_rows
    work = tmp_path / "work"
    work.mkdir()
    connection = open_locked({"rows": str(given)}, work, [str(work / "result.parquet")], LIMITS)
    try:
        assert connection.execute("SELECT * FROM rows").fetchall() == [(1,)]
        for name, text in ESCAPES.items():
            query = text.format(**words)
            assert refused(select.function, query, {"rows": str(given)}, str(work), LIMITS), (
                f"{name} in run.sql"
            )
            assert refused(connection.execute, query), f"{name} on the engine"
    finally:
        connection.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.parquet", "other.parquet", "work"]
    assert {path: path.read_bytes() for path in before} == before


def test_a_query_that_is_larger_than_its_memory_spills_within_its_folder(tmp_path: Path) -> None:
    given = tmp_path / "given.parquet"
    pq.write_table(pa.table({"n": list(range(400_000)), "text": ["x" * 100] * 400_000}), given)
    work = tmp_path / "work"
    work.mkdir()
    query = "SELECT *, row_number() OVER (ORDER BY n DESC) AS place FROM rows ORDER BY n DESC"
    found = select.function(
        query, {"rows": str(given)}, str(work), EngineLimits(memory_bytes=48 << 20, threads=1)
    )
    assert found.rows == 400_000


@workflow(queue="etl", max_attempts=3, backoff=AT_ONCE)
async def wrong(run: Run, query: str) -> None:
    rows = await run.write("rows", [{"n": 1}])
    await run.sql(query, into="sums", rows=rows)


async def test_a_query_that_is_refused_is_a_step_that_failed_and_says_why(ledger: Ledger) -> None:
    async with working(ledger, wrong):
        jobs = [await ledger.enqueue(wrong, query) for query in ("SELECT m FROM rows", "DROP VIEW rows")]
        missing, dropped = [(await ended(job)).error for job in jobs]
    assert missing is not None
    assert dropped is not None
    assert (missing.type, "m" in missing.message) == ("BinderException", True)
    assert dropped.message == "step 'sums': a query of tables is one SELECT, got DROP"


def rows_that_do_not_fit() -> dict[str, tuple[list[Any], type[Any] | None, str]]:
    """Return rows by what is wrong with them; in a function, for a table of pyarrow imports all of pandas."""
    return {
        "another column": (
            [{"a": 1}, {"a": 1, "b": 2}] * 2_000 + [{"c": 1}],
            None,
            "column 'c' is not among them",
        ),
        "another type": ([{"a": 1}] * 3_000 + [{"a": "text"}], None, "a row does not fit its columns (a)"),
        "no type": ([{"a": None}], None, "column 'a' has no value in the first 1 rows"),
        "no rows": ([], None, "has no rows, so its columns are not known"),
        "no row": ([1], None, "a row is a msgspec.Struct, a dict, or rows of pyarrow, got int"),
        "no columns": ([{}], None, "its rows have no columns"),
        "no Struct": ([{}], int, "row must be a msgspec.Struct, got <class 'int'>"),
        "other batches": (
            [pa.table({"a": [1]}), pa.table({"b": [1]})],
            None,
            "a row does not fit its columns (a)",
        ),
    }


def written(path: Path, rows: list[Any], row: type[Any] | None) -> None:
    with path.open("xb") as file, RowWriter(file, name="t", row=row) as writer:
        for some in batches_of(rows):
            writer.add(some)


def test_rows_that_do_not_fit_are_refused_with_a_sentence(tmp_path: Path) -> None:
    for name, (rows, row, said) in rows_that_do_not_fit().items():
        with pytest.raises(InvalidInputError) as caught:
            written(tmp_path / name, rows, row)
        assert said in str(caught.value), name


class Color(enum.Enum):
    RED = "red"


class Inner(msgspec.Struct):
    n: int


class Wide(msgspec.Struct):
    at: datetime
    day: date
    price: Decimal
    key: UUID
    color: Color
    tags: list[str]
    inner: Inner | None
    data: bytes


def test_a_struct_comes_back_as_it_was_written(tmp_path: Path) -> None:
    row = Wide(
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), date(2026, 1, 2), Decimal("1.50"), UUID(int=7), Color.RED,
        ["a", "b"], Inner(3), b"\x00\xff",
    )  # fmt: skip
    path = tmp_path / "wide.parquet"
    written(path, [row], None)
    assert read_rows(path, Wide, name="t") == [row]
    with pytest.raises(InvalidInputError, match="table 't' has rows that are no Sale"):
        read_rows(path, Sale, name="t")


@workflow(queue="etl", max_attempts=2, backoff=AT_ONCE)
async def rests(run: Run) -> int:
    rows = await run.write("rows", [{"n": 1}])
    await run.wait(go)
    return rows.rows


async def test_an_expired_table_is_told_with_the_step_and_the_command_and_needed_only_where_it_is_read(
    ledger: Ledger,
) -> None:
    async with working(ledger, rests, reads):
        unread = await ledger.enqueue(rests.options(id="unread"))
        read = await ledger.enqueue(reads.options(id="read"))
        for job in (unread, read):
            await becomes(job, JobState.WAITING)
            record = record_of(await job.snapshot(), "rows")
            assert await open_store(ledger).remove(record)
    async with working(ledger, rests, reads):  # another process, without what the first one kept
        for job in (unread, read):
            await ledger.signal(job, go, True)
        assert await unread.result(timeout_s=LIMIT_S) == 1
        error = (await ended(read)).error
    assert error is not None
    assert error.type == "TableExpiredError"
    assert error.message == (
        "table 'rows' of step 'rows' of run read was removed before its time. "
        "`jobledger jobs rerun read --from rows` makes it again"
    )
    assert await attempts(read) == ["paused", "failed"]


@workflow(queue="etl", max_attempts=3, backoff=AT_ONCE)
async def reads(run: Run) -> int:
    rows = await run.write("rows", [{"n": 1}])
    await run.wait(go)
    return (await run.sql("SELECT * FROM rows", into="copy", rows=rows)).rows


async def test_a_bucket_that_was_deleted_is_made_again_by_whoever_stores_something(ledger: Ledger) -> None:
    async with working(ledger, totals):
        await (await ledger.enqueue(totals, 3)).result(timeout_s=LIMIT_S)
        await api(ledger.inbox, f"STREAM.DELETE.OBJ_{ledger.names.tables_bucket}", {})
        job = await ledger.enqueue(totals, 3)
        assert len(await job.result(timeout_s=LIMIT_S)) == 3
    assert await files(ledger) == 2


async def test_a_table_whose_time_is_over_is_expired_even_where_it_is_kept(connected: Connect) -> None:
    async with connected(tables_life_s=1.0) as ledger, working(ledger, reads, concurrency=1):
        job = await ledger.enqueue(reads)
        record = record_of(await becomes(job, JobState.WAITING), "rows")
        assert record.expires_at is not None
        await until(lambda: ledger.clock.now() >= (record.expires_at or ledger.clock.now()))
        await ledger.signal(job, go, True)
        error = (await ended(job)).error
        async with asyncio.timeout(LIMIT_S):  # the server empties the bucket by itself
            while await files(ledger):
                await asyncio.sleep(0.05)
    assert error is not None
    assert "of step 'rows'" in error.message
    assert "expired at " in error.message


async def test_tables_lie_in_a_folder_where_a_setting_says_so(connected: Connect, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    async with connected(tables_at=place.as_uri(), tables_life_s=3600.0) as ledger, working(ledger, totals):
        old = place / ledger.names.tables_bucket / "etl" / "gone" / "a.parquet"
        old.parent.mkdir(parents=True)
        old.write_bytes(b"old")
        os.utime(old, (1, 1))
        job = await ended(await ledger.enqueue(totals, 9))
        assert job.state is JobState.COMPLETED
        record = record_of(job, "sums")
        kept = place / ledger.names.tables_bucket / record.file
        assert hashlib.sha256(kept.read_bytes()).hexdigest() == record.sha256
        assert not old.exists()
        store = open_store(ledger)
        assert await store.remove(record)
        with pytest.raises(MissingFileError):
            await store.copy_to(record, io.BytesIO())


async def test_a_place_that_is_none_is_told(connected: Connect) -> None:
    async with connected(tables_at="nowhere://x") as ledger, working(ledger, totals):
        error = (await ended(await ledger.enqueue(totals, 1))).error
    assert error is not None
    assert "tables_at must be the URI of a folder or bucket, such as file:///srv/tables" in error.message


async def test_without_the_extra_one_sentence_says_what_to_install(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    async with working(ledger, wrong):
        error = (await ended(await ledger.enqueue(wrong, "SELECT 1"))).error
    assert error is not None
    assert error.message == (
        "step 'rows': tables need duckdb, which is not installed here: pip install 'jobledger[tables]'"
    )


def test_a_query_has_the_share_of_its_process_unless_it_is_told_otherwise() -> None:
    told = engine_limits(WorkerConfig(table_memory_bytes_max=100 << 20, table_threads=3))
    assert told == EngineLimits(memory_bytes=100 << 20, threads=3)
    of_pool = engine_limits(WorkerConfig(pool_size=2, pool_memory_bytes_max=1 << 30))
    assert of_pool.memory_bytes == 512 << 20
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert engine_limits(WorkerConfig(pool_size=4)).memory_bytes <= machine // 8
    assert engine_limits(WorkerConfig(pool_size=10_000 if os.cpu_count() else 1)).threads == 1


def test_the_cache_keeps_what_is_held_and_no_more_bytes_than_it_may(tmp_path: Path) -> None:
    cache = TableCache(10, root=tmp_path)
    for name in ("a", "b", "c"):
        with cache.scratch() as folder:
            (folder / "draft").write_bytes(b"12345678")
            cache.take(name, folder / "draft", 8)
        cache.hold(name)
    assert all(cache.find(name) is not None for name in "abc")
    cache.release("b")
    assert cache.find("b") is None
    cache.release("a")
    cache.release("c")
    assert [name for name in "abc" if cache.find(name)] == ["c"]
    path = cache.find("c")
    assert path is not None
    cache.close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_process_that_died_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    living, dead = TableCache(10, root=tmp_path), tmp_path / "jobledger-tables-dead"
    with living.scratch() as folder:
        home = folder.parent
    dead.mkdir()
    for each in (home, dead):
        os.utime(each, (1, 1))
    other = TableCache(10, root=tmp_path)
    with other.scratch():
        assert not dead.exists()
        assert home.exists()
    for cache in (living, other):
        cache.close()


async def test_a_rerun_reads_the_tables_that_it_copied_and_makes_those_that_are_gone_again(
    ledger: Ledger,
) -> None:
    async with working(ledger, totals):
        first = await ended(await ledger.enqueue(totals.options(id="first"), 30))
        CALLS.clear()
        second = await ended(await ledger.rerun("first", from_step="sums", id="second"))
        assert (second.state, CALLS["rows"]) == (JobState.COMPLETED, 0)
        rows, sums = record_of(second, "rows"), record_of(second, "sums")
        assert rows == record_of(first, "rows")
        assert sums.file.startswith("etl/second/")
    assert await open_store(ledger).remove(rows)
    async with working(ledger, totals):
        lost = await ended(await ledger.rerun("first", from_step="sums", id="lost"))
        assert lost.error is not None
        assert "`jobledger jobs rerun lost --from rows` makes it again" in lost.error.message
        again = await ended(await ledger.rerun("lost", from_step="rows", id="again"))
    assert (again.state, CALLS["rows"]) == (JobState.COMPLETED, 30)
