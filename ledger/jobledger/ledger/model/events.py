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
#: `carried` leaves the job as it is, waiting or running: it only puts a fresh work item where an archive run takes the
#: old one away. `ungranted` makes an unclaimed job wait for its limits again. `cancelling` lets a run that waits, and
#: is to end, undo what it did.
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

#: The states of a job and of an attempt as they are written: the words of `job.JobState` and `job.AttemptState`, but
#: `waiting`, which is `paused` without `paused_by_operator`.
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
    """The work order of a job: all that its enqueuer asks for, beside its name, its task and its time.

    Declared here for code that handles one as a whole; the events that begin a job have the same fields, flat.
    A part of `carried`, so released fields never change type, meaning or name.
    """

    priority: Priority = "normal"  #: which of the queue's three lanes the job waits in
    input: msgspec.Raw = (
        NO_VALUE  #: JSON object of keyword arguments; absent where `input_ref` says where it lies
    )
    input_ref: PayloadRef | None = None  #: where a large input lies
    max_attempts: Whole = 1  #: how many `started` the job may have, beyond those given back
    timeout_s: float | None = None  #: of one attempt; None: no limit
    notify: str = ""  #: token of the inbox that wants a hint when the job ends
    tenant: str = ""  #: whom the job belongs to
    limits: tuple[str, ...] = ()  #: names of the limits the job waits for
    batch: str = ""  #: the batch the job is part of
    tick: str = ""  #: `<schedule>-<tick>` of the schedule that made the job
    trace: str = (
        ""  #: W3C traceparent of the enqueuer; where that has none, the job's own follows from its id
    )
    correlation: str = ""  #: the first cause the job belongs to: a batch, a run, a request
    metadata: dict[str, str] = {}  #: pairs of words that the enqueuer said of the job
    fair: str = ""  #: the fairness key, such as `tenant:acme`: limits admit the jobs of several keys in turns
    unique: str = ""  #: hash of the key that the job holds, as in `ledger.unique.<task>.<hash>`; "": none
    version: str = ""  #: of the workflow's code that the run is bound to; "": whichever a worker has
    member: Member | None = None  #: whose child the job is
    rerun_of: RerunOf | None = None  #: the run whose first steps it begins with
    on_end: tuple[Callback, ...] = ()  #: what is enqueued when the run has ended
    deadline_s: float | None = None  #: how long after its first event the run is cancelled; None: never
    inherits: tuple[str, ...] = ()  #: limits of which runs above it hold a slot to their end, also for it
    key: str = ""  #: `<owner>/<number>` of the key that seals the job's values; "": they are in the clear


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
    """What a running attempt last said of itself; the fields are `job.Progress`'s."""

    done: float  #: how much is done
    total: float | None  #: of how much
    note: str  #: a word about it


class CarriedJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job as its events added up, without the names that the envelope has; the fields are `job.Job`'s.

    A form of its own, because what is stored must stay readable however `job.Job` changes: a released field stays,
    a new one has a default.
    """

    state: StateName  #: where the job is; `paused` without `paused_by_operator` is the state `waiting`
    created_at: Moment  #: time of its first event
    updated_at: Moment  #: time of its newest event
    last_sequence: (
        Whole  #: stream sequence of the newest event that is added up here: the one before `carried`
    )
    order: Order = Order()  #: as requeues and retries changed it
    attempts: tuple[CarriedAttempt, ...] = ()  #: the newest ones, in their order
    attempts_dropped: Counted = 0  #: how many older attempts are not among them
    attempts_given_back: Whole = 0  #: interrupted, snoozed and paused attempts, which do not count
    claim_epoch: Whole = 0  #: of the running attempt; 0 when nobody holds the job
    dispatches: Whole = 0  #: `queued` events since the last `started` or `held`
    dispatch_sequence: Whole = 0  #: stream sequence of the newest `queued`
    wait_sequence: Whole = (
        0  #: stream sequence of the event that began the present wait; 0 when it does not wait
    )
    due_at: Moment | None = None  #: when a waiting job moves on by itself
    finished_at: Moment | None = None  #: when the present final state was entered
    result: msgspec.Raw = NO_VALUE  #: what the task returned
    result_ref: PayloadRef | None = None  #: where a large result lies
    error: ErrorInfo | None = None  #: of the newest failed attempt or of the dead letter
    dead_reason: DeadReason | None = None  #: why a dead letter cannot be finished
    cancel_requested: bool = False  #: whether somebody asked the running attempt to end
    cancel_reason: Annotated[str, REASON] = ""  #: why
    checkpoint: msgspec.Raw = NO_VALUE  #: what the next attempt is handed
    checkpoint_ref: PayloadRef | None = None  #: where a large checkpoint lies
    progress: CarriedProgress | None = None  #: what the running attempt last said of itself
    fenced_count: Whole = 0  #: outcomes of stale claims that were refused
    grant: Whole = 0  #: stream sequence of its newest `granted`; 0: none since its enqueue or requeue
    steps: tuple[CarriedStep, ...] = ()  #: of a run, in the order of their first events
    signals: tuple[CarriedSignal, ...] = ()  #: messages to a run, in their order
    awaited: tuple[str, ...] = ()  #: keys of steps: the first of them that is over resumes the run
    undos: Whole = 0  #: how many undos the newest `paused` said are registered
    advanced: bool = False  #: whether the running attempt recorded the end of a step
    pause_requested: bool = False  #: whether somebody asked the running attempt to pause
    paused_by_operator: bool = False  #: whether the job waits until a person resumes it
    pause_reason: Annotated[str, REASON] = ""  #: why
    created_by: str = ""  #: who appended its first event; "": that one was gone already


class _Order(Event, frozen=True, kw_only=True, gc=False):
    """The fields of `Order`, flat: what a job's first event says, whichever of the three it is."""

    priority: Priority = "normal"  #: which of the queue's three lanes the job waits in
    input: msgspec.Raw = (
        NO_VALUE  #: JSON object of keyword arguments; absent when `input_ref` or an earlier event has it
    )
    input_ref: PayloadRef | None = None  #: where a large input lies
    max_attempts: Whole = 1  #: how many `started` the job may have, beyond those given back
    timeout_s: float | None = None  #: of one attempt; None: no limit
    notify: str = ""  #: token of the inbox that wants a hint when the job ends
    tenant: str = ""  #: whom the job belongs to
    limits: tuple[str, ...] = ()  #: names of the limits the job waits for
    batch: str = ""  #: the batch the job is part of
    tick: str = ""  #: `<schedule>-<tick>` of the schedule that made the job
    metadata: dict[str, str] = {}  #: pairs of words that the enqueuer said of the job
    fair: str = ""  #: the fairness key, such as `tenant:acme`: limits admit the jobs of several keys in turns
    unique: str = ""  #: hash of the key that the job holds, as in `ledger.unique.<task>.<hash>`; "": none
    version: str = ""  #: of the workflow's code that the run is bound to; "": whichever a worker has
    member: Member | None = None  #: whose child the job is
    rerun_of: RerunOf | None = None  #: the run whose first steps it begins with
    on_end: tuple[Callback, ...] = ()  #: what is enqueued when the run has ended
    deadline_s: float | None = None  #: how long after its first event the run is cancelled; None: never
    inherits: tuple[str, ...] = ()  #: limits of which runs above it hold a slot to their end, also for it


class Scheduled(_Order, frozen=True, kw_only=True, tag="scheduled", gc=False):
    """The job becomes due later: as its first event, or as another time for a job that waits for one."""

    run_at: Moment  #: when it becomes due
    reason: str = ""  #: why a person moved it there


class _Ready(_Order, frozen=True, kw_only=True, gc=False):
    """The job is ready to run but for its limits: `queued`, or `held` where it has limits."""

    cause: Cause = "new"  #: why
    attempt: Whole = 1  #: the number the next attempt will have
    reason: str = ""  #: why an operator dispatched it; empty where the job's own course did
    joined: JoinFact | None = None  #: the ends of children that wake the run, counted here and nowhere else
    signal: SignalFact | None = None  #: the message that wakes the run, recorded here and nowhere else


class Held(_Ready, frozen=True, kw_only=True, tag="held", gc=False):
    """The job waits for its limits to admit it: instead of `queued`, with the same cause, attempt and reason.

    Each names the limits and the fairness key, so that it says by itself which line it joins.
    """


class Queued(_Ready, frozen=True, kw_only=True, tag="queued", gc=False):
    """The job may be taken. This stored message *is* the work item that workers pull.

    With the cause `carried` it leaves the job as it is, waiting or running, and only replaces its work item. With the
    cause `admitted`, before the first attempt and with a small input, it has the whole order again, so that a worker
    need not read the chain; so it has with the cause `retried` where the next attempt needs no more of the job.
    """

    grant: Whole = 0  #: where the cause is `admitted`: stream sequence of the `granted` that admitted the job
    given_back: Whole | None = (
        None  #: where a retry has the whole order: how many attempts do not count so far
    )

    @property
    def has_order(self) -> bool:
        """Whether it says all that a claim needs: the job's order, and how many attempts there were."""
        if self.cause == "admitted":
            return self.limits != ()
        return self.cause == "new" or self.given_back is not None


class Started(Event, frozen=True, kw_only=True, tag="started", gc=False):
    """A worker claimed the job. The stream sequence of this event is the claim epoch; older ones are stale."""

    attempt: Whole  #: 1 for the first
    worker: str  #: `<host>-<pid>-<random>`, as in `jobledger workers list`
    lease_s: float  #: how long after its last renewal the worker may still be running the job


class Completed(Event, frozen=True, kw_only=True, tag="completed", gc=False):
    """The attempt returned."""

    attempt: Whole  #: which attempt, from 1
    result: msgspec.Raw = NO_VALUE  #: what the task returned
    result_ref: PayloadRef | None = None  #: where a large result lies
    limited: bool = False  #: whether the job has limits; the subject then ends with `limited`
    member: Member | None = (
        None  #: whose child the job is; the subject then has `child.<parent id>` after `completed`
    )
    open_children: Whole = 0  #: how many children of the run did not end before it
    unvisited: tuple[str, ...] = ()  #: keys of steps that are recorded and that the code did not ask for
    successor: str = ""  #: id of the run that goes on where this one ended


class Failed(Event, frozen=True, kw_only=True, tag="failed", gc=False):
    """The attempt raised, timed out or could not run. Without `retry_at` and `dispatch` the next event decides.

    With `dispatch` and without `retry_at` the job is queued again by this event alone: its work item, which nobody
    acknowledged, is delivered once more. Such an event has the version 2, because a program that does not know that
    would misread it. With both fields, `dispatch` only refers to the event with the job's order.
    """

    attempt: Whole  #: which attempt, from 1
    error: ErrorInfo  #: why
    retry_at: Moment | None = None  #: when it will be tried again
    retry_priority: Priority | None = None  #: of the dispatch at `retry_at`; None: as before
    dispatch: Whole = 0  #: stream sequence of the job's newest `queued`; 0: not said
    epoch: Whole = 0  #: where `dispatch` is given: stream sequence of the attempt's `started`
    given_back: Whole | None = (
        None  #: how many attempts do not count so far, if the next one needs only that and the order
    )

    @property
    def offers_again(self) -> bool:
        """Whether the job is queued again, because its work item is delivered once more."""
        return self.dispatch > 0 and self.retry_at is None


class Cancelled(Event, frozen=True, kw_only=True, tag="cancelled", gc=False):
    """The job ended by request."""

    reason: Annotated[str, REASON] = ""  #: why, if somebody said so
    member: Member | None = None  #: whose child the job is
    open_children: Whole = 0  #: how many children of the run did not end before it
    calls_back: bool = False  #: whether a job is enqueued that is told of it


class Lost(Event, frozen=True, kw_only=True, tag="lost", gc=False):
    """The worker that ran the newest attempt died; the next event, in the same append, says what follows."""

    since_form = 2
    attempt: Whole  #: which attempt, from 1
    worker: str  #: who ran it, as its `started` says
    epoch: Whole  #: stream sequence of its `started`


class Interrupted(Event, frozen=True, kw_only=True, tag="interrupted", gc=False):
    """The worker gave a running job back unfinished, as in a deploy; the attempt does not count."""

    attempt: Whole  #: which attempt, from 1
    reason: str = ""  #: why


class Paused(Event, frozen=True, kw_only=True, tag="paused", gc=False):
    """The job waits for a time, for the end of a step or for a person, and holds no slot meanwhile.

    One that a person paused while it waited (`event` is `operator`, and no attempt was running) keeps the time and the
    steps that it waited for. If they have not come when the person lets it go on, another `paused` says so.
    """

    attempt: Whole  #: which attempt, from 1
    until: Moment | None = None  #: when the job may run again
    event: str = ""  #: what it waits for; `operator`: that a person resumes it
    steps: tuple[str, ...] = ()  #: keys of steps: the first of them that is over resumes the run
    undos: Whole = (
        0  #: how many undos are registered, to be done before the run ends without having completed
    )
    reason: Annotated[str, REASON] = ""  #: why a person paused it
    open_children: Whole = 0  #: of a run that a person paused: how many children did not end before it


class Snoozed(Event, frozen=True, kw_only=True, tag="snoozed", gc=False):
    """The task asked to run again later; the attempt does not count."""

    attempt: Whole  #: which attempt, from 1
    until: Moment  #: when the job may run again


class DeadLettered(Event, frozen=True, kw_only=True, tag="dead_lettered", gc=False):
    """The job cannot be finished and waits for a person.

    `exhausted`: its attempts are used up. `rejected`: the task gave up, or ended with a result that cannot be
    stored, or no worker knew the task. `invalid`: the input cannot be read. `max_deliver`: its deliveries are used up
    and none led to an outcome. `diverged`: the run's code asks for something else than its steps recorded.
    """

    reason: DeadReason  #: why it cannot be finished
    error: ErrorInfo | None = None  #: the last error, or what happened where there was none
    member: Member | None = None  #: whose child the job is
    open_children: Whole = 0  #: how many children of the run did not end before it
    calls_back: bool = False  #: whether a job is enqueued that is told of it


class Discarded(Event, frozen=True, kw_only=True, tag="discarded", gc=False):
    """A person gave a dead letter up; it is kept for audit."""

    reason: Annotated[str, REASON] = ""  #: why, if somebody said so
    member: Member | None = None  #: whose child the job is
    open_children: Whole = 0  #: how many children of the run did not end before it


class Checkpointed(Event, frozen=True, kw_only=True, tag="checkpointed", gc=False):
    """A value that the next attempt is handed."""

    attempt: Whole  #: which attempt, from 1
    value: msgspec.Raw = NO_VALUE  #: what the next attempt is handed
    value_ref: PayloadRef | None = None  #: where a large value lies


class Progressed(Event, frozen=True, kw_only=True, tag="progressed", gc=False):
    """How far a running attempt says it is."""

    attempt: Whole  #: which attempt, from 1
    done: float  #: how much is done
    total: float | None = None  #: of how much; None: not known
    note: str = ""  #: a word about it


class CancelRequested(Event, frozen=True, kw_only=True, tag="cancel_requested", gc=False):
    """Somebody wants a running job to end; whoever runs it, now or after a takeover, obeys."""

    reason: Annotated[str, REASON] = ""  #: why, if somebody said so


class Fenced(Event, frozen=True, kw_only=True, tag="fenced", gc=False):
    """The receipt of a worker whose outcome was refused because its claim was stale."""

    attempt: Whole  #: the attempt that the worker held
    worker: str  #: whose outcome was refused
    held_epoch: Whole  #: its claim
    current_epoch: Whole  #: 0 when nobody held the job any more
    outcome: str  #: the type of the event that was refused


class Carried(Event, frozen=True, kw_only=True, tag="carried", gc=False):
    """The whole job once more, because an archive run takes earlier events away; changes nothing about the job.

    A chain whose beginning lies in an archive is read from here on; what is left of it before this event is not the
    whole job. Where the job's work item goes away too, `queued` with the cause `carried` follows in the same append: a
    fresh work item for the job as it is, waiting or running. That is neither an attempt nor counted as a dispatch. The
    sequences in `job_state` may be those of archived events. The many steps and signals of a long run are spread
    over several of these events in one append, each of which repeats everything else. If the job would be too large
    for one event, the attempts' tracebacks are left out.
    """

    through: Whole  #: last stream sequence that the run removes
    job_state: CarriedJob  #: the job, folded from its events; of many steps and signals only some
    steps_before: Whole = 0  #: number of its steps in the `carried` events right before this one
    signals_before: Whole = 0  #: number of its signals in those events
    more: bool = False  #: whether another `carried` in the same append goes on with its steps and signals
    form: Whole = (
        0  #: of `job_state`: which fields its writer knew; 0: those of the releases before this number
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
    """Return the work order in the first event of a chain, also where an archive run took the true first one."""
    if isinstance(event, Carried):
        return event.job_state.order
    assert isinstance(event, Scheduled | Held | Queued), "a chain begins with an order"
    return order_of(event)
