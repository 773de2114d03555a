"""What a run that holds no worker waits for: each wait with the event that began it, and a command that ends it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from jobledger.audit.trail_words import first_few
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.orders import BATCH_STEP, RUN_BATCH
from jobledger.ledger.model.runs.steps import Step, admissible, next_signal
from jobledger.ledger.model.runs.wait_words import Awaited, awaited_of

#: Tells a moment: `2025-01-31 08:00:00.000Z (in 3 min)`.
Moment = Callable[[datetime], str]
_ERROR_MAX: Final = 200


class ChildNow(msgspec.Struct, frozen=True, kw_only=True):
    """A child of a run that did not end, as it is at the moment of the answer."""

    queue: str
    job: str
    item: int
    status: str
    worker: str = ""  #: who runs it
    due_at: datetime | None = None  #: when it moves on by itself
    limits: tuple[str, ...] = ()

    @property
    def is_dead(self) -> bool:
        """Whether it waits for a person, and its run with it."""
        return self.status == "dead_lettered"

    def words(self, moment: Moment) -> str:
        """Return it for a person: `sync-9-1-12 (running on w3)`."""
        state = "dead letter" if self.is_dead else self.status.replace("_", " ")
        if self.worker:
            state = f"{state} on {self.worker}"
        elif self.status == "held":
            state = f"held by {', '.join(self.limits)}"
        elif self.due_at is not None:
            state = f"{state}, due at {moment(self.due_at)}"
        return f"{self.job} ({state})"


class RunWait(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a run waits for. Of several, the end of one lets the run go on."""

    awaits: Awaited
    step: str  #: the step's key
    target: str  #: the signal, task or function that it is about
    sequence: int  #: stream sequence of the event that began the wait
    until: datetime | None  #: the moment at which it ends even if nothing has come
    children_open: int  #: for a group: how many of its children did not end
    children: tuple[ChildNow, ...]  #: the first open ones
    sentence: str
    hint: str  #: a command that ends it, or shows what does; over HTTP the request that does the same


def run_waits(job: Job, children: Mapping[str, tuple[ChildNow, ...]], moment: Moment) -> tuple[RunWait, ...]:
    """Return what a run waits for, in the order of `job.awaited`.

    `children`: the first open children of each step, by step key.
    """
    steps = (job.steps[key] for key in job.awaited if key in job.steps)
    return tuple(_wait(job, step, children.get(step.key, ()), moment) for step in steps)


def explain_paused(job: Job, waits: tuple[RunWait, ...], moment: Moment) -> tuple[str, str]:
    """Return what a waiting or paused job waits for, and a command that ends the wait."""
    said = ", or for ".join(each.sentence for each in waits)
    if job.state is JobState.PAUSED:
        why = f" ({job.pause_reason})" if job.pause_reason else ""
        then = f"; after that it waits for {said}" if said else ""
        if not said and job.due_at is not None:
            then = f"; after that it waits until {moment(job.due_at)}"
        return (
            f"a person paused it{why}, and it goes on once it is resumed{then}",
            f"jobledger jobs resume {job.id}",
        )
    if not waits:
        until = "" if job.due_at is None else f", until {moment(job.due_at)}"
        return f"its task paused it{until}", f"jobledger jobs retry {job.id}"
    order: tuple[Awaited, ...] = ("signal", "children", "retry", "sleep", "step", "operator")
    first = min(waits, key=lambda each: order.index(each.awaits))
    then = ", and goes on by itself" if first.awaits in ("sleep", "retry") else ""
    return f"it waits for {said}. It holds no worker meanwhile{then}", first.hint


def _wait(job: Job, step: Step, children: tuple[ChildNow, ...], moment: Moment) -> RunWait:
    awaits = awaited_of(step)
    until = step.retry_at if awaits == "retry" else step.until
    match awaits:
        case "signal" if job.task == RUN_BATCH and BATCH_STEP in job.steps:
            sentence, hint = _open_batch(job, job.steps[BATCH_STEP])
        case "signal":
            sentence, hint = _signal(job, step, moment)
        case "children":
            sentence, hint = _children(job, step, children, moment)
        case "retry":
            sentence, hint = _retry(job, step, moment)
        case _:
            end = "" if until is None else f" at {moment(until)}"
            sentence = f"the end of {awaits} {step.key!r} ({_at(step)}){end}"
            hint = _end(job)
    return RunWait(
        awaits=awaits,
        step=step.key,
        target=step.target,
        sequence=step.sequence,
        until=until,
        children_open=step.open.bit_count(),
        children=children,
        sentence=sentence,
        hint=hint,
    )


def _end(job: Job) -> str:
    """Return the command that cancels a waiting run, or shows it if its cancellation was requested already."""
    return (
        f"jobledger jobs show {job.id} --tree" if job.cancel_requested else f"jobledger jobs cancel {job.id}"
    )


def _at(step: Step) -> str:
    return f"sequence {step.sequence:,}"


def _signal(job: Job, step: Step, moment: Moment) -> tuple[str, str]:
    until = "" if step.until is None else f" until {moment(step.until)}"
    sent = "nobody has sent it"
    if (found := next_signal(job.signals, step.target)) is not None:
        sent = f"it was sent at sequence {found.sequence:,}"
    elif bad := [each for each in job.signals if each.name == step.target and each.refused]:
        sent = f"what was sent at sequence {bad[-1].sequence:,} was refused: {bad[-1].refused[:_ERROR_MAX]}"
    hint = f"jobledger jobs signal {job.id} {step.target} --value '...'"
    return f"signal {step.target!r} (step {step.key!r}, {_at(step)}){until}: {sent}", hint


def _retry(job: Job, step: Step, moment: Moment) -> tuple[str, str]:
    error = step.error
    said = "" if error is None else f": {error.type}: {error.message[:_ERROR_MAX]}"
    due = "" if step.retry_at is None else f" at {moment(step.retry_at)}"
    failed = f"try {step.tries} failed{said}" if step.tries else f"it failed{said}"
    return (
        f"the next try of step {step.key!r}{due} ({_at(step)}): {failed}",
        _end(job),
    )


def _open_batch(job: Job, step: Step) -> tuple[str, str]:
    return (
        f"the program that adds its jobs, of task {step.target!r} (step {step.key!r}, {_at(step)}), to say how many there "
        f"are: {step.ended.bit_count():,} have ended so far. If that program has died, make the same call of enqueue_many "
        "again: it adds what is missing and closes the batch"
    ), f"jobledger jobs show {job.id} --tree"


def _children(job: Job, step: Step, children: tuple[ChildNow, ...], moment: Moment) -> tuple[str, str]:
    order, is_open = step.order, step.open.bit_count()
    assert order is not None, "it asks for children"
    if step.count is None:
        return _open_batch(job, step)
    place = f"(step {step.key!r}, {_at(step)})"
    ended = step.ended.bit_count()
    failed = step.failed.bit_count()
    bad = f", {failed:,} of these not completed" if failed else ""
    all_of_them = f"{step.count:,} {'child' if step.count == 1 else 'children'}"
    of = f"{is_open:,} of {all_of_them} of {order.task!r} {place}, {ended:,} ended{bad}"
    waiting = step.count - ended - is_open
    if waiting and admissible(step):
        of = f"{of}; {waiting:,} more are about to be made"
    elif waiting and is_open:
        of = f"{of}; {waiting:,} more after them"
    if not children:
        return of, f"jobledger jobs show {job.id} --tree"
    named = first_few([each.words(moment) for each in children], len(children), is_open)
    first = children[0]
    if first.is_dead:
        said = "a dead letter waits for a person: requeued, it runs again; discarded, the run is told that it failed"
        return f"{of}: {named}; {said}", f"jobledger dlq requeue {first.job} --queue {first.queue}"
    return f"{of}: {named}", f"jobledger jobs show {first.job} --why --queue {first.queue}"
