"""The rules of a job: the events that must not follow its present state.

The table of events that may follow is in `lifecycle`. `decide` never produces a violation, and the tests look for one
in all its events; `evolve` accepts any event. Pure; `job.evolve` computes the state, and there is no second way to do
so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from jobledger.ledger.model.events import (
    EVENT_CLASSES,
    Cancelled,
    CancelRequested,
    Carried,
    Checkpointed,
    Completed,
    DeadLettered,
    Discarded,
    Failed,
    Fenced,
    Held,
    Interrupted,
    JobEvent,
    Lost,
    Paused,
    PauseRequested,
    Progressed,
    Queued,
    Scheduled,
    SignalRefused,
    Snoozed,
    Started,
    StepCompleted,
    StepFailed,
    StepStarted,
    event_type,
    order_of,
)
from jobledger.ledger.model.job import OPERATOR, Job, JobState
from jobledger.ledger.model.lifecycle import CAUSES, CLAIMED, LEGAL, PAST_ITS_LIMITS, lean_order

#: The classes of `CLAIMED`, for the type checkers.
_Claimed = (
    Completed
    | Failed
    | Interrupted
    | Snoozed
    | Paused
    | Checkpointed
    | Progressed
    | StepStarted
    | StepCompleted
    | StepFailed
    | SignalRefused
)


_End = Completed | Cancelled | DeadLettered | Discarded


class _Rule(Protocol):
    def __call__(self, job: Job | None, event: JobEvent, /) -> str | None: ...


def violation(job: Job | None, event: JobEvent) -> str | None:
    """Return one sentence if `event` must not follow the present `job` (None: no job yet); None if it may."""
    for rule in _RULES_OF[type(event)]:
        found = rule(job, event)
        if found is not None:
            return f"job {event.job}: {found}"
    return None


def _type_fits_state(job: Job | None, event: JobEvent) -> str | None:
    state = None if job is None else job.state
    if type(event) in LEGAL[state]:
        return None
    kind = event_type(event)
    return f"`{kind}` is its first event" if state is None else f"`{kind}` follows while it is {state.value}"


def _names_agree(job: Job | None, event: JobEvent) -> str | None:
    if job is not None and (event.job != job.id or event.queue != job.queue or event.task != job.task):
        named = f"{event.queue}/{event.job} ({event.task})"
        return f"`{event_type(event)}` names {named}, its chain is of {job.queue}/{job.id} ({job.task})"
    return None


def _may_be_ready(job: Job | None, event: JobEvent) -> str | None:
    if not isinstance(event, Queued | Held):
        return None
    kind = event_type(event)
    state = None if job is None else job.state
    if event.cause not in CAUSES[state]:
        return (
            f"`{kind}` with cause {event.cause!r} while it is {'not there' if state is None else state.value}"
        )
    if event.cause == "interrupted" and (
        job is None or not job.attempts or job.attempts[-1].state != "interrupted"
    ):
        return f"`{kind}` as interrupted, though its newest attempt was not"
    number = 1 if job is None else job.attempts_count + 1
    if event.attempt != number:
        return f"`{kind}` for attempt {event.attempt}, the next one is {number}"
    given_back = 0 if job is None else job.attempts_given_back
    given_back += 0 if job is None else job.advanced
    if event.max_attempts + given_back < number and event.cause != "carried":  # `carried` starts no attempt
        return f"`{kind}` for attempt {number} of {event.max_attempts} (given back: {given_back})"
    return None


def _waits_for_its_limits(job: Job | None, event: JobEvent) -> str | None:
    if not isinstance(event, Queued | Held):
        return None
    limits = event.limits if job is None else job.order.limits
    must_wait = bool(limits) and event.cause not in PAST_ITS_LIMITS
    is_held = isinstance(event, Held)
    if must_wait and not is_held:
        return f"`queued` as {event.cause!r} past its limits ({', '.join(limits)})"
    if is_held and not must_wait:
        return f"`held` as {event.cause!r}, though nothing holds it"
    if event.cause == "ungranted" and not is_held:
        return "`queued` as 'ungranted', though it has no limits"
    return None


def _says_its_order(job: Job | None, event: JobEvent) -> str | None:
    """Check that an event repeats the order of the first event, since readers act on it without reading the chain."""
    if job is None or not isinstance(event, Queued | Held):
        return None
    kind, order = event_type(event), job.order
    if isinstance(event, Held) and (event.limits != order.limits or event.fair != order.fair):
        return f"`{kind}` for {_words(event.limits, event.fair)}, its order says {_words(order.limits, order.fair)}"
    if isinstance(event, Queued) and (event.limits or event.given_back is not None):
        again = msgspec.structs.replace(lean_order(order_of(event)), priority=order.priority)
        if (job.attempts and event.limits) or again != lean_order(order):
            return f"`{kind}` with another order than the job's"
        return _counts_given_back(job, event)
    return None


def _words(limits: tuple[str, ...], fair: str) -> str:
    return (", ".join(limits) or "no limits") + (f" of {fair}" if fair else "")


def _names_its_grant(_job: Job | None, event: JobEvent) -> str | None:
    if not isinstance(event, Queued) or (event.cause == "admitted") == bool(event.grant):
        return None
    if event.grant:
        return f"`queued` as {event.cause!r} by grant {event.grant}: only 'admitted' names one"
    return "`queued` as 'admitted' by no grant"


def _ends_where_it_is_heard(job: Job | None, event: JobEvent) -> str | None:
    """Check the parent and `limited` in an end: by these its subject reaches the run, and the readers of limits."""
    if job is None or not isinstance(event, _End):
        return None
    if event.member != job.order.member:
        return f"`{event_type(event)}` names another parent than the job has"
    if not isinstance(event, Completed) or event.limited == bool(job.order.limits):
        return None
    has = f"limits ({', '.join(job.order.limits)})" if job.order.limits else "no limits"
    return f"`completed` {'with' if event.limited else 'without'} `limited`, and the job has {has}"


def _moves_a_wait(job: Job | None, event: JobEvent) -> str | None:
    """Refuse `scheduled` in retry_wait without a time: the job is then between two events of one batch."""
    if job is None or job.due_at is not None:
        return None
    return f"`{event_type(event)}` while it waits for no time"


def _may_start(job: Job | None, event: JobEvent) -> str | None:
    if job is None or not isinstance(event, Started):
        return None
    number = job.attempts_count + 1
    if event.attempt != number:
        return f"`started` as attempt {event.attempt}, the next one is {number}"
    if not job.attempts_left_if_lost:
        return f"`started` as attempt {number} of {job.order.max_attempts} (given back: {job.attempts_given_back})"
    if job.cancel_requested and not job.may_undo:
        return "`started` although it was asked to end"
    return None


def _is_of_the_running_attempt(job: Job | None, event: JobEvent) -> str | None:
    if job is None or not isinstance(event, _Claimed):
        return None
    if isinstance(event, Paused) and job.state is not JobState.RUNNING:
        return _is_paused_by_a_person(job, event)
    running = job.running_attempt
    if running is None or event.attempt != running.number:
        return f"`{event_type(event)}` of attempt {event.attempt}, running is {running.number if running else 'none'}"
    return None


def _is_paused_by_a_person(job: Job, event: Paused) -> str | None:
    """For a waiting job allow only a `paused` by a person; for a paused job also one that returns it to its wait."""
    if event.event != OPERATOR and job.state is not JobState.PAUSED:
        return f"`paused` while it is {job.state.value}, though nobody asked for it"
    if event.attempt != job.attempts_count:
        return f"`paused` after attempt {event.attempt}, the newest one is {job.attempts_count}"
    return None


def _gives_up_an_undecided_job(job: Job | None, event: JobEvent) -> str | None:
    """Allow a dead letter in retry_wait only after the failure of the same batch, which names no time."""
    if job is None or not isinstance(event, DeadLettered) or job.state is not JobState.RETRY_WAIT:
        return None
    if job.due_at is None and job.attempts and job.attempts[-1].state == "failed":
        return None
    return "`dead_lettered` while it waits to run again"


def _follows_something(job: Job | None, event: JobEvent) -> str | None:
    if job is None and not event.prev:
        return "`carried` carries a job of which there was no event"
    return None


def _asks_once(job: Job | None, event: JobEvent) -> str | None:
    if job is None or not isinstance(event, CancelRequested | PauseRequested):
        return None
    asked = job.cancel_requested if isinstance(event, CancelRequested) else job.pause_requested
    if asked:
        return f"`{event_type(event)}` a second time"
    if job.state is not JobState.RUNNING and not job.may_undo:
        return f"`{event_type(event)}` while it is {job.state.value}, and has nothing to undo"
    return None


def _fences_a_stale_claim(job: Job | None, event: JobEvent) -> str | None:
    if job is None or not isinstance(event, Fenced):
        return None
    if event.current_epoch != job.claim_epoch:
        return f"`fenced` by claim {event.current_epoch}, the current one is {job.claim_epoch}"
    if event.held_epoch == job.claim_epoch:
        return f"`fenced` claim {event.held_epoch}, which holds it"
    held = job.attempt(event.attempt)
    if held is None or held.epoch != event.held_epoch:
        return f"`fenced` claim {event.held_epoch} as attempt {event.attempt}, which it never had"
    return None


def _names_its_dispatch(job: Job | None, event: JobEvent) -> str | None:
    """Check a failure that refers to the job's order, since readers act on the two events without reading the chain."""
    if job is None or not isinstance(event, Failed) or not (event.dispatch or event.epoch):
        return None
    if event.epoch != job.claim_epoch:
        return f"`failed` of claim {event.epoch}, the current one is {job.claim_epoch}"
    if event.dispatch != job.dispatch_sequence:
        return (
            f"`failed` names the dispatch at {event.dispatch}, the newest one is at {job.dispatch_sequence}"
        )
    if event.offers_again and job.order.limits:
        return f"`failed` queues the job past its limits ({', '.join(job.order.limits)})"
    if event.offers_again and (not job.attempts_left or event.retry_priority is not None):
        return "`failed` queues the job, which has no attempt left or is to have another priority"
    return _counts_given_back(job, event)


def _counts_given_back(job: Job, event: Failed | Queued) -> str | None:
    if event.given_back is None or (not job.steps and event.given_back == job.attempts_given_back):
        return None
    return f"`{event_type(event)}` says {event.given_back} attempts given back, there are {job.attempts_given_back}"


def _was_running(job: Job | None, event: JobEvent) -> str | None:
    running = None if job is None else job.running_attempt
    if not isinstance(event, Lost) or running is None:
        return None  # `_type_fits_state` reports it
    if (event.attempt, event.worker, event.epoch) != (running.number, running.worker, running.epoch):
        said = f"attempt {event.attempt} of {event.worker} (claim {event.epoch})"
        return f"`lost` for {said}, running is {running.number} of {running.worker} (claim {running.epoch})"
    return None


_OF_EVERY_EVENT: Final[tuple[_Rule, ...]] = (_type_fits_state, _names_agree)
_OF_TYPE: Final[Mapping[type[JobEvent], tuple[_Rule, ...]]] = {
    **dict.fromkeys(
        (Queued, Held), (_may_be_ready, _waits_for_its_limits, _says_its_order, _names_its_grant)
    ),
    Scheduled: (_moves_a_wait,),
    Started: (_may_start,),
    **dict.fromkeys(CLAIMED, (_is_of_the_running_attempt,)),
    Failed: (_is_of_the_running_attempt, _names_its_dispatch),
    Completed: (_is_of_the_running_attempt, _ends_where_it_is_heard),
    Cancelled: (_ends_where_it_is_heard,),
    DeadLettered: (_gives_up_an_undecided_job, _ends_where_it_is_heard),
    Discarded: (_ends_where_it_is_heard,),
    **dict.fromkeys((CancelRequested, PauseRequested), (_asks_once,)),
    Fenced: (_fences_a_stale_claim,),
    Lost: (_was_running,),
    Carried: (_follows_something,),
}
#: The rules by type, because most rules concern few types of events, and an audit checks every event.
_RULES_OF: Final[Mapping[type[JobEvent], tuple[_Rule, ...]]] = {
    cls: (*_OF_EVERY_EVENT, *_OF_TYPE.get(cls, ())) for cls in EVENT_CLASSES
}
