"""The lifecycle of a job: its states, and `evolve`, the one fold that computes them.

Pure: worker, projection, client and CLI all call this `evolve`; there is no second way to compute a state.
It never refuses an event (only `decisions.decide` does), so it returns a state for any sequence of events.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, Any, Final, assert_never

import msgspec

from jobledger.ledger.model.attempts import ATTEMPTS_KEPT, Attempt, AttemptState, Progress, closed
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import (
    Cancelled,
    CancelRequested,
    Carried,
    Checkpointed,
    Completed,
    DeadLettered,
    DeadReason,
    Discarded,
    ErrorInfo,
    Event,
    Failed,
    Fenced,
    Held,
    Interrupted,
    JobEvent,
    Joined,
    Lost,
    Member,
    Noted,
    Order,
    Paused,
    PauseRequested,
    PayloadRef,
    Progressed,
    Queued,
    Scheduled,
    Signalled,
    SignalRefused,
    Snoozed,
    Started,
    StepCompleted,
    StepFailed,
    StepStarted,
    order_of,
)
from jobledger.ledger.model.rights.marks import REASON
from jobledger.ledger.model.runs.carried_parts import Part, fold_part
from jobledger.ledger.model.runs.steps import (
    NO_STEPS,
    KeptSignal,
    RunEvent,
    Steps,
    fold_run,
    fold_waking,
    try_again,
)
from jobledger.ledger.model.trace import own_trace


class JobState(enum.StrEnum):
    """The state of a job; the comments tell what moves a job in, what moves it out, and how long it may stay."""

    SCHEDULED = "scheduled"  #: in: enqueue with a delay; out: its timer, cancel; stays until due
    HELD = "held"  #: in: any dispatch of a job with limits; out: the limits reactor, cancel; stays until admitted
    QUEUED = "queued"  #: in: enqueue, timers, requeue; out: a claim, cancel; stays until a worker is free
    RUNNING = "running"  #: in: a claim; out: its outcome, or a takeover once the lease is over
    RETRY_WAIT = "retry_wait"  #: in: a failed or snoozed attempt; out: its timer, cancel; stays until due
    WAITING = "waiting"  #: in: a run that waits; out: its time, a signal, the end of a step, a person, cancel
    PAUSED = "paused"  #: in: a person, or its run paused; out: a person, or its run goes on or ends
    COMPLETED = "completed"  #: in: the attempt returned; final
    CANCELLED = "cancelled"  #: in: a request; final
    DEAD_LETTERED = "dead_lettered"  #: in: no further attempt may follow; out: a person requeues or discards
    DISCARDED = "discarded"  #: in: a person gave a dead letter up; final


FINAL_STATES = frozenset(
    {JobState.COMPLETED, JobState.CANCELLED, JobState.DEAD_LETTERED, JobState.DISCARDED},
)
#: Only `fenced`, a note or `carried` may follow, so an archive run can remove the whole job.
CLOSED_STATES = FINAL_STATES - {JobState.DEAD_LETTERED}
#: The job is not over, but no worker can take it yet; in the order of display.
LATER_STATES: Final = (
    JobState.RETRY_WAIT,
    JobState.HELD,
    JobState.SCHEDULED,
    JobState.WAITING,
    JobState.PAUSED,
)
OPEN_STATES: Final = (JobState.RUNNING, JobState.QUEUED, *LATER_STATES)
#: The states of a job that is not over and has no running attempt.
PENDING_STATES = frozenset(OPEN_STATES) - {JobState.RUNNING}

OPERATOR: Final = (
    "operator"  #: value of the field `event` of `paused` if a person, not the attempt, pauses the job
)


#: The names in JSON of the fields that most jobs have: a projection stores each of its jobs in this form.
_SHORT: Final = {
    "id": "i",
    "queue": "q",
    "task": "t",
    "state": "s",
    "created_at": "c",
    "updated_at": "u",
    "last_sequence": "l",
    "order": "o",
    "attempts": "a",
    "dispatch_sequence": "d",
    "finished_at": "f",
    "created_by": "b",
}


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_SHORT, gc=False):
    """The state of a job after its events up to and including `last_sequence`."""

    id: str
    queue: str
    task: str
    state: JobState
    created_at: datetime
    updated_at: datetime
    last_sequence: int  #: stream sequence of the newest event folded
    order: Order = Order()  #: with the changes by requeues and retries
    attempts: tuple[Attempt, ...] = ()  #: the newest ones, at most `ATTEMPTS_KEPT`, in their order
    attempts_dropped: int = 0  #: how many older ones are not among them
    #: Attempts that do not count: interrupted, snoozed and paused ones, and those lost after they had recorded
    #: the end of a step.
    attempts_given_back: int = 0
    claim_epoch: int = 0  #: epoch of the running attempt; 0: nobody holds the job
    dispatches: int = 0  #: `queued` events since the last `started` or `held`
    dispatch_sequence: int = 0  #: stream sequence of the newest `queued`: the only work item that counts
    wait_sequence: int = (
        0  #: stream sequence of the event that began the present wait; 0: it waits for nothing
    )
    due_at: datetime | None = None  #: when a waiting job moves on by itself
    finished_at: datetime | None = None  #: when the present final state was entered
    result: msgspec.Raw = NO_VALUE
    result_ref: PayloadRef | None = None
    error: ErrorInfo | None = None  #: of the newest failed attempt or of the dead letter
    dead_reason: DeadReason | None = None
    cancel_requested: bool = False
    cancel_reason: Annotated[str, REASON] = ""
    checkpoint: msgspec.Raw = NO_VALUE
    checkpoint_ref: PayloadRef | None = None
    progress: Progress | None = None
    fenced_count: int = 0  #: outcomes of stale claims that were refused
    grant: int = 0  #: stream sequence of its newest `granted`; 0: none since its enqueue or requeue
    carried_sequence: int = 0  #: stream sequence of the newest `carried`; 0: none
    steps: Steps = NO_STEPS  #: of a run, by their keys, in the order of their first events
    signals: tuple[KeptSignal, ...] = ()  #: messages to a run, in their order
    awaited: tuple[str, ...] = ()  #: keys of steps: the first of them that is over resumes the run
    undos: int = 0  #: number of registered undos in the newest `paused` of an attempt
    advanced: bool = False  #: whether the running attempt recorded the end of a step
    pause_requested: bool = False  #: whether somebody asked the running attempt to pause
    pause_reason: Annotated[str, REASON] = ""
    created_by: str = ""  #: author of its first event; "": not known
    is_incomplete: bool = (
        False  #: whether some steps and signals are still missing: the next `carried` events have them
    )

    @property
    def attempts_count(self) -> int:
        """The number of attempts, with those that are not kept any more."""
        return self.attempts_dropped + len(self.attempts)

    @property
    def attempts_spent(self) -> int:
        """The number of used `max_attempts`; attempts that were given back, as at a pause, do not count."""
        return self.attempts_count - self.attempts_given_back

    @property
    def attempts_left(self) -> int:
        """How many more attempts may start once the running one, if there is one, has failed; never negative."""
        counted = self.attempts_dropped + len(self.attempts) - self.attempts_given_back
        left = self.order.max_attempts - counted
        return left if left > 0 else 0  # noqa: FURB136 - without a call, since every claim asks twice

    @property
    def attempts_left_if_lost(self) -> int:
        """How many more may start if the running one is lost; a lost attempt that ended a step does not count."""
        return self.attempts_left + self.advanced

    @property
    def member(self) -> Member | None:
        """The parent of the job."""
        return self.order.member

    @property
    def may_undo(self) -> bool:
        """Whether the run may have undos to do before it ends without completing; False: surely none."""
        paused = bool(self.attempts) and self.attempts[-1].state == "paused"
        return self.undos > 0 if paused else bool(self.steps)

    def attempt(self, number: int) -> Attempt | None:
        """Return an attempt by its number, from 1; None: there is none, or it is not kept any more."""
        at = number - 1 - self.attempts_dropped
        return self.attempts[at] if 0 <= at < len(self.attempts) else None

    @property
    def trace(self) -> str:
        """The W3C traceparent of the job: its enqueuer's, or one of its own, derived from its name."""
        return self.order.trace or own_trace(self.queue, self.id)

    @property
    def running_attempt(self) -> Attempt | None:
        """The attempt that holds the claim, if one does."""
        return self.attempts[-1] if self.state is JobState.RUNNING and self.attempts else None

    @property
    def is_final(self) -> bool:
        """Whether the job stays as it is unless a person acts."""
        return self.state in FINAL_STATES


_replace = msgspec.structs.replace
# Enum member access goes through the metaclass, which is slow; cached, because it is needed for every event.
_RUNNING = JobState.RUNNING
_COMPLETED = JobState.COMPLETED
_PAUSED = JobState.PAUSED


def evolve(job: Job | None, event: JobEvent, stream_sequence: int) -> Job:
    """Return the job after `event`, stored at `stream_sequence`; `job` is None before the first one."""
    if job is None:
        if isinstance(event, _ORDERS) and not (isinstance(event, Queued) and event.cause == "carried"):
            return _ordered(event, stream_sequence)
        job = _begin(event, stream_sequence)
    match event:
        case Started():  # first, since every job has one, and each case that does not match costs time
            return _started(job, event, stream_sequence)
        case Queued(cause="carried"):  # a fresh work item for the job as it is, waiting or running
            return _dispatched_anew(job, event, stream_sequence)
        case Queued() | Scheduled() | Held():
            return _waiting(_woken(job, event, stream_sequence), event, stream_sequence)
        case Completed():
            return _completed(job, event, stream_sequence)
        case Failed():
            return _failed(job, event, stream_sequence)
        case Interrupted():
            ended = _end_attempt(job, event, "interrupted", JobState.RETRY_WAIT, stream_sequence)
            return _given_back(ended, None, stream_sequence)
        case Snoozed():
            ended = _end_attempt(job, event, "snoozed", JobState.RETRY_WAIT, stream_sequence)
            return _given_back(ended, event.until, stream_sequence)
        case Paused():
            return _paused(job, event, stream_sequence)
        case Cancelled():
            ended = _end_attempt(job, event, "cancelled", JobState.CANCELLED, stream_sequence)
            return _replace(ended, finished_at=event.at, cancel_reason=event.reason or job.cancel_reason)
        case DeadLettered():
            ended = _end_attempt(job, event, "lost", JobState.DEAD_LETTERED, stream_sequence)
            error = event.error or ended.error
            return _replace(ended, finished_at=event.at, dead_reason=event.reason, error=error)
        case Discarded():
            ended = _end_attempt(job, event, "lost", JobState.DISCARDED, stream_sequence)
            return _replace(ended, finished_at=event.at)
        case Checkpointed():
            noted = _note(job, event, stream_sequence)
            return _replace(noted, checkpoint=event.value, checkpoint_ref=event.value_ref)
        case Progressed():
            progress = Progress(done=event.done, total=event.total, note=event.note)
            return _replace(_note(job, event, stream_sequence), progress=progress)
        case CancelRequested():
            return _replace(
                _note(job, event, stream_sequence), cancel_requested=True, cancel_reason=event.reason
            )
        case Lost():  # the next event ends the attempt
            return _note(job, event, stream_sequence)
        case Noted():  # `updated_at` stays as it was
            return _replace(job, last_sequence=stream_sequence)
        case Fenced():
            return _replace(_note(job, event, stream_sequence), fenced_count=job.fenced_count + 1)
        case StepStarted() | StepCompleted() | StepFailed() | Joined():
            return _of_run(job, event, stream_sequence)
        case Signalled() | SignalRefused() | PauseRequested():
            return _of_run(job, event, stream_sequence)
        case Carried():  # it has the whole job, whatever is known of earlier events
            return _carried(job, event, stream_sequence)
        case _:
            assert_never(event)


def _ordered(event: Queued | Scheduled | Held, stream_sequence: int) -> Job:
    """Take the order from a first event."""
    dispatches = dispatch_sequence = grant = dropped = given_back = 0
    if isinstance(event, Queued):
        dispatches, dispatch_sequence, grant = 1, stream_sequence, event.grant
        if event.given_back is not None:  # a retry, with the whole order
            dropped, given_back = event.attempt - 1, event.given_back
    return Job(
        id=event.job,
        queue=event.queue,
        task=event.task,
        state=_WAITING_STATE_OF[type(event)],
        created_at=event.at,
        updated_at=event.at,
        last_sequence=stream_sequence,
        created_by=event.by,
        order=order_of(event),
        attempts_dropped=dropped,
        attempts_given_back=given_back,
        dispatches=dispatches,
        dispatch_sequence=dispatch_sequence,
        wait_sequence=stream_sequence,
        due_at=event.run_at if isinstance(event, Scheduled) else None,
        grant=grant,
    )


def _begin(event: Event, stream_sequence: int) -> Job:
    """Return what is known of a job whose beginning is missing."""
    return Job(
        id=event.job,
        queue=event.queue,
        task=event.task,
        state=JobState.QUEUED,
        created_at=event.at,
        updated_at=event.at,
        last_sequence=stream_sequence,
        order=Order(trace=event.trace, correlation=event.correlation),
    )


def _carried(job: Job, event: Carried, stream_sequence: int) -> Job:
    said = event.job_state
    fields = msgspec.structs.asdict(said)
    by_operator = fields.pop("paused_by_operator")
    state = JobState(said.state)
    fields["state"] = JobState.WAITING if state is _PAUSED and not by_operator else state
    fields["attempts"] = tuple(Attempt(**msgspec.structs.asdict(each)) for each in said.attempts)
    progress = said.progress
    fields["progress"] = None if progress is None else Progress(**msgspec.structs.asdict(progress))
    part = Part(said.steps, said.signals, event.steps_before, event.signals_before, event.more)
    fields |= fold_part(job.steps, job.signals, part, is_incomplete=job.is_incomplete)
    fields["last_sequence"] = fields["carried_sequence"] = stream_sequence
    return Job(id=event.job, queue=event.queue, task=event.task, **fields)


def _of_run(job: Job, event: RunEvent, stream_sequence: int) -> Job:
    changes = fold_run(job.steps, job.signals, event, stream_sequence)
    return _replace(_note(job, event, stream_sequence), **changes)


def _note(job: Job, event: Event, stream_sequence: int) -> Job:
    """Record an event that does not change the state."""
    return _replace(job, updated_at=event.at, last_sequence=stream_sequence)


_ORDERS = (Queued, Scheduled, Held)
_WAITING_STATE_OF: dict[type[Event], JobState] = {
    Queued: JobState.QUEUED,
    Scheduled: JobState.SCHEDULED,
    Held: JobState.HELD,
}


def _waiting(job: Job, event: Queued | Scheduled | Held, stream_sequence: int) -> Job:
    """Let an existing job wait: the event changes only the fields that it names."""
    # The count begins again after a requeue or a pause, and while the job is held: no worker gets a held job.
    dispatches = 0 if job.is_final or job.state is _PAUSED or isinstance(event, Held) else job.dispatches
    dispatch_sequence, grant = job.dispatch_sequence, 0 if job.is_final else job.grant
    if isinstance(event, Queued):
        dispatches += 1
        dispatch_sequence = stream_sequence
        grant = event.grant or grant
    due_at = event.run_at if isinstance(event, Scheduled) else None
    order: dict[str, Any] = {
        "priority": event.priority,
        "max_attempts": event.max_attempts,
        "timeout_s": event.timeout_s,
    }
    if event.input is not NO_VALUE or event.input_ref is not None:
        order |= {"input": event.input, "input_ref": event.input_ref}
    return _replace(
        job,
        attempts=closed(job.attempts, event, "lost"),
        attempts_given_back=job.attempts_given_back + job.advanced,
        state=_WAITING_STATE_OF[type(event)],
        updated_at=event.at,
        last_sequence=stream_sequence,
        order=_replace(job.order, **order),
        dispatches=dispatches,
        dispatch_sequence=dispatch_sequence,
        wait_sequence=stream_sequence,
        due_at=due_at,
        claim_epoch=0,
        finished_at=None,
        dead_reason=None,
        # A person who requeues a dead letter overrules an earlier wish to cancel it.
        cancel_requested=job.cancel_requested and not job.is_final,
        cancel_reason="" if job.is_final else job.cancel_reason,
        grant=grant,
        awaited=(),
        advanced=False,
        pause_requested=job.pause_requested and not job.is_final,
    )


def _woken(job: Job, event: Queued | Scheduled | Held, stream_sequence: int) -> Job:
    """Apply the other content of a dispatch: the fact that resumes a run, or the wish that it ends."""
    if isinstance(event, Scheduled) or event.cause not in {"resumed", "cancelling"}:
        return job
    if event.cause == "cancelling":
        return _replace(job, cancel_requested=True, cancel_reason=event.reason)
    return _replace(job, **fold_waking(job.steps, job.signals, event.joined, event.signal, stream_sequence))


def _paused(job: Job, event: Paused, stream_sequence: int) -> Job:
    """Let a job wait: because its attempt asks for it, or because a person does while it waits for something else."""
    ran = job.state is _RUNNING
    state = _PAUSED if event.event == OPERATOR else JobState.WAITING
    ended = _end_attempt(job, event, "paused", state, stream_sequence)
    return _replace(
        ended,
        attempts_given_back=job.attempts_given_back + ran,
        due_at=event.until,
        wait_sequence=stream_sequence,
        awaited=event.steps,
        undos=event.undos if ran else job.undos,
        pause_requested=False,
        pause_reason=event.reason,
    )


def _dispatched_anew(job: Job, event: Queued, stream_sequence: int) -> Job:
    order = _replace(job.order, priority=event.priority)
    return _replace(job, order=order, last_sequence=stream_sequence, dispatch_sequence=stream_sequence)


def _started(job: Job, event: Started, stream_sequence: int) -> Job:
    attempt = Attempt(number=event.attempt, worker=event.worker, epoch=stream_sequence, started_at=event.at)
    before = closed(job.attempts, event, "lost")  # a takeover: the older attempt is lost
    if job.advanced or len(before) >= ATTEMPTS_KEPT:
        job, before = _older_attempts(job, before)
    return _replace(
        job,
        state=_RUNNING,
        updated_at=event.at,
        last_sequence=stream_sequence,
        attempts=(*before, attempt),
        claim_epoch=stream_sequence,
        dispatches=0,
        wait_sequence=0,
        due_at=None,
        progress=None,
    )


def _older_attempts(job: Job, before: tuple[Attempt, ...]) -> tuple[Job, tuple[Attempt, ...]]:
    """Give back a lost attempt that ended a step, and drop attempts beyond those that are kept."""
    surplus = max(0, len(before) + 1 - ATTEMPTS_KEPT)
    back, dropped = job.attempts_given_back + job.advanced, job.attempts_dropped + surplus
    changed = _replace(job, attempts_given_back=back, attempts_dropped=dropped, advanced=False)
    return changed, before[surplus:]


def _given_back(ended: Job, due_at: datetime | None, stream_sequence: int) -> Job:
    """Let the job wait, without counting the attempt that ended."""
    back = ended.attempts_given_back + 1
    return _replace(ended, attempts_given_back=back, due_at=due_at, wait_sequence=stream_sequence)


def _end_attempt(
    job: Job,
    event: Event,
    attempt_state: AttemptState,
    state: JobState,
    stream_sequence: int,
    *,
    error: ErrorInfo | None = None,
) -> Job:
    return _replace(
        job,
        attempts=closed(job.attempts, event, attempt_state, error=error),
        state=state,
        updated_at=event.at,
        last_sequence=stream_sequence,
        claim_epoch=0,
        wait_sequence=0,
        due_at=None,
        error=error or job.error,
        awaited=(),
        advanced=False,
        pause_requested=job.pause_requested and state not in FINAL_STATES,
    )


def _failed(job: Job, event: Failed, stream_sequence: int) -> Job:
    state = JobState.QUEUED if event.offers_again else JobState.RETRY_WAIT
    ended = _end_attempt(job, event, "failed", state, stream_sequence, error=event.error)
    if event.offers_again:
        ended = _replace(ended, dispatches=job.dispatches + 1)
    order = job.order
    if event.retry_priority is not None:
        order = _replace(order, priority=event.retry_priority)
    steps = try_again(job.steps) if job.steps else job.steps
    return _replace(ended, order=order, steps=steps, due_at=event.retry_at, wait_sequence=stream_sequence)


def retried(dispatch: Queued, failed: Failed, stream_sequence: int) -> Job | None:
    """Return the job after a failure, from this event and the dispatch that it names; None if these do not suffice.

    The only attempt in the job is the failed one, without its start time. `stream_sequence`: that of `failed`.
    """
    if failed.given_back is None or not dispatch.has_order:
        return None
    attempt = Attempt(number=failed.attempt, worker=failed.by, epoch=failed.epoch, started_at=dispatch.at)
    running = _replace(
        _ordered(dispatch, failed.dispatch),
        state=_RUNNING,
        attempts=(attempt,),
        attempts_dropped=failed.attempt - 1,
        attempts_given_back=failed.given_back,
        claim_epoch=failed.epoch,
        dispatches=0,
    )
    return _failed(running, failed, stream_sequence)


def _completed(job: Job, event: Completed, stream_sequence: int) -> Job:
    """Complete a job; like `_end_attempt`, but in one step, for speed, since nearly every job comes here."""
    return _replace(
        job,
        attempts=closed(job.attempts, event, "completed"),
        state=_COMPLETED,
        updated_at=event.at,
        last_sequence=stream_sequence,
        claim_epoch=0,
        wait_sequence=0,
        due_at=None,
        finished_at=event.at,
        result=event.result,
        result_ref=event.result_ref,
        error=None,
    )
