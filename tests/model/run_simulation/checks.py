"""What must hold of a whole ledger of a run and its children, and of its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.model.run_simulation.stage import RUN, Stage

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import (
    Carried,
    Held,
    JobEvent,
    Joined,
    JoinFact,
    Queued,
    StepCompleted,
    StepFailed,
)
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.runs.orders import bits_of, child_id, items_of
from jobledger.ledger.model.runs.steps import Step, is_over
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.transitions import violation


def check(stage: Stage) -> list[str]:
    """Return a sentence for everything that is wrong."""
    return [*Walk(stage.stored).findings(), *_at_the_end(stage)]


class Walk:
    """The ledger once more, event by event."""

    def __init__(self, stored: list[StoredEvent]) -> None:
        self._stored = stored
        self.jobs: dict[str, Job] = {}
        self._counted: Counter[tuple[str, int]] = Counter()
        self._ends: Counter[str] = Counter()
        self._waits_from = 0  # stream sequence of the `paused` that nothing has resumed yet

    def findings(self) -> Iterator[str]:
        for stored in self._stored:
            event, sequence = stored.event, stored.stream_sequence
            before = self.jobs.get(event.job)
            broken = violation(before, event)
            if broken:
                yield f"{sequence}: {event.job}: {broken}"
            after = self.jobs[event.job] = evolve(before, event, sequence)
            if event.job == RUN.job_id:
                yield from self._of_run(before, event, after, sequence)
            elif before is None:
                yield from self._first(after, sequence)

    def _of_run(self, before: Job | None, event: JobEvent, after: Job, sequence: int) -> Iterator[str]:
        fact = event.joined if isinstance(event, Queued | Held) else event
        if isinstance(fact, Joined | JoinFact):
            yield from self._join(before, fact, sequence)
        if isinstance(event, StepCompleted) or (isinstance(event, StepFailed) and event.retry_at is None):
            self._ends[event.step] += 1
            if self._ends[event.step] > 1:
                yield f"{sequence}: step {event.step} ends a second time"
        if isinstance(event, Carried) and before is not None and after.steps != before.steps:
            yield f"{sequence}: carried has other steps than the run"
        if isinstance(event, Queued) and event.cause == "resumed" and before is not None:
            steps = [after.steps[key] for key in before.awaited if key in after.steps]
            told = any(is_over(step, after.signals, event.at) for step in steps)
            if before.state is not JobState.PAUSED and not told:
                yield f"{sequence}: the run was woken, and nothing that it waits for is over"
        if after.state is not JobState.RUNNING or not isinstance(event, StepCompleted):
            return
        step = after.steps[event.step]
        if step.order is not None and step.open:
            yield f"{sequence}: step {event.step} completes with open children"

    def _join(self, before: Job | None, fact: Joined | JoinFact, sequence: int) -> Iterator[str]:
        assert before is not None
        step = before.steps[fact.step]
        for ended in ("completed", "failed"):
            for item in items_of(bits_of(getattr(fact, ended))):
                self._counted[fact.step, item] += 1
                if self._counted[fact.step, item] > 1:
                    yield f"{sequence}: item {item} of {fact.step} is counted again"
                child = self.jobs.get(child_id(RUN.job_id, step.number, item))
                if child is None:
                    yield f"{sequence}: item {item} of {fact.step} is counted and has no job"
                elif not _has_ended(step, child, completed=ended == "completed"):
                    yield f"{sequence}: item {item} of {fact.step} is counted as {ended}, and is {child.state.value}"

    def _first(self, child: Job, sequence: int) -> Iterator[str]:
        member = child.member
        if member is None:
            yield f"{sequence}: {child.id} does not say whose child it is"
            return
        step = self.jobs[RUN.job_id].steps[member.step]
        assert step.order is not None
        if child.id != child_id(RUN.job_id, step.number, member.item):
            yield f"{sequence}: {child.id} has another name than item {member.item} of {member.step}"
        if not step.opened >> member.item & 1:
            yield f"{sequence}: {child.id} was made before it was opened"
        limit = step.order.limit
        if limit and self._open_of(step) > limit:
            yield f"{sequence}: more than {limit} children of {member.step} are open"
        after = step.order.after
        for need in after[member.item] if after else ():
            other = self.jobs.get(child_id(RUN.job_id, step.number, need))
            if not step.ended >> need & 1 and other is not None and not other.is_final:
                yield f"{sequence}: item {member.item} of {member.step} begins before item {need} ended"

    def _open_of(self, step: Step) -> int:
        """Count by the jobs themselves, not by what the run has counted."""
        return sum(
            not job.is_final and not step.ended >> job.member.item & 1
            for job in self.jobs.values()
            if job.member is not None and job.member.step == step.key
        )


def _has_ended(step: Step, child: Job, *, completed: bool) -> bool:
    """Return whether a child may be counted; one that was a dead letter may have been, where that is an end."""
    assert step.order is not None
    if completed:
        return child.state is JobState.COMPLETED
    for_good = child.state in (JobState.CANCELLED, JobState.DISCARDED)
    return for_good or step.order.on_dead_letter == "fail"


def _at_the_end(stage: Stage) -> Iterator[str]:
    run = stage.run
    if not run.is_final:
        yield f"the run waits for ever: {run.state.value} for {run.awaited} with signals {run.signals}"
    for key, step in run.steps.items():
        if step.order is None:
            continue
        for item in items_of(step.opened):
            child = stage.jobs.get(JobRef(queue="children", job_id=child_id(run.id, step.number, item)))
            if child is None:
                if not run.is_final or run.state is JobState.COMPLETED:
                    yield f"item {item} of {key} was opened and has no job"
            elif not child.is_final and (
                run.is_final or child.state not in {JobState.WAITING, JobState.PAUSED}
            ):
                yield f"{child.id} is {child.state.value}, and its run is {run.state.value}"
            elif child.is_final and not step.ended >> item & 1 and not run.is_final:
                yield f"the end of {child.id} was never counted"


def unreached(stage: Stage) -> Iterator[str]:
    """Yield the children that a pause of their run did not reach, after all was dealt with."""
    for ref, child in stage.children.items():
        assert child.member is not None
        order = stage.run.steps[child.member.step].order
        follows = order is not None and order.on_parent_end == "cancel" and ref not in stage.requeued
        if follows and not (child.is_final or child.state is JobState.PAUSED or child.pause_requested):
            yield f"{ref.job_id} is {child.state.value} while its run is paused"
