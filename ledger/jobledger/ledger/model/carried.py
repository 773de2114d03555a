"""A job as `carried` holds it: made from a folded `Job`, and compared with one. Pure. Source: ADR 011."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from jobledger.ledger.model.events import (
    NO_VALUE,
    Carried,
    CarriedAttempt,
    CarriedJob,
    CarriedProgress,
    ErrorInfo,
)
from jobledger.ledger.model.job import Attempt, Job, evolve

_replace = msgspec.structs.replace
_asdict = msgspec.structs.asdict

#: What a check of a whole ledger does not keep of each job, see `audit.rules.lean`.
_HEAVY: Final[dict[str, Any]] = {
    "input": NO_VALUE,
    "input_ref": None,
    "trace": "",
    "correlation": "",
    "notify": "",
    "error": None,
    "checkpoint": NO_VALUE,
    "checkpoint_ref": None,
}


def carried_job(job: Job, *, tracebacks: bool = True) -> CarriedJob:
    """Return the job in the form that is stored; without `tracebacks` those of its attempts are left out.

    A job of many failed attempts may be too large for one event with them. Its newest error keeps its own.
    """
    fields = {name: getattr(job, name) for name in CarriedJob.__struct_fields__}
    attempts = job.attempts if tracebacks else _without_tracebacks(job.attempts)
    fields["state"] = job.state.value
    fields["attempts"] = tuple(CarriedAttempt(**_asdict(each)) for each in attempts)
    fields["progress"] = None if job.progress is None else CarriedProgress(**_asdict(job.progress))
    return CarriedJob(**fields)


def _without_tracebacks(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    return tuple(
        each if each.error is None else _replace(each, error=_replace(each.error, traceback=""))
        for each in attempts
    )


def difference(job: Job, event: Carried, *, lean: bool = False) -> str | None:
    """Return the first field in which `event` says something else than the events before it, None when it does not.

    With `lean` the job lacks inputs, errors and what else no rule of an audit looks at: the rest is compared.
    """
    if event.job_state.last_sequence != job.last_sequence:
        return "last_sequence"
    said = _replace(evolve(None, event, job.last_sequence), carried_sequence=job.carried_sequence)
    if lean:
        job, said = _lean(job), _lean(said)
    if said == job or said == _replace(job, attempts=_without_tracebacks(job.attempts)):
        return None
    return next(name for name in Job.__struct_fields__ if getattr(said, name) != getattr(job, name))


_NO_ERROR: Final = ErrorInfo(kind="exception", type="", message="")


def _lean(job: Job) -> Job:
    attempts = tuple(each if each.error is None else _replace(each, error=_NO_ERROR) for each in job.attempts)
    return _replace(job, attempts=attempts, **_HEAVY)
