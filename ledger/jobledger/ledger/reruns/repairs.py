"""The runs that may begin again with all that had completed: one rule for refusing it and for proposing it. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from jobledger.ledger.model.errors import InvalidInputError, LedgerError, RefusedError
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.orders import RUN_BATCH
from jobledger.ledger.model.runs.reruns import copied_from, has_end
from jobledger.ledger.model.runs.steps import Step


def may_mend(job: Job) -> bool:
    """Return whether a rerun of what failed of a job is worth proposing: it would not be refused."""
    try:
        check_failed(job, job)
        check_untaken(job, "", copied_from(job.steps, ""))
    except LedgerError:
        return False
    return not job.carried_sequence  # what it did is in an archive


def beginnings(job: Job, *, held: Container[int]) -> list[str]:
    """Return the keys of the steps that a rerun can begin with, in the order of their first events.

    `held`: the sequences of its events that the ledger still has. A step behind an end that cannot be copied, since it is
    in an archive or the run has begun to take back what it did, would be refused.
    """
    undone = any(step.kind == "undo" for step in job.steps.values())
    bars = (
        step.number for step in job.steps.values() if has_end(step) and (undone or step.sequence not in held)
    )
    last = min(bars, default=math.inf)
    return [
        key
        for key, step in job.steps.items()
        if step.number <= last and step.kind != "undo" and "/" not in key
    ]


def check_failed(now: Job, source: Job) -> None:
    """Refuse a run of which nothing has failed, or that may still go on. `source`: as of the moment that is asked for.

    Raises: InvalidInputError, RefusedError.
    """
    check_recorded(source)
    if now.task == RUN_BATCH:
        raise RefusedError(f"run {now.id} is a batch, whose jobs its client made: requeue those that failed")
    if now.state is JobState.COMPLETED:
        raise RefusedError(f"run {now.id} completed: nothing is left to mend; name a step to begin it with")
    if not now.is_final:
        raise RefusedError(
            f"run {now.id} is {now.state.value.replace('_', ' ')} and may still go on: `jobledger jobs show {now.id}` "
            "shows where it is; cancel it before what failed is begun again"
        )
    doubtful = next(
        (each for each in source.steps.values() if each.kind == "once" and each.state == "started"), None
    )
    if doubtful is not None:
        raise RefusedError(
            f"step {doubtful.key!r} of run {now.id} may run only once, and nobody knows whether it was done: find that "
            "out, and name it to begin with it"
        )


def check_recorded(source: Job) -> None:
    """Refuse a job that is no run. Raises: InvalidInputError."""
    if not source.steps:
        raise InvalidInputError(
            f"job {source.id} has recorded no steps, so that there is nothing to copy: enqueue a new one"
        )


def check_untaken(source: Job, from_step: str, copied: Sequence[Step]) -> None:
    """Refuse to copy what the source took back. Raises: RefusedError."""
    undone = next((step.key for step in source.steps.values() if step.kind == "undo"), None)
    if copied and undone is not None:
        raise RefusedError(
            f"run {source.id} has begun to take back what it did ({undone}): a rerun "
            f"{f'from {from_step!r}' if from_step else 'of what failed'} would rely on that; begin with its first step, "
            f"{copied[0].key!r}, or take the run as it was before that, with `at`"
        )
