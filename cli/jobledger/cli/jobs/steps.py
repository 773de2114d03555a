"""`jobledger jobs show --steps`: what a run has done so far, and the signals it was sent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.admin.amounts import size
from jobledger.admin.objects.jobs import steps_shown
from jobledger.admin.runs import StepValues, recorded, step_values
from jobledger.cli.jobs.step_words import step_details, took
from jobledger.cli.one_job import JobRead
from jobledger.cli.output import Output
from jobledger.cli.text import colored, shortened
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.job import CLOSED_STATES
from jobledger.ledger.model.runs.steps import name_in
from jobledger.ledger.model.times import shown_time
from jobledger.projections.tables.steps import SignalRow, StepRow

_MORE_MAX: Final = 300
_STEP_COLUMNS: Final = ("#>", "step", "kind!", "status!", "tries>", "took>", "more~")
_VALUE_COLUMNS: Final = ("step", "what!", "value")
_SIGNAL_COLUMNS: Final = ("sequence>", "signal", "id", "sent by", "taken by")


def show_steps(output: Output, read: JobRead, *, results: bool) -> None:
    """Print the steps of a run and the signals it was sent. `results`: what each step was given and returned, too."""
    run = recorded(read.events)
    if output.as_json:
        output.object(steps_shown(run, read.chain, results=results))
        return
    if not run.steps:
        output.say(f"job {run.job.id} has recorded no step")
    else:
        output.table(
            _STEP_COLUMNS, [_step(row, is_closed=run.job.state in CLOSED_STATES) for row in run.steps]
        )
    if results and (
        values := [row for step in run.steps for row in _values(step.key, step_values(run, step))]
    ):
        output.table(_VALUE_COLUMNS, values, title="values")
    if run.signals:
        output.table(_SIGNAL_COLUMNS, [_signal(row) for row in run.signals], title="signals")


def _step(row: StepRow, *, is_closed: bool) -> tuple[Any, ...]:
    begun = "" if row.started_at is None else f"since {shown_time(datetime.fromisoformat(row.started_at))}"
    more = step_details(row, is_closed=is_closed) or ([begun] if row.status == "started" and begun else [])
    about = [] if name_in(row.key) == row.target else [row.target]
    return (
        row.number,
        shortened(row.key, 64),
        row.kind,
        colored(row.status),
        row.tries or "",
        took(row),
        shortened(", ".join((*about, *more)), _MORE_MAX),
    )


def _values(key: str, values: StepValues) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each value of a step in the ledger, with the beginning of the value."""
    for what, value, reference in (
        ("input", values.input, values.input_ref),
        ("result", values.result, values.result_ref),
    ):
        if value is not None or reference is not None:
            yield shortened(key, 64), what, _value(value, reference)


def _value(value: Any, reference: PayloadRef | None) -> str:
    if reference is not None:
        return f"{size(reference.size_bytes)} beside the ledger, sha256 {reference.sha256[:12]}..."
    return shortened(msgspec.json.encode(value).decode("utf-8", "replace"), _MORE_MAX)


def _signal(row: SignalRow) -> tuple[Any, ...]:
    by = "" if row.by is None else shortened(row.by, 40)
    taken = shortened(row.taken_by, 40) if row.taken_by is not None else "waiting"
    if row.refused is not None:
        taken = f"refused: {shortened(row.refused, 80)}"
    return row.sequence, shortened(row.name, 40), shortened(row.id, 40), by, taken
