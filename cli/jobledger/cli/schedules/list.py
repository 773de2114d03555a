"""`jobledger schedules list` and `show`: the schedules, their next ticks, and the jobs of their ticks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from jobledger.admin.amounts import duration
from jobledger.admin.objects.schedules import schedule_listed, schedule_shown
from jobledger.admin.schedule_words import time_in, when_words
from jobledger.admin.schedules import ScheduleLine, ScheduleView, list_schedules, show_schedule
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import SCHEDULES
from jobledger.cli.jobs.view import label_facts
from jobledger.cli.output import Output
from jobledger.cli.schedules import options
from jobledger.cli.text import Cell, age, moment, shortened
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.projections.tables.schedules import ScheduleRow, TickRow

_REMOVED = Annotated[bool, typer.Option("--removed", metavar="", help="Also those that were removed.")]
_STYLES: Final = {"paused": "yellow", "ended": "dim", "removed": "dim", "late": "bold red"}


@command(SCHEDULES, "list", takes=ROWS)
async def list_command(cli: Cli, *, removed: _REMOVED = False) -> None:
    """List the schedules: their status, when they are due next, when they ran last, and when they tick."""
    async with cli.ledger() as ledger:
        found = await list_schedules(cli.rows(ledger), removed=removed)
        now = ledger.clock.now()
    if cli.output.as_json:
        for each in found:
            cli.output.object(schedule_listed(each))
    elif not found:
        cli.output.say(
            'no schedules; add one with `jobledger schedules add NAME --task TASK --cron "30 2 * * *"`'
        )
    else:
        # 80 characters have room for these columns only; `show` and --json have the others. A column that may be long
        # is last.
        columns = ("schedule", "status~", "next run!", "last run!", "when~")
        cli.output.table(columns, [_cells(each, now) for each in found])


def _cells(each: ScheduleLine, now: datetime) -> tuple[Cell, ...]:
    row = each.row
    return (
        shortened(row.name, 64),
        _status(each),
        _age(row.next_run_at, now),
        _age(row.last_run_at, now),
        shortened(_when(row), 60),
    )


def _when(row: ScheduleRow) -> str:
    return when_words(row.cron, row.every_s, time_in(row.at), row.timezone)


def _age(text: str | None, now: datetime) -> str:
    at = time_in(text)
    return "-" if at is None else age(at, now)


def _status(each: ScheduleLine) -> Text:
    row = each.row
    word = "late" if each.is_late else row.status
    words = f"paused by {row.paused_by}" if row.status == "paused" and row.paused_by else word
    if each.in_code == "no":
        words += ", in no running worker's code"
    return Text(shortened(words, 60), style=_STYLES.get(word, ""))


@command(SCHEDULES, "show", takes=ROWS)
async def show(cli: Cli, *, name: options.Name) -> None:
    """Show one schedule: its definition, its ticks, and the newest failure among its jobs."""
    async with cli.ledger() as ledger:
        shown = await show_schedule(cli.rows(ledger), name)
    if cli.output.as_json:
        cli.output.object(schedule_shown(shown))
    else:
        _show(cli.output, shown)


def _show(output: Output, shown: ScheduleView) -> None:
    row, failure, now = shown.listed.row, shown.failure, shown.now
    definition = msgspec.json.decode(row.definition, type=Definition)
    order = definition.order
    output.facts(
        [
            ("schedule", row.name),
            ("status", _status(shown.listed)),
            ("paused", _said(row.paused_at, row.paused_by, row.pause_reason, now)),
            ("when", _when(row)),
            ("next run", _moment(row.next_run_at, now)),
            ("last run", _moment(row.last_run_at, now)),
            ("last job", row.last_job),
            ("runs", f"{row.run_count:,} of {row.tick_count:,} ticks"),
            ("no job", _without_job(row, now)),
            (
                "last failure",
                None if failure is None else f"{failure.error_type}: {failure.error} ({failure.job})",
            ),
            ("task", row.task),
            ("queue", f"{row.queue} ({order.priority})"),
            ("input", _input(definition)),
            ("attempts", f"{order.max_attempts}" + _timeout(order.timeout_s)),
            ("limits", ", ".join(order.limits) or None),
            *label_facts(order),
            ("metadata", ", ".join(f"{key}={value}" for key, value in order.metadata.items()) or None),
            ("overlap", row.overlap),
            ("hooks", "asked or told in a job of their own" if definition.hooks else None),
            ("catch-up", _catchup(definition)),
            ("jitter", f"up to {definition.jitter_s} s" if definition.jitter_s else None),
            ("ends", None if definition.ends_at is None else moment(definition.ends_at, now)),
            ("declared", _said(row.declared_at, row.declared_by, None, now)),
            ("declared in", "code" if row.source == "code" else None),
        ]
    )
    if shown.ticks:
        output.table(
            ("tick!", "late>", "status", "error", "job"), map(_tick, shown.ticks), title="last ticks"
        )


def _tick(each: TickRow) -> tuple[Cell, ...]:
    return each.tick[:19] + "Z", duration(each.late_s), each.status, each.error_type or "", each.job


def _without_job(row: ScheduleRow, now: datetime) -> str | None:
    counts = ((row.skipped_count, "skipped, the last job had not ended"), (row.missed_count, "missed"))
    said = [f"{count:,} {what}" for count, what in counts if count]
    newest = _moment(row.last_skipped_at, now)
    return "; ".join([*said, f"newest {newest}"] if newest else said) or None


def _moment(text: str | None, now: datetime) -> str | None:
    at = time_in(text)
    return None if at is None else moment(at, now)


def _said(at: str | None, by: str | None, what: str | None, now: datetime) -> str | None:
    said = _moment(at, now)
    return None if said is None else f"{said} by {by}" + (f": {what}" if what else "")


def _input(definition: Definition) -> str | None:
    order = definition.order
    if order.input_ref is not None:
        return f"{order.input_ref.size_bytes:,} bytes, stored apart"
    return shortened(bytes(order.input).decode(errors="replace"), 300) or None


def _timeout(timeout_s: float | None) -> str:
    return "" if timeout_s is None else f", each at most {timeout_s:g} s"


def _catchup(definition: Definition) -> str:
    return f"all of the last {definition.window_s:,} s" if definition.catchup == "all" else definition.catchup
