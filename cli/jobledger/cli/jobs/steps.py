"""`jobledger jobs steps`: what a run has done so far, read from its chain and so never stale."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from jobledger.admin.objects.jobs import steps_shown
from jobledger.admin.past import events_until, moment_words
from jobledger.admin.runs import Recorded, recorded
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import JOBS
from jobledger.cli.jobs.step_words import step_details, took
from jobledger.cli.one_job import JobId, found_history, moment_of_found, newest, refuse_broken
from jobledger.cli.output import Output
from jobledger.cli.past import asked
from jobledger.cli.text import colored, shortened
from jobledger.ledger.model.job import CLOSED_STATES
from jobledger.ledger.model.runs.steps import name_in
from jobledger.ledger.model.times import shown_time
from jobledger.projections.tables.steps import SignalRow, StepRow

_COMMAND: Final = "jobledger jobs steps"
_MORE_MAX: Final = 300
_STEP_COLUMNS: Final = ("#>", "step", "kind!", "status!", "tries>", "took>", "more~")
_SIGNAL_COLUMNS: Final = ("sequence>", "signal", "id", "sent by", "taken by")


@command(JOBS, "steps", takes=ROWS)
async def steps(
    cli: Cli,
    *,
    job_id: JobId,
    queue: options.Queue = None,
    at: options.At = None,
    sequence: options.Sequence = None,
    archives: options.Archives = None,
) -> None:
    """List the steps of a run and the signals it was sent, read from its chain and so never stale."""
    past, output = asked(at, sequence), cli.output
    async with found_history(cli, job_id, queue, archives, _COMMAND) as found:
        then = await moment_of_found(found, past, job_id, _COMMAND) if past is not None else None
        run = recorded(newest(found.history if then is None else events_until(found.history, then), output))
    if then is not None:
        output.say(moment_words(then), style="dim")
    if output.as_json:
        output.object(steps_shown(run, found.chain))
    else:
        _show(output, run)
    if found.missing:
        output.note(found.missing)
    refuse_broken(found.chain, f"job {run.job.id}")


def _show(output: Output, run: Recorded) -> None:
    if not run.steps:
        output.say(f"job {run.job.id} has recorded no step")
    else:
        output.table(
            _STEP_COLUMNS, [_step(row, is_closed=run.job.state in CLOSED_STATES) for row in run.steps]
        )
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


def _signal(row: SignalRow) -> tuple[Any, ...]:
    by = "" if row.by is None else shortened(row.by, 40)
    taken = shortened(row.taken_by, 40) if row.taken_by is not None else "waiting"
    if row.refused is not None:
        taken = f"refused: {shortened(row.refused, 80)}"
    return row.sequence, shortened(row.name, 40), shortened(row.id, 40), by, taken
