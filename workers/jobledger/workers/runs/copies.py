"""Copying the recorded steps of the run that a rerun names, before the rerun's own code runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import CompleteStep, CopyEnds, FailStep, StartStep
from jobledger.ledger.model.errors import RefusedError, UnreachableError
from jobledger.ledger.model.events import CopiedEnd, RerunOf, StepCompleted, StepFailed, StepStarted
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import bits_of
from jobledger.ledger.model.runs.reruns import copied_from, has_copied
from jobledger.ledger.model.runs.steps import Step, failed_item
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.reruns.groups import CopiedGroup
from jobledger.ledger.runs.errors import RerunSourceError
from jobledger.workers.runs.journal import AttemptJournal

#: Fields in which a copy equals its source; the check of the ledger compares them.
_SAME: Final = ("step", "kind", "target", "input_sha256", "tries")
#: Fields in which the beginning of a copied group equals that of its source.
_BEGINS: Final = ("step", "kind", "target", "input_sha256", "order", "items", "items_ref")
#: Kinds of steps that have children; a copy of such a step does not name them.
_ASKS_FOR_JOBS: Final = ("call", "map", "graph")


async def copy_steps(journal: AttemptJournal) -> None:
    """Record the copied ends of steps and children that a rerun does not have yet; do nothing for any other run.

    After a crash in between only some are recorded; the next attempt records the rest.

    Raises: RerunSourceError if the source is not as the rerun names it, or in an archive by now; StaleClaimError,
    LedgerFullError, UnreachableError.
    """
    source = journal.job.order.rerun_of
    if source is None or has_copied(source, journal.job.steps):
        return
    held = await _events(journal, source)
    run = fold(held.values()).job
    assert run is not None, "events of a job add up to it"
    copied = {step.key for step in copied_from(run.steps, source.from_step)}
    groups: Mapping[str, CopiedGroup] = {}
    if not source.from_step:
        groups = await _groups(journal, source, run, held)
    for key, step in run.steps.items():
        if key in groups:
            await _begin_again(journal, groups[key])
        elif key in copied and key not in journal.job.steps:
            stored = held.get(step.sequence)
            if stored is None:
                raise RerunSourceError(source.job, step.sequence)
            await journal.append(_copy(step, stored, journal.epoch))


async def _groups(
    journal: AttemptJournal, source: RerunOf, run: Job, held: Mapping[int, StoredEvent]
) -> Mapping[str, CopiedGroup]:
    """Return the groups of the source that begin again with children that completed. Raises: as `copy_steps`."""
    ref = JobRef(queue=source.queue, job_id=source.job)
    try:
        found = await journal.groups_of(ref, run, list(held.values()), ends_to=source.ends_to)
    except RefusedError as error:
        raise RerunSourceError(source.job, source.ends_to) from error
    missing = source.children - sum(each.children for each in found)
    if missing > 0:
        if (await journal.first_sequence()) > source.ends_to:
            raise RerunSourceError(source.job, source.ends_to)
        raise UnreachableError(f"{missing:,} ends of children of run {source.job} cannot be read yet")
    return {each.step.key: each for each in found}


async def _begin_again(journal: AttemptJournal, group: CopiedGroup) -> None:
    """Ask for the same children as the source, and count those that had completed there."""
    key, stored = group.step.key, group.begun
    if key not in journal.job.steps:
        event = stored.event
        assert isinstance(event, StepStarted), "it began the group"
        fields = {name: getattr(event, name) for name in _BEGINS}
        copied = CopiedEnd(sequence=stored.stream_sequence, sha256=stored.hash)
        await journal.append(StartStep(epoch=journal.epoch, copied=copied, **fields))
    for items, ends in group.facts():
        if bits_of(items) & ~journal.job.steps[key].ended:
            await journal.append(CopyEnds(epoch=journal.epoch, step=key, completed=items, copied=ends))


async def _events(journal: AttemptJournal, source: RerunOf) -> Mapping[int, StoredEvent]:
    """Return the events of the source up to the named one, by their stream sequence. Raises: as `copy_steps`."""
    ref = JobRef(queue=source.queue, job_id=source.job)
    events, first = await journal.read(ref)
    held = {stored.stream_sequence: stored for stored in events if stored.stream_sequence <= source.sequence}
    newest = held.get(source.sequence)
    if newest is None and source.sequence >= first:
        raise UnreachableError(f"run {source.job} cannot be read up to stream sequence {source.sequence} yet")
    if newest is None or newest.hash != source.hash:
        raise RerunSourceError(source.job, source.sequence, differs=newest is not None)
    return held


def children_from(step: Step, run: JobRef) -> dict[str, Any]:
    """Return a copy's fields on the run that made a step's children; a copy passes on its own fields."""
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
    copied = CopiedEnd(
        sequence=stored.stream_sequence,
        sha256=stored.hash,
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
