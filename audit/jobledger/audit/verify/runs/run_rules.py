"""What an event may not do to the steps, waits and messages of its run: `step`, `join`, `wake`, `signal`, `orphan`.

Each event is decided again, by the same function on the run's state before it: the ledger must hold what
was decided. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from jobledger.ledger.model.aggregate import Broken
from jobledger.ledger.model.commands import (
    CompleteStep,
    CopyEnds,
    FailStep,
    GiveSignal,
    Join,
    Pause,
    RefuseSignal,
    ResumeJob,
    Stamp,
    StartStep,
    StepCommand,
)
from jobledger.ledger.model.decision_parts import runs
from jobledger.ledger.model.decision_parts.pauses import resume
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.events import (
    Cancelled,
    Completed,
    DeadLettered,
    Discarded,
    Event,
    Held,
    JobEvent,
    Joined,
    JoinFact,
    Paused,
    Queued,
    SignalFact,
    Signalled,
    SignalRefused,
    StepCompleted,
    StepFailed,
    StepStarted,
    event_type,
)
from jobledger.ledger.model.job import OPERATOR, Job, JobState
from jobledger.ledger.model.runs.errors import SignalKnownError
from jobledger.ledger.model.runs.orders import bits_of, ranges_of
from jobledger.ledger.model.runs.steps import Step, is_over, open_children

_SHOWN_MAX: Final = 5
_Ready = Queued | Held
_StepEvent = StepStarted | StepCompleted | StepFailed
_End = Completed | Cancelled | DeadLettered | Discarded


def broken_run(job: Job, event: JobEvent) -> Broken | None:
    """Return the first rule of runs that `event` breaks by itself and how, None when it breaks none; `job`: before it."""
    check = _CHECKS.get(type(event))
    return None if check is None else check(job, event)


def fact_in(event: JobEvent) -> Joined | JoinFact | None:
    """Return the facts of an event about ends of children, None without any."""
    if isinstance(event, _Ready):
        return event.joined
    return event if isinstance(event, Joined) else None


def named(items: int) -> str:
    """Return items, the bits of a number, as a person reads them: `item 3`, `items 0 to 4, 7`."""
    shown = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in ranges_of(items)]
    more = f" and {len(shown) - _SHOWN_MAX:,} more ranges" if len(shown) > _SHOWN_MAX else ""
    noun = "item" if items.bit_count() == 1 else "items"
    return f"{noun} {', '.join(shown[:_SHOWN_MAX])}{more}" if items else "no item"


def _stamp(event: Event) -> Stamp:
    return Stamp(at=event.at, by=event.by)


def _refused(event: Event, error: LedgerError) -> str:
    return f"`{event_type(cast('JobEvent', event))}`: {error}"


_COMMAND_OF: Final[Mapping[type[Event], type[StepCommand]]] = {
    StepStarted: StartStep,
    StepCompleted: CompleteStep,
    StepFailed: FailStep,
}
_FIELDS_OF: Final = {
    cls: tuple(name for name in command.__struct_fields__ if name != "epoch")
    for cls, command in _COMMAND_OF.items()
}


def _step(job: Job, event: _StepEvent) -> Broken | None:
    if job.state is not JobState.RUNNING:
        return None  # the transition table reports it
    if event.attempt != job.attempts_count:
        sentence = (
            f"`{event_type(event)}` of attempt {event.attempt}, the claim is of attempt {job.attempts_count}"
        )
        return "step", sentence
    cls = type(event)
    fields: dict[str, Any] = {name: getattr(event, name) for name in _FIELDS_OF[cls]}
    takes_signal = isinstance(event, StepCompleted) and event.signal
    try:
        command = _COMMAND_OF[cls](epoch=job.claim_epoch, **fields)
        if takes_signal and isinstance(command, CompleteStep):
            runs.check_signal(job, command)
    except LedgerError as error:
        return "signal" if takes_signal else "step", _refused(event, error)
    try:
        runs.step(job, command, _stamp(event))
    except LedgerError as error:
        return "step", _refused(event, error)
    return None


def _counted(job: Job, event: Joined | _Ready, fact: Joined | JoinFact) -> Broken | None:
    """Compare an event with what is decided on the ends of children that it counts."""
    step = job.steps.get(fact.step)
    if step is None or step.order is None:
        return "join", f"it counts children of step {fact.step!r}, which asked for none"
    completed, failed = bits_of(fact.completed), bits_of(fact.failed)
    wrong = _wrong_items(step, completed, failed)
    if wrong:
        return "join", f"it counts {wrong}"
    command = Join(step=fact.step, completed=fact.completed, failed=fact.failed, count=fact.count)
    try:
        decided = runs.join(job, command, _stamp(event))[0]
    except LedgerError as error:
        return "join", _refused(event, error)
    said = fact_in(decided)
    beyond = (completed | failed) & ~(0 if said is None else bits_of(said.completed) | bits_of(said.failed))
    if beyond:
        return "join", f"it counts {named(beyond)} of step {step.key!r}, which has {step.count}"
    opened, may = bits_of(fact.opened), 0 if said is None else bits_of(said.opened)
    if opened != may:
        return "join", f"it opens {named(opened)} of step {step.key!r}, and by what is recorded {named(may)}"
    if fact.count is not None and (said is None or said.count != fact.count):
        return "join", f"it says a second time how many children step {step.key!r} has"
    return _woken(job, event, decided, f"step {step.key!r}")


def _joined(job: Job, event: Joined) -> Broken | None:
    """Compare a `joined` with what is decided on the ends that it counts: its own children's, or copied ones."""
    if event.copied is None:
        return _counted(job, event, event)
    if job.state is not JobState.RUNNING:
        return "join", f"it copies ends of children while it is {job.state.value}"
    command = CopyEnds(epoch=job.claim_epoch, step=event.step, completed=event.completed, copied=event.copied)
    try:
        decided = runs.copy_ends(job, command, _stamp(event))[0]
    except LedgerError as error:
        return "join", _refused(event, error)
    said = fact_in(decided)
    if event.failed or event.count is not None or said is None or event.opened != said.opened:
        return "join", f"it copies ends of step {event.step!r}, and says more of its children than follows"
    return None


def _wrong_items(step: Step, completed: int, failed: int) -> str:
    """Return which of the items that are counted cannot be, and why; "" for none."""
    ended, key = completed | failed, f"of step {step.key!r}"
    if ended & step.ended:
        return f"{named(ended & step.ended)} {key} again"
    if completed & failed:
        return f"{named(completed & failed)} {key} as completed and as failed"
    is_open = step.order is not None and step.order.is_open
    never = 0 if is_open else ended & ~step.opened
    return f"{named(never)} {key}, which was never opened" if never else ""


def _woken(job: Job, event: JobEvent, decided: JobEvent, what: str) -> Broken | None:
    """Return what is wrong where `event` wakes the run and `decided` does not, or the other way round."""
    wakes = isinstance(event, _Ready)
    if wakes == isinstance(decided, _Ready):
        return None
    if wakes:
        waits = f"it waits for {', '.join(map(repr, job.awaited))}" if job.awaited else "it waits for no step"
        return "wake", f"`{event_type(event)}` as 'resumed' by {what}, and {waits}, which is not over"
    return "wake", f"`{event_type(event)}` ends its wait for {what}, and nobody wakes it"


def _told(job: Job, event: Signalled | _Ready, fact: Signalled | SignalFact) -> Broken | None:
    try:
        command = GiveSignal(name=fact.name, id=fact.id, value=fact.value, value_ref=fact.value_ref)
        decided = runs.give_signal(job, command, _stamp(event))[0]
    except SignalKnownError:
        return "signal", f"it tells the message {fact.id!r} of signal {fact.name!r} a second time"
    except LedgerError as error:
        return "signal", _refused(event, error)
    return _woken(job, event, decided, f"signal {fact.name!r}")


def _refused_signal(job: Job, event: SignalRefused) -> Broken | None:
    if job.state is not JobState.RUNNING:
        return None  # the transition table reports it
    try:
        command = RefuseSignal(
            epoch=job.claim_epoch, step=event.step, name=event.name, signal=event.signal, reason=event.reason
        )
        (decided,) = runs.refuse_signal(job, command, _stamp(event))
    except LedgerError as error:
        return "signal", _refused(event, error)
    if isinstance(decided, SignalRefused) and decided.id != event.id:
        return (
            "signal",
            f"it refuses the message {event.id!r}, and sequence {event.signal} has {decided.id!r}",
        )
    return None


def _ready(job: Job, event: _Ready) -> Broken | None:
    if event.cause != "resumed":
        if event.joined is None and event.signal is None:
            return None
        return "wake", f"`{event_type(event)}` as {event.cause!r} tells what wakes a run: only 'resumed' may"
    if job.state not in {JobState.WAITING, JobState.PAUSED}:
        if not job.steps:
            return None  # the transition table reports it
        found = f"`{event_type(event)}` as 'resumed' while it is {job.state.value}"
        return "wake", f"{found}: it is woken once for each `paused`"
    if event.joined is not None and event.signal is not None:
        return "wake", "it is woken by children and by a signal at once"
    if event.joined is not None:
        return _counted(job, event, event.joined)
    return _resumed(job, event) if event.signal is None else _told(job, event, event.signal)


def _resumed(job: Job, event: _Ready) -> Broken | None:
    """Return what is wrong with a wake that brings no end and no signal: something it waits for must be over already."""
    if event.reason or not (job.awaited or job.state is JobState.PAUSED):
        return None  # a person's wish, or a job that waits for no step
    if job.state is JobState.PAUSED:
        decided = resume(job, ResumeJob(), _stamp(event))[0]
        return _woken(job, event, decided, "a person")
    awaited = [job.steps[key] for key in job.awaited if key in job.steps]
    if any(is_over(step, job.signals, event.at) for step in awaited):
        return None
    return (
        "wake",
        f"`{event_type(event)}` as 'resumed', and none of {', '.join(map(repr, job.awaited))} is over",
    )


def _waits(job: Job, event: Paused) -> Broken | None:
    if not event.steps or event.event == OPERATOR:
        return None  # the code that resumes it looks for what came meanwhile
    if job.state is JobState.PAUSED:
        decided: JobEvent = resume(job, ResumeJob(), _stamp(event))[0]
    elif job.state is JobState.RUNNING:
        command = Pause(
            epoch=job.claim_epoch,
            until=event.until,
            event=event.event,
            steps=event.steps,
            undos=event.undos,
        )
        try:
            decided = runs.pause(job, command, _stamp(event))[0]
        except LedgerError as error:
            return "wake", _refused(event, error)
    else:
        return None  # the transition table reports it
    if isinstance(decided, Paused) and decided.event == event.event:
        return None
    return (
        "wake",
        f"`paused` for {', '.join(map(repr, event.steps))}, where `{event_type(decided)}` must follow",
    )


def _ends(job: Job, event: _End) -> Broken | None:
    """Check that the end of a run names as many open children as its steps have; these children are cancelled then."""
    if not (event.open_children or job.steps):
        return None
    are = open_children(job.steps)
    if event.open_children == are:
        return None
    return (
        "orphan",
        f"`{event_type(event)}` says that {event.open_children:,} of its children are open: {are:,} are",
    )


_CHECKS: Final[Mapping[type[Event], Callable[[Job, Any], Broken | None]]] = {
    **dict.fromkeys((StepStarted, StepCompleted, StepFailed), _step),
    **dict.fromkeys((Queued, Held), _ready),
    **dict.fromkeys((Completed, Cancelled, DeadLettered, Discarded), _ends),
    Joined: _joined,
    Signalled: lambda job, event: _told(job, event, event),
    SignalRefused: _refused_signal,
    Paused: _waits,
}
