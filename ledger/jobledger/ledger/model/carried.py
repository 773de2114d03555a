"""A job as `carried` holds it: made from a folded `Job`, and compared with one. Pure. Source: ADR 011."""

from __future__ import annotations

import msgspec

from jobledger.ledger.model.events import (
    Carried,
    CarriedAttempt,
    CarriedJob,
    CarriedProgress,
)
from jobledger.ledger.model.job import Attempt, Job
from jobledger.ledger.model.lifecycle import lean
from jobledger.ledger.model.runs.carrying import carried_signals, carried_steps

_replace = msgspec.structs.replace
_asdict = msgspec.structs.asdict


def carried_job(job: Job, *, tracebacks: bool = True) -> CarriedJob:
    """Return the job in the form that is stored; without `tracebacks` those of its attempts are left out.

    A job of many failed attempts may be too large for one event with them. Its newest error keeps its own.
    """
    fields = {name: getattr(job, name) for name in CarriedJob.__struct_fields__}
    attempts = job.attempts if tracebacks else _without_tracebacks(job.attempts)
    fields["state"] = job.state.value
    fields["attempts"] = tuple(CarriedAttempt(**_asdict(each)) for each in attempts)
    fields["progress"] = None if job.progress is None else CarriedProgress(**_asdict(job.progress))
    fields["steps"] = carried_steps(job.steps)
    fields["signals"] = carried_signals(job.signals)
    return CarriedJob(**fields)


def _without_tracebacks(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    return tuple(
        each if each.error is None else _replace(each, error=_replace(each.error, traceback=""))
        for each in attempts
    )


def difference(job: Job, event: Carried, *, is_lean: bool = False) -> str | None:
    """Return the first field in which `event` says something else than the events before it, None when it does not.

    With `is_lean` the job lacks what `lifecycle.lean` takes away: the rest is compared.
    """
    if event.job_state.last_sequence != job.last_sequence:
        return "last_sequence"
    said = (_lean(event) if is_lean else event).job_state
    own = [_replace(event, job_state=carried_job(job, tracebacks=whole)) for whole in (True, False)]
    known = [(_lean(each) if is_lean else each).job_state for each in own]
    if said in known:
        return None
    fields = CarriedJob.__struct_fields__
    return next(name for name in fields if getattr(said, name) != getattr(known[0], name))


def _lean(event: Carried) -> Carried:
    found = lean(event)
    assert isinstance(found, Carried), "an event keeps its type"
    return found
