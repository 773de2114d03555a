"""Every fact a job can have, as one tagged union: `JobEvent`.

Facts only: `decisions` decides what may follow what, `job` folds them into a state, and `codec`
turns them into bytes. Released fields never change type, meaning or name; new ones
have defaults, and one golden line per event of every release must decode for ever.
"""

import operator
from typing import Annotated, Final, Literal

import msgspec

from jobledger.ledger.model.envelope import (
    NO_VALUE,
    PRIORITIES,
    Counted,
    ErrorInfo,
    ErrorKind,
    Event,
    Moment,
    PayloadRef,
    Priority,
    Whole,
)
from jobledger.ledger.model.rights.marks import REASON
from jobledger.ledger.model.runs.carried_parts import CarriedSignal, CarriedStep
from jobledger.ledger.model.runs.events import (
    Joined,
    Noted,
    PauseRequested,
    Signalled,
    SignalRefused,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from jobledger.ledger.model.runs.orders import (
    Callback,
    ChildOrder,
    CopiedEnd,
    JoinFact,
    Member,
    RerunOf,
    SignalFact,
    StepKind,
)

__all__ = [
    "EVENT_CLASSES",
    "EVENT_TYPES",
    "LABELS",
    "PRIORITIES",
    "AttemptStateName",
    "CancelRequested",
    "Cancelled",
    "Carried",
    "CarriedAttempt",
    "CarriedJob",
    "CarriedProgress",
    "CarriedSignal",
    "CarriedStep",
    "Cause",
    "Checkpointed",
    "ChildOrder",
    "Completed",
    "CopiedEnd",
    "DeadLettered",
    "DeadReason",
    "Discarded",
    "ErrorInfo",
    "ErrorKind",
    "Event",
    "Failed",
    "Fenced",
    "Held",
    "Interrupted",
    "JobEvent",
    "JoinFact",
    "Joined",
    "Lost",
    "Member",
    "Noted",
    "Order",
    "PauseRequested",
    "Paused",
    "PayloadRef",
    "Priority",
    "Progressed",
    "Queued",
    "RerunOf",
    "Scheduled",
    "SignalFact",
    "SignalRefused",
    "Signalled",
    "Snoozed",
    "Started",
    "StateName",
    "StepCompleted",
    "StepFailed",
    "StepKind",
    "StepStarted",
    "event_type",
    "order_at_first",
    "order_of",
]

#: Why a job was dispatched. Only `new` and a first `admitted` hold the whole work order; the others build on the chain.
#: `carried` leaves the job as it is, waiting or running: it only adds a new work item because an archive run removes
#: the old one. `ungranted` makes an unclaimed job wait for its limits again. `cancelling` lets a waiting run, which
#: has to end, undo its work.
Cause = Literal[
    "new",
    "due",
    "admitted",
    "retried",
    "requeued",
    "resumed",
    "interrupted",
    "redispatched",
    "carried",
    "ungranted",
    "cancelling",
]

DeadReason = Literal["exhausted", "max_deliver", "rejected", "invalid", "diverged"]

#: The states of a job and of an attempt as they are written: the words of `job.JobState` and `job.AttemptState`,
#: except `waiting`, which is written as `paused` without `paused_by_operator`.
StateName = Literal[
    "scheduled",
    "held",
    "queued",
    "running",
    "retry_wait",
    "paused",
    "completed",
    "cancelled",
    "dead_lettered",
    "discarded",
]
AttemptStateName = Literal[
    "running", "completed", "failed", "lost", "interrupted", "snoozed", "paused", "cancelled", "dead_lettered"
]


class Order(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The work order of a job: all wishes of its enqueuer beside its name, its task and its time.

    Declared for code that handles the order as a whole; the events that begin a job have the same fields, flat.
    A part of `carried`, so released fields never change type, meaning or name.
    """

    priority: Priority = "normal"  #: the lane of the queue, one of three, in which the job waits
    input: msgspec.Raw = NO_VALUE  #: JSON object of keyword arguments; absent if `input_ref` names its place
    input_ref: PayloadRef | None = None  #: place of a large input
    max_attempts: Whole = 1  #: most `started` events of the job, without those given back
    timeout_s: float | None = None  #: time limit of one attempt; None: no limit
    notify: str = ""  #: token of the inbox that gets a hint when the job ends
    tenant: str = ""  #: the tenant to whom the job belongs
    limits: tuple[str, ...] = ()  #: names of the limits the job waits for
    batch: str = ""  #: the batch the job is part of
    tick: str = ""  #: `<schedule>-<tick>` of the schedule that made the job
    trace: str = ""  #: W3C traceparent of the enqueuer; "": the job has one that is derived from its id
    correlation: str = ""  #: the first cause the job belongs to: a batch, a run, a request
    metadata: dict[str, str] = {}  #: pairs of words of the enqueuer about the job
    fair: str = ""  #: the fairness key, such as `tenant:acme`: limits admit the jobs of several keys in turns
    unique: str = ""  #: hash of the key that the job holds, as in `ledger.unique.<task>.<hash>`; "": none
    version: str = (
        ""  #: version of the workflow's code that the run is bound to; "": any version that a worker has
    )
    member: Member | None = None  #: the parent of the job
    rerun_of: RerunOf | None = None  #: the source run, whose first steps a rerun copies
    on_end: tuple[Callback, ...] = ()  #: jobs to enqueue when the run has ended
    deadline_s: float | None = None  #: seconds from its first event until the run is cancelled; None: never
    inherits: tuple[str, ...] = ()  #: limits whose slot a run above it holds to its end, also for this job
    key: str = ""  #: `<owner>/<number>` of the key that seals the job's values; "": they are not sealed


#: The fields of an order that are one word each about what the job belongs to; "": not given.
LABELS: Final = ("tenant", "correlation")


class CarriedAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One attempt of a job that is carried over; the fields are `job.Attempt`'s."""

    number: Whole  #: from 1
    worker: str  #: `<host>-<pid>-<random>`
    epoch: Whole  #: stream sequence of its `started`
    started_at: Moment  #: when it began
    state: AttemptStateName = "running"  #: how it ended
    finished_at: Moment | None = None  #: when it ended
    error: ErrorInfo | None = None  #: why it failed


class CarriedProgress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The newest progress of a running attempt; the fields are `job.Progress`'s."""

    done: float  #: the amount that is done
    total: float | None  #: the whole amount
    note: str  #: a few words on the progress


class CarriedJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The state of a job, without the names in the envelope; the fields are `job.Job`'s.

    A form of its own, because stored jobs must stay readable however `job.Job` changes: a released field stays, a new
    one has a default.
    """

    state: StateName  #: state of the job; `paused` without `paused_by_operator` is the state `waiting`
    created_at: Moment  #: time of its first event
    updated_at: Moment  #: time of its newest event
    last_sequence: Whole  #: stream sequence of the newest event in this state: the one before `carried`
    order: Order = Order()  #: with the changes by requeues and retries
    attempts: tuple[CarriedAttempt, ...] = ()  #: the newest ones, in their order
    attempts_dropped: Counted = 0  #: how many older attempts are not among them
    attempts_given_back: Whole = 0  #: interrupted, snoozed and paused attempts, which do not count
    claim_epoch: Whole = 0  #: epoch of the running attempt; 0: nobody holds the job
    dispatches: Whole = 0  #: `queued` events since the last `started` or `held`
    dispatch_sequence: Whole = 0  #: stream sequence of the newest `queued`
    wait_sequence: Whole = (
        0  #: stream sequence of the event that began the present wait; 0: the job does not wait
    )
    due_at: Moment | None = None  #: when a waiting job moves on by itself
    finished_at: Moment | None = None  #: when the present final state was entered
    result: msgspec.Raw = NO_VALUE  #: return value of the task
    result_ref: PayloadRef | None = None  #: place of a large result
    error: ErrorInfo | None = None  #: error of the newest failed attempt or of the dead letter
    dead_reason: DeadReason | None = None  #: why a dead letter cannot be finished
    cancel_requested: bool = False  #: whether somebody asked the running attempt to end
    cancel_reason: Annotated[str, REASON] = ""  #: why
    checkpoint: msgspec.Raw = NO_VALUE  #: value for the next attempt
    checkpoint_ref: PayloadRef | None = None  #: place of a large checkpoint
    progress: CarriedProgress | None = None  #: newest progress of the running attempt
    fenced_count: Whole = 0  #: outcomes of stale claims that were refused
    grant: Whole = 0  #: stream sequence of its newest `granted`; 0: none since its enqueue or requeue
    steps: tuple[CarriedStep, ...] = ()  #: of a run, in the order of their first events
    signals: tuple[CarriedSignal, ...] = ()  #: messages to a run, in their order
    awaited: tuple[str, ...] = ()  #: keys of steps: the run resumes when the first of them is over
    undos: Whole = 0  #: how many undos the newest `paused` said are registered
    advanced: bool = False  #: whether the running attempt recorded the end of a step
    pause_requested: bool = False  #: whether somebody asked the running attempt to pause
    paused_by_operator: bool = False  #: whether the job waits until a person resumes it
    pause_reason: Annotated[str, REASON] = ""  #: why
    created_by: str = ""  #: author of its first event; "": not known, since that event was gone


class _Order(Event, frozen=True, kw_only=True, gc=False):
    """The fields of `Order`, flat: each of the three types of first events of a job has them."""

    priority: Priority = "normal"  #: the lane of the queue, one of three, in which the job waits
    input: msgspec.Raw = (
        NO_VALUE  #: JSON object of keyword arguments; absent if `input_ref` or an earlier event has it
    )
    input_ref: PayloadRef | None = None  #: place of a large input
    max_attempts: Whole = 1  #: most `started` events of the job, without those given back
    timeout_s: float | None = None  #: time limit of one attempt; None: no limit
    notify: str = ""  #: token of the inbox that gets a hint when the job ends
    tenant: str = ""  #: the tenant to whom the job belongs
    limits: tuple[str, ...] = ()  #: names of the limits the job waits for
    batch: str = ""  #: the batch the job is part of
    tick: str = ""  #: `<schedule>-<tick>` of the schedule that made the job
    metadata: dict[str, str] = {}  #: pairs of words of the enqueuer about the job
    fair: str = ""  #: the fairness key, such as `tenant:acme`: limits admit the jobs of several keys in turns
    unique: str = ""  #: hash of the key that the job holds, as in `ledger.unique.<task>.<hash>`; "": none
    version: str = (
        ""  #: version of the workflow's code that the run is bound to; "": any version that a worker has
    )
    member: Member | None = None  #: the parent of the job
    rerun_of: RerunOf | None = None  #: the source run, whose first steps a rerun copies
    on_end: tuple[Callback, ...] = ()  #: jobs to enqueue when the run has ended
    deadline_s: float | None = None  #: seconds from its first event until the run is cancelled; None: never
    inherits: tuple[str, ...] = ()  #: limits whose slot a run above it holds to its end, also for this job


class Scheduled(_Order, frozen=True, kw_only=True, tag="scheduled", gc=False):
    """The job becomes due later: as its first event, or as another time for a job that waits for one."""

    run_at: Moment  #: when it becomes due
    reason: str = ""  #: why a person moved it there


class _Ready(_Order, frozen=True, kw_only=True, gc=False):
    """The job is ready to run, except for its limits: `queued`, or `held` if it has limits."""

    cause: Cause = "new"  #: why
    attempt: Whole = 1  #: the number the next attempt will have
    reason: str = ""  #: an operator's reason for the dispatch; empty without an operator
    joined: JoinFact | None = None  #: the ends of children that wake the run; only this event counts them
    signal: SignalFact | None = None  #: the message that wakes the run; only this event records it


class Held(_Ready, frozen=True, kw_only=True, tag="held", gc=False):
    """The job waits for its limits to admit it: instead of `queued`, with the same cause, attempt and reason.

    Each names the limits and the fairness key, so that readers know its line from this event alone.
    """


class Queued(_Ready, frozen=True, kw_only=True, tag="queued", gc=False):
    """The job may be taken. This stored message *is* the work item that workers pull.

    With the cause `carried` it leaves the job as it is, waiting or running, and only replaces its work item. With the
    cause `admitted`, before the first attempt and with a small input, it has the whole order again, so that a worker
    need not read the chain; also with the cause `retried`, if the next attempt needs no more of the job.
    """

    grant: Whole = 0  #: with the cause `admitted`: stream sequence of the `granted` that admitted the job
    given_back: Whole | None = (
        None  #: in a retry with the whole order: number of attempts that do not count so far
    )

    @property
    def has_order(self) -> bool:
        """Whether it has all that a claim needs: the job's order, and the number of attempts."""
        if self.cause == "admitted":
            return self.limits != ()
        return self.cause == "new" or self.given_back is not None


class Started(Event, frozen=True, kw_only=True, tag="started", gc=False):
    """A worker claimed the job. The stream sequence of this event is the claim epoch; older ones are stale."""

    attempt: Whole  #: number of the attempt, from 1
    worker: str  #: `<host>-<pid>-<random>`, as in `jobledger workers list`
    lease_s: float  #: how long after its last renewal the worker may still be running the job


class Completed(Event, frozen=True, kw_only=True, tag="completed", gc=False):
    """The attempt returned."""

    attempt: Whole  #: which attempt, from 1
    result: msgspec.Raw = NO_VALUE  #: return value of the task
    result_ref: PayloadRef | None = None  #: place of a large result
    limited: bool = False  #: whether the job has limits; the subject then ends with `limited`
    member: Member | None = (
        None  #: the parent of the job; the subject then has `child.<parent id>` after `completed`
    )
    open_children: Whole = 0  #: number of the run's children that were open then
    unvisited: tuple[str, ...] = ()  #: keys of recorded steps that the code did not ask for
    successor: str = ""  #: id of the run that goes on where this one ended


class Failed(Event, frozen=True, kw_only=True, tag="failed", gc=False):
    """The attempt raised, timed out or could not run. Without `retry_at` and `dispatch` the next event decides.

    With `dispatch` and without `retry_at` the job is queued again by this event alone: its work item, which nobody
    acknowledged, is delivered once more. Such an event has the version 2, because a program that knows only version 1
    would misread it. With both fields, `dispatch` only refers to the event with the job's order.
    """

    attempt: Whole  #: which attempt, from 1
    error: ErrorInfo  #: why
    retry_at: Moment | None = None  #: when it will be tried again
    retry_priority: Priority | None = None  #: priority of the dispatch at `retry_at`; None: as before
    dispatch: Whole = 0  #: stream sequence of the job's newest `queued`; 0: not given
    epoch: Whole = 0  #: with `dispatch`: stream sequence of the attempt's `started`
    given_back: Whole | None = (
        None  #: number of attempts that do not count so far, if the next one needs only this and the order
    )

    @property
    def offers_again(self) -> bool:
        """Whether the job is queued again, because its work item is delivered once more."""
        return self.dispatch > 0 and self.retry_at is None


class Cancelled(Event, frozen=True, kw_only=True, tag="cancelled", gc=False):
    """The job ended by request."""

    reason: Annotated[str, REASON] = ""  #: why, if somebody said so
    member: Member | None = None  #: the parent of the job
    open_children: Whole = 0  #: number of the run's children that were open then
    calls_back: bool = False  #: whether a callback job is enqueued for this end


class Lost(Event, frozen=True, kw_only=True, tag="lost", gc=False):
    """The worker that ran the newest attempt died; the next event, in the same append, decides what follows."""

    since_form = 2
    attempt: Whole  #: which attempt, from 1
    worker: str  #: the worker that ran it, as in its `started`
    epoch: Whole  #: stream sequence of its `started`


class Interrupted(Event, frozen=True, kw_only=True, tag="interrupted", gc=False):
    """The worker gave a running job back unfinished, as in a deploy; the attempt does not count."""

    attempt: Whole  #: which attempt, from 1
    reason: str = ""  #: why


class Paused(Event, frozen=True, kw_only=True, tag="paused", gc=False):
    """The job waits for a time, for the end of a step or for a person, and holds no slot meanwhile.

    A job that a person paused while it waited (`event` is `operator`, and no attempt was running) keeps the time and
    the steps that it waited for. If these have not come when the person resumes it, another `paused` records the wait.
    """

    attempt: Whole  #: which attempt, from 1
    until: Moment | None = None  #: when the job may run again
    event: str = ""  #: the event that it waits for; `operator`: a person resumes it
    steps: tuple[str, ...] = ()  #: keys of steps: the run resumes when the first of them is over
    undos: Whole = 0  #: number of registered undos, to be done before the run ends without completing
    reason: Annotated[str, REASON] = ""  #: why a person paused it
    open_children: Whole = 0  #: of a run that a person paused: number of its children that were open then


class Snoozed(Event, frozen=True, kw_only=True, tag="snoozed", gc=False):
    """The task asked to run again later; the attempt does not count."""

    attempt: Whole  #: which attempt, from 1
    until: Moment  #: when the job may run again


class DeadLettered(Event, frozen=True, kw_only=True, tag="dead_lettered", gc=False):
    """The job cannot be finished and waits for a person.

    `exhausted`: its attempts are used up. `rejected`: the task gave up, or ended with a result that cannot be
    stored, or no worker knew the task. `invalid`: the input cannot be read. `max_deliver`: its deliveries are used up
    and none led to an outcome. `diverged`: the run's code asks for other steps than the recorded ones.
    """

    reason: DeadReason  #: why it cannot be finished
    error: ErrorInfo | None = None  #: the last error, or an account of what happened instead
    member: Member | None = None  #: the parent of the job
    open_children: Whole = 0  #: number of the run's children that were open then
    calls_back: bool = False  #: whether a callback job is enqueued for this end


class Discarded(Event, frozen=True, kw_only=True, tag="discarded", gc=False):
    """A person gave a dead letter up; it is kept for audit."""

    reason: Annotated[str, REASON] = ""  #: why, if somebody said so
    member: Member | None = None  #: the parent of the job
    open_children: Whole = 0  #: number of the run's children that were open then


class Checkpointed(Event, frozen=True, kw_only=True, tag="checkpointed", gc=False):
    """A value for the next attempt."""

    attempt: Whole  #: which attempt, from 1
    value: msgspec.Raw = NO_VALUE  #: value for the next attempt
    value_ref: PayloadRef | None = None  #: where a large value lies


class Progressed(Event, frozen=True, kw_only=True, tag="progressed", gc=False):
    """The progress that a running attempt reported."""

    attempt: Whole  #: which attempt, from 1
    done: float  #: the amount that is done
    total: float | None = None  #: the whole amount; None: not known
    note: str = ""  #: a few words on the progress


class CancelRequested(Event, frozen=True, kw_only=True, tag="cancel_requested", gc=False):
    """Somebody asked a running job to end; the worker that runs it, now or after a takeover, obeys."""

    reason: Annotated[str, REASON] = ""  #: why, if somebody said so


class Fenced(Event, frozen=True, kw_only=True, tag="fenced", gc=False):
    """The receipt of a worker whose outcome was refused because its claim was stale."""

    attempt: Whole  #: the attempt that the worker held
    worker: str  #: the worker whose outcome was refused
    held_epoch: Whole  #: the epoch of that worker's claim
    current_epoch: Whole  #: epoch of the newest claim; 0: nobody held the job any more
    outcome: str  #: the type of the event that was refused


class Carried(Event, frozen=True, kw_only=True, tag="carried", gc=False):
    """The whole job once more, because an archive run takes earlier events away; changes nothing about the job.

    A chain whose beginning lies in an archive is read from here on; its events before this one are not the whole job.
    If the job's work item is removed, too, `queued` with the cause `carried` follows in the same append: a new work
    item for the unchanged job, waiting or running. It is no attempt, and not counted as a dispatch. The sequences in
    `job_state` may be those of archived events. The many steps and signals of a long run are spread over several of
    these events in one append, each of which repeats everything else. If the job would be too large for one event, the
    attempts' tracebacks are left out.
    """

    through: Whole  #: last stream sequence that the run removes
    job_state: (
        CarriedJob  #: the job, folded from its events, with a part of its steps and signals if these are many
    )
    steps_before: Whole = 0  #: number of its steps in the `carried` events right before this one
    signals_before: Whole = 0  #: number of its signals in those events
    more: bool = False  #: whether another `carried` in the same append goes on with its steps and signals
    form: Whole = (
        0  #: form of `job_state`: which fields its writer knew; 0: those of releases without this number
    )


JobEvent = (
    Scheduled
    | Held
    | Queued
    | Started
    | Completed
    | Failed
    | Cancelled
    | Interrupted
    | Paused
    | Snoozed
    | DeadLettered
    | Discarded
    | Checkpointed
    | Progressed
    | CancelRequested
    | Fenced
    | Carried
    | StepStarted
    | StepCompleted
    | StepFailed
    | Joined
    | Signalled
    | SignalRefused
    | PauseRequested
    | Noted
    | Lost
)

EVENT_CLASSES: tuple[type[JobEvent], ...] = JobEvent.__args__


def event_type(event: JobEvent) -> str:
    """Return the event's tag as written on the wire: `queued`, `started`, ..."""
    return _TYPE_OF[type(event)]


_TYPE_OF: dict[type[JobEvent], str] = {cls: str(cls.__struct_config__.tag) for cls in EVENT_CLASSES}
EVENT_TYPES: tuple[str, ...] = tuple(_TYPE_OF.values())

_read_order = operator.attrgetter(*Order.__struct_fields__)


def order_of(event: Scheduled | Held | Queued) -> Order:
    """Return the work order in a job's first event."""
    return Order(*_read_order(event))


def order_at_first(event: JobEvent) -> Order:
    """Return the work order in the first event of a chain, even if an archive run removed the true first event."""
    if isinstance(event, Carried):
        return event.job_state.order
    assert isinstance(event, Scheduled | Held | Queued), "a chain begins with an order"
    return order_of(event)
