"""The steps of runs in words and marks, for tables, trees and graphs."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from jobledger.admin.amounts import duration, size
from jobledger.ledger.model.runs.steps import name_in
from jobledger.ledger.model.times import shown_time
from jobledger.projections.tables.steps import StepRow

#: Marks by the status of a step or a job.
MARKS: Final = {
    "completed": "✓",
    "failed": "✗",
    "dead_lettered": "✗",
    "cancelled": "✗",
    "discarded": "✗",
    "retrying": "↻",
    "retry_wait": "↻",
    "running": "▶",
}
WAITS: Final = "…"  #: mark of every other status


def mark(status: str) -> str:
    """Return one character for a status of a step or a job."""
    return MARKS.get(status, WAITS)


def step_name(step: StepRow) -> str:
    """Return a step's key, with kind and target if the key lacks them: `wait approved`, `map pages (fetch)`."""
    name = name_in(step.key)
    if step.kind in ("step", "undo"):
        return step.key
    if step.target in ("", name, step.kind):
        return step.key if name == step.kind else f"{step.kind} {step.key}"
    return f"{step.kind} {step.key} ({step.target})"


def step_details(step: StepRow, *, is_closed: bool) -> list[str]:
    """Return details of a step beside its name and status, the most important first.

    `is_closed`: whether its run has ended for good.
    """
    found: list[str] = []
    if step.items_open is not None:
        found.append(_children_words(step, is_closed=is_closed))
    if step.error is not None:
        found.append(f"{step.error_type}: {step.error}" if step.error else str(step.error_type))
    if step.until is not None and step.status in ("started", "retrying"):
        found.append(f"until {shown_time(datetime.fromisoformat(step.until))}")
    if step.copied_from is not None:
        found.append(f"copied from sequence {step.copied_from:,}")
    if step.rows is not None:
        found.append(f"{step.rows:,} row{'' if step.rows == 1 else 's'}")
    elif step.result_bytes is not None and step.items_open is None:
        found.append(f"{size(step.result_bytes)} result")
    return found


def _children_words(step: StepRow, *, is_closed: bool) -> str:
    """Return the progress of a step's children: `37 of 40 ended, 3 open, 2 not completed`.

    Children that end after the run are not counted: they were cancelled with the run, or go on without it.
    """
    completed, failed = step.items_completed or 0, step.items_failed or 0
    of = "an open group" if step.items is None else f"{step.items:,}"
    words = f"{completed + failed:,} of {of} ended"
    if step.items_open:
        words = f"{words} before the run did" if is_closed else f"{words}, {step.items_open:,} open"
    return f"{words}, {failed:,} not completed" if failed else words


def took(step: StepRow) -> str:
    """Return how long a step took; "" without a duration, and for a value or patch, which takes no time."""
    if step.duration_ms is None or not (step.duration_ms or step.kind not in ("value", "patch")):
        return ""
    return duration(step.duration_ms / 1000)
