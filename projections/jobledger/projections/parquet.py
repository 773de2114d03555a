"""The views of a projection as Parquet files, for tools that read tables: jobs and attempts at one moment.

They copy rows and prove nothing; an export of events has a proof (`jobledger.audit.export`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from jobledger.audit.export.parquet import need_pyarrow
from jobledger.ledger.files import make_folder, open_to_write, sync_file, sync_path
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.projections.queries.store import Store
from jobledger.projections.table import Column, View
from jobledger.projections.tables.registry import all_views

_ROWS: Final = 10_000
Progress = Callable[[int, int], None]


def write_tables(store: Store, folder: Path, *, on_progress: Progress | None = None) -> dict[str, int]:
    """Write every view into `folder` as `<name>.parquet`, without its `v_`; return the rows of each.

    The columns are those of docs/projections.md, with times as timestamps in UTC. All files are of one moment. When
    this returns, the folder is on the disk; when it does not, there is none. Holds at most 10,000 rows in memory.

    Raises: InvalidInputError when `folder` exists; ConfigurationError without pyarrow; ProjectionError, OSError.
    """
    need_pyarrow()
    folder = folder.absolute()
    _refuse(folder)
    make_folder(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as made:
        draft = Path(made) / folder.name
        make_folder(draft)
        with store.one_moment():
            rows = {
                view.name.removeprefix("v_"): _write(store, view, draft, on_progress) for view in all_views()
            }
        sync_path(draft)
        _refuse(folder)
        draft.rename(folder)
        sync_path(folder.parent)
    return rows


def _refuse(folder: Path) -> None:
    if os.path.lexists(folder):
        raise InvalidInputError(f"{folder} exists: name a folder that does not")


def _write(store: Store, view: View, folder: Path, on_progress: Progress | None) -> int:
    """Write one view; return its rows."""
    pa, pq = need_pyarrow()
    schema = pa.schema([pa.field(name, _arrow_type(pa, column)) for name, column in view.columns.items()])
    number = int(store.select(f"SELECT count(*) FROM {view.name}")[0][0])  # noqa: S608 - a declared name
    done = 0
    with open_to_write(folder / f"{view.name.removeprefix('v_')}.parquet", "xb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for rows in store.batches(f"SELECT * FROM {view.name}", _ROWS):  # noqa: S608 - a declared name
                writer.write_batch(pa.record_batch(list(_arrays(pa, view, rows)), schema=schema))
                done += len(rows)
                if on_progress is not None:
                    on_progress(done, number)
        sync_file(file)
    return done


def _arrow_type(pa: Any, column: Column) -> Any:
    if column.is_time:
        return pa.timestamp("us", tz="UTC")
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bytes: pa.binary()}[column.type]


def _arrays(pa: Any, view: View, rows: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    for column, values in zip(view.columns.values(), zip(*rows, strict=True), strict=True):
        kept = [_time(value) for value in values] if column.is_time else values
        yield pa.array(kept, type=_arrow_type(pa, column))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
