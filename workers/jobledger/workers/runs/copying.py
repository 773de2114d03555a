"""Copying the recorded steps of the run that a rerun names, before the rerun's own code runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent, digest
from jobledger.ledger.model.commands import CompleteStep, FailStep
from jobledger.ledger.model.errors import UnreachableError
from jobledger.ledger.model.events import Copied, RerunOf, StepCompleted, StepFailed
from jobledger.ledger.model.runs.reruns import copied_from
from jobledger.ledger.model.runs.steps import Step, failed_item
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.runs.errors import RerunSourceError
from jobledger.workers.runs.journal import AttemptJournal

#: What a copy says as its source did; the check of the ledger compares it.
_SAME: Final = ("step", "kind", "target", "input_sha256", "tries")
#: Steps that have children; a copy of one no longer says which.
_ASKS_FOR_JOBS: Final = ("call", "map", "graph")


async def copy_steps(journal: AttemptJournal) -> None:
    """Record the ends of the steps that a rerun copies, those that are not recorded yet; nothing for any other run.

    A crash in between leaves some of them; the next attempt goes on.

    Raises: RerunSourceError where the source is not as the rerun names it, or in an archive by now; StaleClaimError,
    LedgerFullError, UnreachableError.
    """
    source = journal.job.order.rerun_of
    if source is None or len(journal.job.steps) >= source.steps:  # they are its first ones
        return
    held = await _events(journal, source)
    run = fold(held.values()).job
    assert run is not None, "events of a job add up to it"
    for step in copied_from(run.steps, source.from_step):
        if step.key in journal.job.steps:
            continue
        stored = held.get(step.sequence)
        if stored is None:
            raise RerunSourceError(source.job, step.sequence)
        await journal.append(_copy(step, stored, journal.epoch))


async def _events(journal: AttemptJournal, source: RerunOf) -> Mapping[int, StoredEvent]:
    """Return the events of the source that count, by their stream sequence. Raises: as `copy_steps`."""
    ref = JobRef(queue=source.queue, job_id=source.job)
    events, first = await journal.read(ref)
    held = {stored.stream_sequence: stored for stored in events if stored.stream_sequence <= source.sequence}
    newest = held.get(source.sequence)
    if newest is None and source.sequence >= first:
        raise UnreachableError(f"run {source.job} cannot be read up to stream sequence {source.sequence} yet")
    if newest is None or digest(newest.data) != source.hash:
        raise RerunSourceError(source.job, source.sequence, differs=newest is not None)
    return held


def children_from(step: Step, run: JobRef) -> dict[str, Any]:
    """Return what a copy says of the run that made the children of a step: another one's where the step is a copy itself."""
    if step.kind not in _ASKS_FOR_JOBS:
        return {}
    if step.copied is not None and step.copied.run:
        return {name: getattr(step.copied, name) for name in ("run", "number", "tells_queue")}
    order = step.order
    tells = order is not None and order.tells_queue and order.node(failed_item(step)).queue != run.queue
    return {"run": run.job_id, "number": step.number, "tells_queue": tells}


def _copy(step: Step, stored: StoredEvent, epoch: int) -> CompleteStep | FailStep:
    event = stored.event
    assert isinstance(event, StepCompleted | StepFailed), "the fold named it as the end of a step"
    fields = {name: getattr(event, name) for name in _SAME}
    copied = Copied(
        sequence=stored.stream_sequence,
        sha256=digest(stored.data),
        item=failed_item(step),
        **children_from(step, JobRef(queue=event.queue, job_id=event.job)),
    )
    if isinstance(event, StepFailed):
        return FailStep(epoch=epoch, error=event.error, copied=copied, **fields)
    return CompleteStep(
        epoch=epoch,
        result=event.result,
        result_ref=event.result_ref,
        duration_ms=event.duration_ms,
        copied=copied,
        **fields,
    )
