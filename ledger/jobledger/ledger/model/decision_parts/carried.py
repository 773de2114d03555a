"""A job as `carried` holds it: made from a folded `Job`, and compared with one. Pure. Source: ADR 011."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from jobledger.ledger.model.attempts import Attempt
from jobledger.ledger.model.events import (
    Carried,
    CarriedAttempt,
    CarriedJob,
    CarriedProgress,
)
from jobledger.ledger.model.forms import in_form
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.lifecycle import lean
from jobledger.ledger.model.runs.carried_parts import CarriedStep, carried_signals, carried_steps

_replace = msgspec.structs.replace
_asdict = msgspec.structs.asdict


#: Releases before 0.2 knew one state for both waits, and a flag; both waits are still stored so.
_SAME_FIELDS: Final = tuple(
    name for name in CarriedJob.__struct_fields__ if name not in ("state", "paused_by_operator")
)


def carried_job(job: Job, *, tracebacks: bool = True) -> CarriedJob:
    """Return the job in the form that is stored; without `tracebacks` those of its attempts are left out.

    With them, a job of many failed attempts may be too large for one event. Its newest error keeps its traceback.
    """
    fields: dict[str, Any] = {name: getattr(job, name) for name in _SAME_FIELDS}
    attempts = job.attempts if tracebacks else _without_tracebacks(job.attempts)
    steps = carried_steps(job.steps)
    fields["state"] = "paused" if job.state is JobState.WAITING else job.state.value
    fields["paused_by_operator"] = job.state is JobState.PAUSED
    fields["attempts"] = tuple(CarriedAttempt(**_asdict(each)) for each in attempts)
    fields["progress"] = None if job.progress is None else CarriedProgress(**_asdict(job.progress))
    fields["steps"] = steps if tracebacks else _without_tracebacks(steps)
    fields["signals"] = carried_signals(job.signals)
    return CarriedJob(**fields)


_T = TypeVar("_T", Attempt, CarriedStep)


def _without_tracebacks(several: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(
        each if each.error is None else _replace(each, error=_replace(each.error, traceback=""))
        for each in several
    )


def difference(job: Job, event: Carried, *, is_lean: bool = False) -> str | None:
    """Return the first field in which `event` differs from the events before it; None: it agrees with them.

    With `is_lean` only the values that `lifecycle.lean` leaves are compared. An event of an earlier release is
    compared in the fields of that release.
    """
    goes_on = bool(event.steps_before or event.signals_before)
    if event.job_state.last_sequence != job.last_sequence and not goes_on:
        return "last_sequence"
    said = (_lean(event) if is_lean else event).job_state
    own = [_replace(event, job_state=_part(job, event, tracebacks=whole)) for whole in (True, False)]
    known = [in_form(event.form, (_lean(each) if is_lean else each).job_state, said) for each in own]
    if said in known:
        told = (event.steps_before + len(said.steps), event.signals_before + len(said.signals))
        return None if event.more or job.is_incomplete or told == _sizes(job) else "steps"
    fields = CarriedJob.__struct_fields__
    return next(name for name in fields if getattr(said, name) != getattr(known[0], name))


def _part(job: Job, event: Carried, *, tracebacks: bool) -> CarriedJob:
    """Return the part of a carried job that belongs into an event, by its place among the job's `carried` events.

    A long run has many such events, so each is compared only with its own steps and signals.
    """
    state, at_step, at_signal = event.job_state, event.steps_before, event.signals_before
    steps = dict(islice(job.steps.items(), at_step, at_step + len(state.steps)))
    signals = job.signals[at_signal : at_signal + len(state.signals)]
    part = carried_job(_replace(job, steps=steps, signals=signals), tracebacks=tracebacks)
    if job.is_incomplete and (at_step, at_signal) == _sizes(
        job
    ):  # no other event has these steps and signals
        part = _replace(part, steps=state.steps, signals=state.signals)
    return _replace(part, last_sequence=state.last_sequence) if at_step or at_signal else part


def _sizes(job: Job) -> tuple[int, int]:
    return len(job.steps), len(job.signals)


def _lean(event: Carried) -> Carried:
    found = lean(event)
    assert isinstance(found, Carried), "an event keeps its type"
    return found
