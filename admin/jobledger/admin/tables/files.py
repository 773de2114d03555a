"""Tables of runs as a person finds and copies them. The projection has what a table is; the store has its file."""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path
from typing import IO, Final, NamedTuple

import anyio.to_thread

from jobledger.admin.rows import Rows
from jobledger.ledger.client import Ledger
from jobledger.ledger.files import make_folder, open_file, open_to_write, rename_over, sync_file
from jobledger.ledger.model.errors import (
    AmbiguousIdError,
    InvalidInputError,
    JobNotFoundError,
    NotFoundError,
)
from jobledger.ledger.model.job import Job
from jobledger.ledger.tables.errors import TableExpiredError, TableState
from jobledger.ledger.tables.record import TableRecord
from jobledger.ledger.tables.stores import MissingFileError, open_store
from jobledger.projections.tables.run_tables import TableRow, list_tables, made_table

#: Of one run, or at once, at most this many tables are listed.
TABLES_MAX: Final = 10_000
_CHUNK_BYTES: Final = 1 << 20


class TableList(NamedTuple):
    """Tables at one moment."""

    tables: list[TableRow]  #: tables, the newest first
    now: datetime


class RecordedTable(NamedTuple):
    """A table, as recorded in the events of its run."""

    run: str
    step: str  #: key of the step that made it
    record: TableRecord

    def expired(self, state: TableState) -> TableExpiredError:
        """Return the error for a caller who needs its rows."""
        return TableExpiredError(self.record, self.step, self.run, state)


async def tables_of(rows: Rows, run: str | None, queue: str | None, *, limit: int = TABLES_MAX) -> TableList:
    """Return the tables of a run, named by its id or a prefix of it, or of all runs.

    Raises: JobNotFoundError, AmbiguousIdError, ProjectionError, UnreachableError.
    """
    async with rows.opened() as view:
        job_id = None
        if run is not None:
            found = view.store.find(run, queue=queue)
            if not found:
                raise JobNotFoundError(run)
            if len(found) > 1:
                raise AmbiguousIdError(run, [f"{ref.queue}/{ref.job_id}" for ref in found])
            job_id, queue = found[0].job_id, found[0].queue
        return TableList(
            list(list_tables(view.store.select, job_id=job_id, queue=queue, limit=limit)), view.now
        )


async def one_table(rows: Rows, run: str, step: str, queue: str | None) -> TableRow:
    """Return the table that a step of a run made; `step` is its key, or the table's name if no other one has it.

    Raises: NotFoundError, which names those that there are; as `tables_of`.
    """
    found = {each.step: each for each in (await tables_of(rows, run, queue)).tables}
    return found[_named({key: table.name for key, table in found.items()}, run, step)]


def recorded_table(job: Job, step: str) -> RecordedTable:
    """Return the recorded table that a step of a run made; `step` as in `one_table`, or "" for the run's only table.

    Raises: NotFoundError, which names those that there are.
    """
    made = {key: record for key, each in job.steps.items() if (record := made_table(each)) is not None}
    key = _named({key: record.name for key, record in made.items()}, job.id, step)
    return RecordedTable(run=job.id, step=key, record=made[key])


def _named(names: dict[str, str], run: str, step: str) -> str:
    """Return the key of the step whose table is meant. `names`: those of the tables, by the keys of their steps."""
    if step in names:
        return step
    exact = [key for key, name in names.items() if step in {"", name}]
    if len(exact) == 1:
        return exact[0]
    known = ", ".join(list(names)[:20]) or "none"
    what = f"no table {step!r}" if step or not names else f"{len(names):,} tables: name the step of one"
    raise NotFoundError(f"run {run} has {what}; its steps with tables: {known}")


async def is_stored(ledger: Ledger, table: TableRow) -> bool:
    """Return whether a table's file is there. Raises: ServerUnreachableError, ConfigurationError."""
    return await open_store(ledger).has(table.record)


async def export_table(ledger: Ledger, table: TableRow, path: Path) -> None:
    """Copy a table's Parquet file to a new path; its digest is checked before it gets that name.

    Raises: InvalidInputError if something is there, TableExpiredError, ServerUnreachableError, ConfigurationError, OSError.
    """
    draft = _draft(path)
    made = RecordedTable(run=table.job_id, step=table.step, record=table.record)
    try:
        with open_to_write(draft, "wb") as file:
            await copy_table(ledger, made, file)
            sync_file(file)
        if await anyio.to_thread.run_sync(_digest, draft) != table.sha256:
            raise made.expired("differs")
        rename_over(draft, path)
    finally:
        draft.unlink(missing_ok=True)


async def copy_table(ledger: Ledger, made: RecordedTable, file: IO[bytes]) -> None:
    """Write a table's Parquet file into `file`; the caller then compares its digest.

    Raises: TableExpiredError, ServerUnreachableError, ConfigurationError, and the file's OSError.
    """
    try:
        await open_store(ledger).copy_to(made.record, file)
    except MissingFileError as error:
        until = made.record.expires_at
        is_over = until is not None and until <= ledger.clock.now()
        raise made.expired("expired" if is_over else "gone") from error


def _draft(path: Path) -> Path:
    """Return the path of a draft, later renamed to `path`. Raises: InvalidInputError where `path` exists."""
    if path.exists() or path.is_symlink():
        raise InvalidInputError(f"{path} exists: name a file that does not")
    make_folder(path.absolute().parent)
    return path.with_name(f".{path.name}.part")


def _digest(path: Path) -> str:
    total = hashlib.sha256()
    with open_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            total.update(chunk)
    return total.hexdigest()
