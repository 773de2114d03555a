"""The table of schedules: the definition of each, its next tick, and the outcomes of its ticks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.rights.marks import JsonOf
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.ledger.model.schedules.events import (
    Declared,
    Paused,
    Removed,
    Resumed,
    ScheduleEvent,
    Ticked,
)
from jobledger.ledger.model.schedules.jobs import tick_job_id, tick_moment
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.times import time_text
from jobledger.projections.table import (
    AggregateTables,
    CacheLimits,
    Index,
    Rows,
    Table,
    integer,
    marks,
    text,
    timestamp,
)

#: Columns that are written with every event, which has the whole state.
_STATE: Final = {
    "name": text("its name"),
    "status": text(
        "`active`, `paused`, `ended` (nothing is to come) or `removed`",
    ),
    "cron": text("its cron expression; empty where it has an interval or a moment"),
    "every_s": integer("its interval in seconds; 0 without one"),
    "at": timestamp("its one moment; NULL without one"),
    "timezone": text("whose wall time the expression means"),
    "task": text("the task of its jobs"),
    "queue": text("the queue of its jobs"),
    "overlap": text("what happens while the job of the newest tick has not ended"),
    "catchup": text("what happens to missed ticks"),
    "source": text("`code` or `operator`: who declared it"),
    "code_version": text("the version of the code that declared it; empty where an operator did"),
    "next_run_at": timestamp("when the next tick is due; NULL where none is to come"),
    "last_tick_at": timestamp("the planned moment of the newest tick; NULL before the first"),
    "last_run_at": timestamp("the planned moment of the newest tick that made a job; NULL before the first"),
    "last_job": text("the id of that job; NULL before the first"),
    "run_count": integer("jobs that its ticks made"),
    "tick_count": integer("ticks, also those that made no job"),
    "definition": text("all that it was told, as JSON"),
    "updated_at": timestamp("the server's time of its newest event"),
    "last_sequence": integer("the stream sequence of its newest event"),
}
#: Columns that add up events since the beginning of the rows.
_SUMS: Final = {
    "missed_count": integer("ticks that were missed and not caught up, since these rows begin"),
    "skipped_count": integer(
        "ticks that made no job because the last one had not ended, since these rows begin"
    ),
}
#: Columns that only some events change.
_SAID: Final = {
    "last_skipped_at": timestamp(
        "the planned moment of the newest tick that made no job, for either reason; NULL without one in these rows"
    ),
    "declared_at": timestamp("the server's time of its newest declaration; NULL where that is archived"),
    "declared_by": text("who declared it so; NULL where that is archived"),
    "paused_at": timestamp("the server's time at which it was paused; NULL where it is not"),
    "paused_by": text("who paused it; NULL where it is not paused"),
    "pause_reason": text("why; NULL where it is not paused"),
}
SCHEDULES: Final = Table(
    name="schedules",
    row="schedule: what it does, when it is due next, how often it ran, who paused it",
    columns={**_STATE, **_SUMS, **_SAID},
    key=("name",),
    indexes=(Index(("next_run_at",), where="next_run_at IS NOT NULL"),),
    sequence="last_sequence",
)
_INSERTED: Final = (*_STATE, *_SUMS)
_PUT: Final = (
    f"INSERT INTO schedules ({', '.join(_INSERTED)}) VALUES ({marks(_INSERTED)}) ON CONFLICT (name) DO UPDATE SET "  # noqa: S608 - columns
    + ", ".join(
        f"{name} = excluded.{name}{f' + schedules.{name}' if name in _SUMS else ''}" for name in _INSERTED
    )
)
_SKIPPED: Final = "UPDATE schedules SET last_skipped_at = ? WHERE name = ?"
_DECLARED: Final = "UPDATE schedules SET declared_at = ?, declared_by = ? WHERE name = ?"
_PAUSED: Final = "UPDATE schedules SET paused_at = ?, paused_by = ?, pause_reason = ? WHERE name = ?"
#: Matches only ticks of this schedule: another schedule's name may begin with this one's.
_TICK: Final = "[0-9]" * 8 + "T" + "[0-9]" * 6
_MICROSECONDS: Final = "[0-9]" * 6
_FAILURE: Final = (
    "SELECT id, error_type, error, updated_at FROM jobs WHERE tick <> '' AND error IS NOT NULL "
    "AND tick > ? AND tick < ? AND (tick GLOB ? OR tick GLOB ?) ORDER BY tick DESC LIMIT 1"
)

_TICKS: Final = (
    "SELECT tick, queue, task, id, status, error_type, created_at, completed_at FROM jobs WHERE tick <> '' "
    "AND tick > ? AND tick < ? AND (tick GLOB ? OR tick GLOB ?) ORDER BY tick DESC LIMIT ?"
)
#: The most ticks of a schedule that are returned.
TICKS_SHOWN: Final = 10

Select = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule. Times are ISO-8601 text in UTC."""

    name: str
    status: str
    cron: str
    every_s: int
    at: str | None
    timezone: str
    task: str
    queue: str
    overlap: str
    catchup: str
    source: str
    code_version: str
    next_run_at: str | None
    last_tick_at: str | None
    last_run_at: str | None
    last_job: str | None
    run_count: int
    tick_count: int
    skipped_count: int
    missed_count: int
    last_skipped_at: str | None
    definition: Annotated[msgspec.Raw, JsonOf(Definition)]
    updated_at: str
    declared_at: str | None
    declared_by: str | None
    paused_at: str | None
    paused_by: str | None
    pause_reason: str | None


class LastFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The newest tick whose job failed, even if the job completed since."""

    job: str
    error_type: str
    error: str
    updated_at: str  #: time of the job's newest event


class TickRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tick that has a job, and the state of the job. Times are ISO-8601 text in UTC."""

    tick: str  #: the planned moment
    late_s: float  #: seconds from it to the making of the job
    queue: str
    task: str
    job: str
    status: str
    error_type: str | None  #: error type of the job's newest failure
    completed_at: str | None


_SELECT: Final = f"SELECT {', '.join(ScheduleRow.__struct_fields__)} FROM schedules"  # noqa: S608 - columns


def read_schedules(select: Select, name: str | None = None) -> list[ScheduleRow]:
    """Return the schedules by name, or one; removed schedules, too. `select` runs a statement on the file."""
    where, values = ("", ()) if name is None else (" WHERE name = ?", (name,))
    return [_row(row) for row in select(f"{_SELECT}{where} ORDER BY name", values)]


def late_schedules(select: Select, before: datetime) -> list[tuple[str, str]]:
    """Return name and due time of schedules with an overdue tick, due before a moment; the oldest first."""
    sql = (
        "SELECT name, next_run_at FROM schedules WHERE next_run_at IS NOT NULL AND next_run_at < ? ORDER BY 2"
    )
    return [(name, due) for name, due in select(sql, (time_text(before),))]


def last_failure(select: Select, name: str) -> LastFailure | None:
    """Return the newest failure among the jobs of a schedule's ticks, None without one."""
    found = select(_FAILURE, _of(name))
    return (
        LastFailure(job=found[0][0], error_type=found[0][1], error=found[0][2], updated_at=found[0][3])
        if found
        else None
    )


def last_ticks(select: Select, name: str) -> list[TickRow]:
    """Return the newest ticks of a schedule that have jobs, the newest first."""
    found: list[TickRow] = []
    for tick, queue, task, job, status, error_type, created_at, completed_at in select(
        _TICKS, (*_of(name), TICKS_SHOWN)
    ):
        planned = tick_moment(name, tick)
        late_s = (datetime.fromisoformat(created_at) - planned).total_seconds()
        found.append(
            TickRow(
                tick=time_text(planned),
                late_s=round(max(0.0, late_s), 3),
                queue=queue,
                task=task,
                job=job,
                status=status,
                error_type=error_type,
                completed_at=completed_at,
            )
        )
    return found


def _of(name: str) -> tuple[str, str, str, str]:
    """Return the values of the two statements on ticks."""
    return f"{name}-0", f"{name}-:", f"{name}-{_TICK}Z", f"{name}-{_TICK}{_MICROSECONDS}Z"


def _row(values: Sequence[Any]) -> ScheduleRow:
    fields: dict[str, Any] = dict(zip(ScheduleRow.__struct_fields__, values, strict=True))
    fields["definition"] = msgspec.Raw(fields["definition"].encode())
    return ScheduleRow(**fields)


class ScheduleRows(Rows):
    """The rows of schedules: each event has the whole state, so it replaces the row."""

    def __init__(self, connection: sqlite3.Connection, _cache: CacheLimits) -> None:
        self._connection = connection

    def apply(self, messages: Sequence[Message]) -> None:
        """Bring the rows forward; see `table.Rows`."""
        for message in messages:
            event: ScheduleEvent = SCHEDULE.decode(message)
            self._connection.execute(_PUT, _values(event, message))
            at = time_text(message.stored_at)
            match event:
                case Ticked(skipped="running" | "late", tick=tick):
                    self._connection.execute(_SKIPPED, (_time(tick), event.schedule))
                case Declared():
                    self._connection.execute(_DECLARED, (at, event.by, event.schedule))
                case Paused(reason=reason):
                    self._connection.execute(_PAUSED, (at, event.by, reason, event.schedule))
                case Resumed() | Removed():
                    self._connection.execute(_PAUSED, (None, None, None, event.schedule))
                case _:
                    pass


def _values(event: ScheduleEvent, message: Message) -> tuple[object, ...]:
    definition, spec = event.definition, event.definition.spec
    return (
        event.schedule,
        _status(event),
        spec.cron,
        spec.every_s,
        _time(spec.at),
        spec.timezone,
        definition.task,
        definition.queue,
        definition.overlap,
        definition.catchup,
        definition.source,
        definition.code_version,
        _time(event.next_at),
        _time(event.tick),
        _time(event.ran),
        None if event.ran is None else tick_job_id(event.schedule, event.ran),
        event.runs,
        event.number,
        msgspec.json.encode(definition).decode(),
        time_text(message.stored_at),
        message.stream_sequence,
        event.missed if isinstance(event, Ticked) else 0,
        int(isinstance(event, Ticked) and event.skipped == "running"),
    )


def _status(event: ScheduleEvent) -> str:
    if isinstance(event, Removed):
        return "removed"
    if event.paused:
        return "paused"
    return "active" if event.next_at is not None or event.definition.spec.on_demand else "ended"


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else time_text(moment)


SCHEDULE_TABLES: Final = AggregateTables(
    aggregate=SCHEDULE.name, version=3, tables=(SCHEDULES,), rows=ScheduleRows
)
