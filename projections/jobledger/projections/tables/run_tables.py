"""The table that lists the tables of runs, as the steps that made them recorded them. Their rows are in files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Carried
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.events import StepCompleted
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.times import time_text
from jobledger.ledger.tables.record import TableRecord, read_record
from jobledger.projections.filters import Term, joined
from jobledger.projections.table import Index, Row, Table, integer, marks, text, timestamp

_Key = tuple[str, str]  # (job id, queue), as in the primary key of jobs

RUN_TABLES: Final = Table(
    name="tables",
    row="[table](tables.md) that a run made",
    columns={
        "queue": text("the run's queue"),
        "job_id": text("the run's id"),
        "step": text("the key of the step that made it"),
        "name": text("its name"),
        "rows": integer("how many rows it has"),
        "bytes": integer("size of its Parquet file"),
        "sha256": text("digest of its Parquet file, in hex"),
        "columns": text("Arrow types of its columns, as a JSON object"),
        "file": text("where its file lies in its store; it may be gone"),
        "expires_at": timestamp("until when its file is kept; NULL: until somebody removes it"),
        "made_at": timestamp("when the end of its step was recorded; NULL where that is archived"),
        "sequence": integer("the stream sequence of its step's newest event"),
    },
    key=("job_id", "queue", "step"),
    indexes=(Index(("expires_at",)),),
    sequence="sequence",
)
_NAMES: Final = ", ".join(RUN_TABLES.columns)
_PUT: Final = (
    f"INSERT INTO tables ({_NAMES}) VALUES ({marks(RUN_TABLES.columns)}) "  # noqa: S608 - names of columns
    f"ON CONFLICT ({', '.join(RUN_TABLES.key)}) DO UPDATE SET sequence = excluded.sequence"
)
_LIST: Final = f"SELECT {_NAMES} FROM tables WHERE (? IS NULL OR job_id = ?) AND (? IS NULL OR queue = ?)"  # noqa: S608
_NEWEST: Final = " ORDER BY sequence DESC, step LIMIT ?"
_VISIBLE: Final = " AND EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_id AND jobs.queue = tables.queue AND "

Select = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One table of a run. Times are ISO-8601 text in UTC."""

    queue: str
    job_id: str
    step: str
    name: str
    rows: int
    bytes: int
    sha256: str
    columns: dict[str, str]
    file: str
    expires_at: str | None
    made_at: str | None
    sequence: int

    @property
    def record(self) -> TableRecord:
        """The recorded result of the step."""
        return msgspec.convert(
            {
                "name": self.name,
                "sha256": self.sha256,
                "rows": self.rows,
                "bytes": self.bytes,
                "schema": self.columns,
                "expires_at": self.expires_at,
                "file": self.file,
            },
            TableRecord,
        )


def made_table(step: Step) -> TableRecord | None:
    """Return the table that a step made, None if it made none or its result is not in the event."""
    if step.kind != "table" or step.state != "completed" or step.result is NO_VALUE:
        return None
    try:
        return read_record(bytes(step.result))
    except InvalidInputError:  # the value only looks like a table: anybody may append one
        return None


class NotedTables:
    """The tables in the events of one transaction."""

    def __init__(self) -> None:
        self._rows: dict[_Key, dict[str, Row]] = {}

    def add(self, stored: StoredEvent, after: Job) -> None:
        """Note the tables of an event of a run."""
        event = stored.event
        if isinstance(event, StepCompleted) and event.kind == "table":
            self._note(after, event.step, time_text(event.at))
        elif isinstance(event, Carried):
            for key in after.steps:
                self._note(after, key, None)

    def _note(self, job: Job, key: str, made_at: str | None) -> None:
        step = job.steps[key]
        record = made_table(step)
        if record is None:
            return
        until = None if record.expires_at is None else time_text(record.expires_at)
        columns = msgspec.json.encode(record.schema).decode()
        row = (
            *(job.queue, job.id, key, record.name, record.rows, record.bytes, record.sha256),
            *(columns, record.file, until, made_at, step.sequence),
        )
        self._rows.setdefault((job.id, job.queue), {})[key] = row

    def forget(self, key: _Key) -> None:
        """Drop the notes on an archived job, because another job has its id now."""
        self._rows.pop(key, None)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write the rows in the transaction of the caller."""
        for rows in self._rows.values():
            connection.executemany(_PUT, rows.values())


def list_tables(
    select: Select,
    *,
    job_id: str | None = None,
    queue: str | None = None,
    limit: int,
    visible_to: Sequence[Term] = (),
) -> Iterator[TableRow]:
    """Yield the tables of a run, or of all runs, those made last first.

    `visible_to`: conditions on the `queue` and `task` of the runs.
    """
    condition, values = joined(visible_to)
    wanted = f"{_VISIBLE}{condition})" if visible_to else ""
    for row in select(f"{_LIST}{wanted}{_NEWEST}", (job_id, job_id, queue, queue, *values, limit)):
        found: dict[str, Any] = dict(zip(RUN_TABLES.columns, row, strict=True))
        found["columns"] = msgspec.json.decode(found["columns"], type=dict[str, str])
        yield TableRow(**found)
