"""Decisions on runs: on their steps, the ends of their children, messages to them, and their waits. Pure."""

from __future__ import annotations

from typing import Any, Final, assert_never

import msgspec

from jobledger.ledger.model.commands import (
    CompleteStep,
    CopyEnds,
    FailStep,
    GiveSignal,
    Join,
    Pause,
    RefuseSignal,
    Stamp,
    StartStep,
    StepCommand,
)
from jobledger.ledger.model.decision_parts.facts import Events, cancelled, envelope, of_family, ready
from jobledger.ledger.model.errors import IllegalTransitionError
from jobledger.ledger.model.events import (
    Joined,
    JoinFact,
    Paused,
    SignalFact,
    Signalled,
    SignalRefused,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from jobledger.ledger.model.job import CLOSED_STATES, OPERATOR, Job, JobState
from jobledger.ledger.model.runs.errors import SignalKnownError, StepOverError
from jobledger.ledger.model.runs.orders import bits_of, check_callbacks, ranges_of
from jobledger.ledger.model.runs.steps import (
    KeptSignal,
    Step,
    admissible,
    admit,
    fold_join,
    is_over,
    next_signal,
)

#: A run may be sent at most this many messages.
SIGNALS_MAX: Final = 10_000


def step(job: Job, command: StepCommand, stamp: Stamp) -> Events:
    """Record a step of the attempt whose claim was checked: one start at most, one end at most."""
    known = job.steps.get(command.step)
    if known is not None:
        _check_goes_on(job, known, command)
    fields: dict[str, Any] = {
        **envelope(job, stamp),
        "attempt": job.attempts_count,
        "step": command.step,
        "kind": command.kind,
        "target": command.target,
        "input_sha256": command.input_sha256,
    }
    match command:
        case StartStep():
            if command.order is not None and not job.order.key:
                of_nodes = (each for node in command.order.nodes for each in node.on_end)
                check_callbacks(command.order.task, (*command.order.on_end, *of_nodes))
            return (
                StepStarted(
                    **fields,
                    until=command.until,
                    order=command.order,
                    items=command.items,
                    items_ref=command.items_ref,
                    copied=command.copied,
                ),
            )
        case CompleteStep():
            if command.signal:
                check_signal(job, command)
            return (
                StepCompleted(
                    **fields,
                    result=command.result,
                    result_ref=command.result_ref,
                    tries=command.tries,
                    duration_ms=command.duration_ms,
                    signal=command.signal,
                    copied=command.copied,
                ),
            )
        case FailStep():
            _check_no_signal(job, command)
            return (
                StepFailed(
                    **fields,
                    error=command.error,
                    tries=command.tries,
                    retry_at=command.retry_at,
                    copied=command.copied,
                ),
            )
        case _:
            assert_never(command)


def _check_goes_on(job: Job, known: Step, command: StepCommand) -> None:
    at = f"{known.state} at sequence {known.sequence}"
    if known.has_ended:
        raise IllegalTransitionError(job.id, f"past step {known.key!r}, {at}", "record it again")
    if isinstance(command, StartStep):
        raise IllegalTransitionError(job.id, f"in step {known.key!r}, {at}", "start it again")
    if (known.kind, known.target, known.input_sha256) != (
        command.kind,
        command.target,
        command.input_sha256,
    ):
        asked = f"end it as {command.kind} {command.target} with input {command.input_sha256 or 'unknown'}"
        recorded = f"{known.kind} {known.target} with input {known.input_sha256 or 'unknown'}"
        raise IllegalTransitionError(job.id, f"in step {known.key!r}, recorded as {recorded}", asked)
    if known.state == "retrying" and command.tries <= known.tries:
        raise IllegalTransitionError(
            job.id, f"past try {known.tries} of step {known.key!r}", f"record try {command.tries}"
        )
    if known.order is not None and isinstance(command, CompleteStep) and not known.is_joined:
        children = f"{known.open.bit_count()} of its children are open"
        raise IllegalTransitionError(job.id, f"in step {known.key!r}, and {children}", "complete it")


def check_signal(job: Job, command: CompleteStep) -> None:
    """Refuse a missing signal: each is taken once, by a wait for its name, the oldest first.

    Raises: IllegalTransitionError.
    """
    if command.kind != "wait":
        raise IllegalTransitionError(job.id, f"without a signal for {command.step!r}, no wait", "take one")
    _oldest_signal(job, command.target, command.signal, "take it")


def refuse_signal(job: Job, command: RefuseSignal, stamp: Stamp) -> Events:
    """Record, once, that a wait refuses the signal that it would take; the attempt's claim was checked."""
    known = job.steps.get(command.step)
    if known is not None and (known.has_ended or (known.kind, known.target) != ("wait", command.name)):
        at = f"in step {command.step!r}, recorded as {known.kind} {known.target}, {known.state}"
        raise IllegalTransitionError(job.id, at, f"refuse signal {command.name!r} there")
    refused = _oldest_signal(job, command.name, command.signal, "refuse it")
    stamp.require_form(SignalRefused.since_form, f"refusing a signal of job {job.id}")
    event = SignalRefused(
        **envelope(job, stamp),
        attempt=job.attempts_count,
        step=command.step,
        name=command.name,
        signal=command.signal,
        id=refused.id,
        reason=command.reason,
    )
    return (event,)


def _oldest_signal(job: Job, name: str, sequence: int, asked: str) -> KeptSignal:
    """Return the next signal of its name. Raises: IllegalTransitionError if that is another one, or there is none."""
    oldest = next_signal(job.signals, name)
    if oldest is None or oldest.sequence != sequence:
        raise IllegalTransitionError(
            job.id, f"without a signal {name!r} at sequence {sequence} to be taken", asked
        )
    return oldest


def _check_no_signal(job: Job, command: FailStep) -> None:
    """Refuse the time-out of a wait whose signal is recorded, even if the run has not seen the signal yet."""
    if (
        command.kind == "wait"
        and command.copied is None
        and next_signal(job.signals, command.target) is not None
    ):
        raise StepOverError(job.id, command.step, "its signal has come")


def pause(job: Job, command: Pause, stamp: Stamp) -> Events:
    """Let the attempt, whose claim was checked, wait, unless the awaited thing has come."""
    unknown = next((key for key in command.steps if key not in job.steps), None)
    if unknown is not None:
        raise IllegalTransitionError(job.id, f"without a step {unknown!r}", "wait for it")
    event = command.event
    if job.cancel_requested:
        if not (job.steps and command.undos):
            return (cancelled(job, stamp, job.cancel_reason),)
        if not command.steps or any(job.steps[key].kind != "undo" for key in command.steps):
            raise StepOverError(job.id, next(iter(command.steps), ""), "it was asked to end")
    elif job.pause_requested:
        event = OPERATOR  # even if the awaited thing has come: `resume` checks that
    elif event == OPERATOR:
        raise IllegalTransitionError(job.id, "asked to pause by nobody", "pause until a person resumes it")
    if event != OPERATOR:
        _check_nothing_came(job, command, stamp)
    return (paused(job, stamp, event=event, until=command.until, steps=command.steps, undos=command.undos),)


def _check_nothing_came(job: Job, command: Pause, stamp: Stamp) -> None:
    """Refuse a wait that would never end, because the event that ends it is recorded already."""
    for key in command.steps:
        known = job.steps[key]
        if is_over(known, job.signals, stamp.at):
            raise StepOverError(job.id, key, "what it waits for has come")
        if admissible(known):
            raise StepOverError(job.id, key, "further children of it may be opened")


def paused(job: Job, stamp: Stamp, *, event: str, reason: str = "", **waits: Any) -> Paused:
    """Return the event that makes a job wait; a person's pause holds its reason and the number of open children."""
    told: dict[str, Any] = {}
    if event == OPERATOR:
        told = {"reason": reason or job.pause_reason, "open_children": of_family(job)["open_children"]}
    return Paused(**envelope(job, stamp), attempt=job.attempts_count, event=event, **waits, **told)


def join(job: Job, command: Join, stamp: Stamp) -> Events:
    """Count ends of children once, open more children while there is room, and wake the run if that ends its wait."""
    if job.state in CLOSED_STATES:
        raise IllegalTransitionError(job.id, job.state.value, "be joined")
    known = job.steps.get(command.step)
    if known is None or known.order is None:
        raise IllegalTransitionError(job.id, f"without a group {command.step!r}", "be joined")
    fact = _news(job, known, command)
    parked = job.state is JobState.WAITING and command.step in job.awaited
    over = fold_join(job.steps, fact)[command.step].is_joined
    is_news = bool(fact.completed or fact.failed or fact.opened or fact.count is not None)
    if parked and over:
        return (ready(job, stamp, "resumed", **({"joined": fact} if is_news else {})),)
    if not is_news:
        raise IllegalTransitionError(job.id, f"told of these ends of {command.step!r} already", "be joined")
    fields = msgspec.structs.asdict(fact)
    return (Joined(**envelope(job, stamp), **fields),)


def copy_ends(job: Job, command: CopyEnds, stamp: Stamp) -> Events:
    """Count ends of another run's children, and open others while there is room; only before a child is made."""
    known = job.steps.get(command.step)
    if known is None or known.order is None or known.state != "started" or known.copied is None:
        raise IllegalTransitionError(
            job.id, f"without a copied group {command.step!r}", "copy ends of children"
        )
    order, items, copied = known.order, bits_of(command.completed), command.copied
    if not items or items >> order.count or items & known.ended:
        ended = f"told of {known.ended.bit_count():,} ends of {command.step!r}"
        raise IllegalTransitionError(job.id, ended, "copy these")
    if not len(copied.sequences) == len(copied.sha256) == items.bit_count():
        raise IllegalTransitionError(job.id, f"told of {items.bit_count():,} ends", "copy others")
    opened = known.opened | items
    fact = JoinFact(
        step=command.step,
        completed=ranges_of(items),
        opened=ranges_of(admit(order, opened, known.ended | items, known.failed) & ~opened),
    )
    return (Joined(**envelope(job, stamp), **msgspec.structs.asdict(fact), copied=copied),)


def _news(job: Job, known: Step, command: Join) -> JoinFact:
    """Return the ends in a command that are not recorded yet, and the children that may be opened after them."""
    order = known.order
    assert order is not None, "only groups are joined"
    counted = command.count if order.is_open and known.count is None else None
    if order.is_open:
        size = known.count if counted is None else counted
        may_end = -1 if size is None else (1 << size) - 1
    else:
        may_end = known.opened
    dead = 0 if order.on_dead_letter == "wait" else bits_of(command.dead) & may_end & ~known.ended
    # Nothing follows a completion, so if a child has both, its dead letter came first and was its end.
    completed = bits_of(command.completed) & may_end & ~known.ended & ~dead
    failed = (bits_of(command.failed) & may_end & ~known.ended & ~completed) | dead
    if counted is not None and known.ended.bit_length() > counted:
        more = f"told of item {known.ended.bit_length() - 1} of {command.step!r}"
        raise IllegalTransitionError(job.id, more, f"have only {counted} of them")
    opened = 0
    if not (job.is_final or job.cancel_requested or job.state is JobState.PAUSED or known.has_ended):
        ended, bad = known.ended | completed | failed, known.failed | failed
        opened = admit(order, known.opened, ended, bad) & ~known.opened
    return JoinFact(
        step=command.step,
        completed=ranges_of(completed),
        failed=ranges_of(failed),
        opened=ranges_of(opened),
        count=counted,
    )


def give_signal(job: Job, command: GiveSignal, stamp: Stamp) -> Events:
    """Send a run a message: wake the run if it waits for a message of this name, else keep the message."""
    if job.is_final:
        raise IllegalTransitionError(job.id, job.state.value, f"be sent signal {command.name!r}")
    if command.id and any(each.id == command.id and not each.refused for each in job.signals):
        raise SignalKnownError(job.id, command.id)
    if len(job.signals) >= SIGNALS_MAX:
        raise IllegalTransitionError(job.id, f"told {SIGNALS_MAX:,} signals", "be sent another")
    fact = SignalFact(name=command.name, id=command.id, value=command.value, value_ref=command.value_ref)
    awaits = (
        step.kind == "wait" and step.target == command.name
        for step in map(job.steps.get, job.awaited)
        if step is not None
    )
    if job.state is JobState.WAITING and any(awaits):
        return (ready(job, stamp, "resumed", signal=fact),)
    return (Signalled(**envelope(job, stamp), **msgspec.structs.asdict(fact)),)
