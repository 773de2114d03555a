"""The parts of a job page for a run, beside its timeline: its steps with their values, and signals to send."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobledger.admin.runs import StepShown, recorded, step_shown
from jobledger.gateway.pages.schema_fields import Field, value_fields
from jobledger.ledger.additions.announced import AnnouncedTask
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.runs.wait_words import awaited_of
from jobledger.ledger.reruns.repairs import beginnings, may_mend
from jobledger.ledger.sent_signals import takes_signals
from jobledger.projections.tables.steps import SignalRow

_STEPS_MAX = 300


class SignalForm(msgspec.Struct, frozen=True, kw_only=True):
    """A signal with a form to send it."""

    name: str
    fields: tuple[Field, ...] | None  #: None: its value is typed as JSON


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """The run of a job page."""

    steps: list[StepShown]  #: the newest steps in their order, with values if the viewer may see them
    signals: list[SignalRow]
    takes_signals: bool  #: True if signals can be sent to it
    awaited: list[SignalForm]  #: the signals that it waits for
    known: list[str]  #: names of the signals that its workflow waits for at any time
    begins: list[str]  #: keys of the newest steps that a rerun can begin with
    may_mend: bool  #: True if a rerun can copy all completed steps


def run_part(
    job: Job, seen: Sequence[StoredEvent], principal: Principal, workflow: AnnouncedTask | None
) -> RunPart | None:
    """Return a run's part of the page, as far as the viewer may see it; None if the job recorded no step.

    `workflow`: as workers announced it, for the fields of its signals.
    """
    if not job.steps and not job.signals:
        return None
    run = recorded(seen)
    may_see = principal.may("payloads", job.queue, job.task)
    return RunPart(
        steps=[step_shown(run, row, values=may_see) for row in run.steps],
        signals=run.signals[-_STEPS_MAX:],
        takes_signals=takes_signals(job),
        awaited=_signals(job, workflow),
        known=[] if workflow is None else sorted(workflow.signals),
        begins=beginnings(job, held={stored.stream_sequence for stored in seen})[-_STEPS_MAX:],
        may_mend=may_mend(job),
    )


def _signals(job: Job, workflow: AnnouncedTask | None) -> list[SignalForm]:
    steps = (job.steps[key] for key in job.awaited if key in job.steps)
    names = dict.fromkeys(step.target for step in steps if awaited_of(step) == "signal")
    return [SignalForm(name=name, fields=signal_fields(workflow, name)) for name in names]


def signal_fields(workflow: AnnouncedTask | None, name: str) -> tuple[Field, ...] | None:
    """Return the fields of a signal's form; None if no worker announced the signal."""
    signal = None if workflow is None else workflow.signals.get(name)
    return None if signal is None else value_fields(signal.schema)
