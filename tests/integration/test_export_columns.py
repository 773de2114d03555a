"""Parquet for tools that read tables: the typed columns of exported events, and the tables of jobs and attempts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.histories import memory_history
from tests.support.projections import finish
from tests.support.stories import rich, stored_in

from jobledger.audit.export import read_manifest, verify_export, write_export
from jobledger.audit.export.manifest import MANIFEST, ExportedFile, manifest_bytes, sealed
from jobledger.audit.export.parquet import Columns, columns_of, hash_file
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.memory import MemoryLog
from jobledger.projections import Store, write_tables
from jobledger.projections.tables.registry import all_views

_parquet: Any = pq
pytestmark = pytest.mark.anyio


def _rows(path: Path) -> list[dict[str, Any]]:
    return list(_parquet.read_table(path).to_pylist())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"3",
        b'{"type":7}',
        b'{"type":"started","attempt":99999999999999999999}',
        b'{"type":"started","at":"2025-01-31T08:00:00"}',
        b'{"type":"failed","error":"a word"}',
    ],
)
def test_bytes_that_are_no_event_have_no_columns(data: bytes) -> None:
    assert columns_of(data) == Columns()


def test_an_event_of_a_newer_version_has_those_of_its_fields() -> None:
    data = b'{"type":"melted","v":9,"at":"2025-01-31T08:00:00Z","job":"j","heat":[1],"attempt":2}'
    at = datetime(2025, 1, 31, 8, tzinfo=UTC)
    assert columns_of(data) == Columns(type="melted", job="j", attempt=2, at=at)


async def test_every_event_has_its_own_fields_as_columns(tmp_path: Path) -> None:
    log = await stored_in(rich(), MemoryLog())
    await write_export(log, tmp_path / "e", file_format="parquet")
    (file,) = (tmp_path / "e").glob("events-*")
    rows, events = _rows(file), [msgspec.json.decode(message.data) for message in rich().messages]
    assert len(rows) == len(events) > 20
    for row, event in zip(rows, events, strict=True):
        for name in ("type", "job", "queue", "task", "attempt", "worker"):
            assert row[name] == event.get(name), (name, row, event)
        assert row["at"] == datetime.fromisoformat(event["at"])
        assert row["error_type"] == event.get("error", {}).get("type")
    assert {row["error_type"] for row in rows} > {None}
    assert (await verify_export(tmp_path / "e")).sound


def _written_again(folder: Path, change: Callable[[Any], Any]) -> None:
    """Change the only file of an export, and its manifest so that this fits."""
    manifest = read_manifest(folder)
    (entry,) = manifest.files
    path = folder / entry.name
    _parquet.write_table(change(_parquet.read_table(path)), path)
    digest, size = hash_file(path)
    changed: ExportedFile = msgspec.structs.replace(entry, sha256=digest, bytes=size)
    again = sealed(msgspec.structs.replace(manifest, files=(changed,)))
    (folder / MANIFEST).write_bytes(manifest_bytes(again))


def _as_it_is(table: Any) -> Any:
    return table


def _stored_alone(table: Any) -> Any:
    return table.select(["stream_sequence", "stored_at", "subject", "data"])


def _with_worker(table: Any) -> Any:
    place = table.schema.get_field_index("worker")
    names = ["mallory" if name is not None else None for name in table["worker"].to_pylist()]
    return table.set_column(place, table.schema.field(place), pa.array(names, pa.string()))


async def test_a_column_that_differs_from_the_stored_bytes_is_found(tmp_path: Path) -> None:
    await write_export(await memory_history(jobs=5, steps=30), tmp_path / "e", file_format="parquet")
    shutil.copytree(tmp_path / "e", tmp_path / "same")
    _written_again(tmp_path / "same", _as_it_is)
    assert (await verify_export(tmp_path / "same")).sound
    _written_again(tmp_path / "e", _with_worker)
    (first, *_) = (await verify_export(tmp_path / "e")).violations
    assert "its columns do not say what its stored bytes say" in first.sentence


async def test_an_export_that_has_only_the_stored_bytes_is_still_read(tmp_path: Path) -> None:
    await write_export(await memory_history(jobs=5, steps=30), tmp_path / "e", file_format="parquet")
    _written_again(tmp_path / "e", _stored_alone)
    assert (await verify_export(tmp_path / "e")).sound


async def test_tables_are_the_rows_of_the_views_with_times_as_times(tmp_path: Path) -> None:
    await finish(await memory_history(jobs=30, steps=200), tmp_path / "p")
    done = list[tuple[int, int]]()
    with Store.open(tmp_path / "p") as store:
        counts = write_tables(store, tmp_path / "t", on_progress=lambda count, of: done.append((count, of)))
        for view in all_views():
            name = view.name.removeprefix("v_")
            found = _rows(tmp_path / "t" / f"{name}.parquet")
            kept = [
                {
                    column: datetime.fromisoformat(value) if about.is_time and value is not None else value
                    for (column, about), value in zip(view.columns.items(), row, strict=True)
                }
                for row in store.select(f"SELECT * FROM {view.name}")
            ]
            assert found == kept
            assert counts[name] == len(found) > 0
            assert (len(found), len(found)) in done
    assert isinstance(_rows(tmp_path / "t" / "jobs.parquet")[0]["created_at"], datetime)


async def test_tables_take_no_folder_that_is_there(tmp_path: Path) -> None:
    await finish(await memory_history(jobs=3, steps=9), tmp_path / "p")
    (tmp_path / "t").mkdir()
    with Store.open(tmp_path / "p") as store, pytest.raises(InvalidInputError, match="exists: name a folder"):
        write_tables(store, tmp_path / "t")
    assert list((tmp_path / "t").iterdir()) == []
