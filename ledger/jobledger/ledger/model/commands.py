"""The commands to a job, one class each. `decisions` decides which events follow from them."""

from __future__ import annotations

import operator
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import InvalidInputError, RefusedError
from jobledger.ledger.model.events import (
    LABELS,
    Cause,
    ChildOrder,
    CopiedEnd,
    DeadReason,
    ErrorInfo,
    Order,
    PayloadRef,
    Priority,
    StepKind,
)
from jobledger.ledger.model.forms import FORM
from jobledger.ledger.model.inputs import check_finite, check_note, check_whole, checked_order, keep_utc
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.runs.orders import CopiedEnds, Ranges, check_order
from jobledger.ledger.model.subjects import JobRef, check_token

STEP_KEY_MAX: Final = 500  #: characters of a step's key, and of a signal's id


class Stamp(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who appends, when, and on whose behalf."""

    at: datetime
    by: str
    trace: str = ""
    correlation: str = ""
    causation: str = ""
    authority: Principal | None = None  #: whose rights the command is decided with; None: an operator's
    form: int = FORM  #: the highest form of the events to decide: the ledger's form

    def require_everywhere(self, permission: Permission) -> None:
        """Prove that the author may act on every queue and task. Raises: AccessDeniedError."""
        if self.authority is not None:
            self.authority.require_everywhere(permission)

    def require_form(self, form: int, what: str) -> None:
        """Prove that an event of a form may be written. Raises: RefusedError, whose text begins with `what`."""
        if self.form < form:
            raise RefusedError(
                f"{what} needs form {form} of the ledger, which has form {self.form}: run `jobledger upgrade finish` when "
                "every process has the new release"
            )

    @property
    def fact(self) -> dict[str, Any]:
        """Return the fields of the stamp for a fact about a setting."""
        return {"at": self.at, "by": self.by, "trace": self.trace}


_labels_of = operator.attrgetter(*LABELS)
_NO_LABELS: Final = _labels_of(Order())


class Remove(msgspec.Struct, frozen=True, kw_only=True):
    """Take away what is set under a name, such as a limit, a route or a schedule."""

    reason: str = ""


class Enqueue(msgspec.Struct, frozen=True, kw_only=True):
    """Begin a job: queued at once, `scheduled` with `run_at`, or `held` where its order names limits."""

    ref: JobRef
    task: str
    order: Order = Order()
    run_at: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse a job that could never run, and an event that could never be read.

        Raises: InvalidInputError.
        """
        order = self.order
        if self.run_at is not None:  # most jobs have none, and this saves them a call
            keep_utc(self, "run_at")
        if order.timeout_s is not None:
            check_finite("timeout_s", order.timeout_s)
        if order.deadline_s is not None:
            check_finite("deadline_s", order.deadline_s)
        if order.max_attempts != 1:
            check_whole("max_attempts", order.max_attempts, 1)
        if order.member is not None:
            check_token("parent id", order.member.job)  # a word of the subject under which the job completes
        if order.limits or order.metadata or order.fair or _labels_of(order) != _NO_LABELS:  # seldom
            force_setattr(self, "order", checked_order(order))


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """Make a waiting job available to workers: its time came, its limit admitted it, its event arrived."""

    cause: Cause
    priority: Priority | None = None  #: None: as before
    #: `Job.wait_sequence` of the wait that this ends; it does not end a later wait. None: any wait.
    asked_by: int | None = None
    reason: str = ""  #: the reason of an operator who ends the wait
    grant: int = (
        0  #: stream sequence of the `granted` by which its limits admitted it; only with the cause `admitted`
    )


class PutBack(msgspec.Struct, frozen=True, kw_only=True):
    """Let a job with limits wait for them again, because nobody claimed it since they admitted it."""

    asked_by: int  #: `Job.wait_sequence` of the wait in its queue; a later claim or dispatch is not undone


class Reschedule(msgspec.Struct, frozen=True, kw_only=True):
    """Move the time of a job that waits for one, perhaps with another input."""

    run_at: datetime
    input: msgspec.Raw = NO_VALUE
    input_ref: PayloadRef | None = None
    reason: str = ""  #: the operator's reason

    def __post_init__(self) -> None:
        """Check the moment."""
        keep_utc(self, "run_at")


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Start the next attempt of a queued job."""

    worker: str
    lease_s: float


class TakeOver(msgspec.Struct, frozen=True, kw_only=True):
    """Take a running job from a worker whose lease expired: cancel it if asked to, start it again, or give it up."""

    worker: str
    lease_s: float
    lost_epoch: int  #: the claim that is over


class Rescue(msgspec.Struct, frozen=True, kw_only=True):
    """Put a running job, whose worker's lease is over and which nobody can take over, back into its queue.

    Its dispatch is not delivered any more: obey its cancel, dispatch it again, or give it up. The attempt is lost.
    """

    lost_epoch: int  #: the claim that is over


class Complete(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Record that the attempt returned."""

    epoch: int
    result: msgspec.Raw = NO_VALUE
    result_ref: PayloadRef | None = None
    unvisited: tuple[str, ...] = ()  #: keys of recorded steps that the code did not ask for
    successor: str = ""  #: id of the run that goes on where this one ends


class Fail(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the attempt failed; the job is retried while attempts are left."""

    epoch: int
    error: ErrorInfo
    retry_at: datetime | None = None  #: None: at once
    retry_priority: Priority | None = None  #: None: as before
    give_up: DeadReason | None = None  #: no retry, even if attempts are left
    offers_again: bool = False  #: whether the recorder then has the job's work item delivered again

    def __post_init__(self) -> None:
        """Check the moment."""
        keep_utc(self, "retry_at")


class Interrupt(msgspec.Struct, frozen=True, kw_only=True):
    """Give a running job back unfinished; the attempt does not count."""

    epoch: int
    reason: str


class Snooze(msgspec.Struct, frozen=True, kw_only=True):
    """Run again at `until`; the attempt does not count."""

    epoch: int
    until: datetime

    def __post_init__(self) -> None:
        """Check the moment."""
        keep_utc(self, "until")


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Wait for a time, an event or the end of a step without holding a slot."""

    epoch: int
    until: datetime | None = None
    event: str = ""  #: `job.OPERATOR`: wait until a person resumes it, because a person asked for the pause
    steps: tuple[str, ...] = ()  #: keys of steps: the run resumes when the first of them is over
    undos: int = 0  #: how many undos are registered

    def __post_init__(self) -> None:
        """Check the moment."""
        keep_utc(self, "until")


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Keep a value for the next attempt."""

    epoch: int
    value: msgspec.Raw = NO_VALUE
    value_ref: PayloadRef | None = None


class ReportProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Report how far the attempt is."""

    epoch: int
    done: float
    total: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        """Check the numbers, which come from users' arithmetic."""
        check_finite("done", self.done)
        check_finite("total", self.total)


class CancelJob(msgspec.Struct, frozen=True, kw_only=True):
    """End a waiting job at once; ask a running one to end."""

    reason: str = ""


class ConfirmCancel(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the running attempt ended by request: somebody's, or its own."""

    epoch: int
    reason: str = ""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Give up a job that has no outcome, for example after too many deliveries."""

    reason: DeadReason
    epoch: int = 0  #: the claim under which the caller found it running; 0: found queued
    error: ErrorInfo | None = None


class Requeue(msgspec.Struct, frozen=True, kw_only=True):
    """Give a dead letter new attempts, perhaps with another input."""

    attempts: int = 1  #: how many more it may have
    input: msgspec.Raw = NO_VALUE
    input_ref: PayloadRef | None = None
    priority: Priority | None = None
    reason: str = ""


class Discard(msgspec.Struct, frozen=True, kw_only=True):
    """Close a dead letter for good; everything is kept."""

    reason: str = ""


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """Record the receipt of a refused outcome."""

    epoch: int
    attempt: int
    worker: str
    outcome: str


class Carry(msgspec.Struct, frozen=True, kw_only=True):
    """Store the whole job once more, unchanged, before events up to `through` are removed."""

    through: int  #: stream sequence
    tracebacks: bool = (
        True  #: False: without the tracebacks of its attempts, which may make the event too large
    )


class StartStep(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the run is going to do a step. Its key has at most `STEP_KEY_MAX` characters."""

    epoch: int
    step: str
    kind: StepKind
    target: str
    input_sha256: str = ""
    until: datetime | None = None
    order: ChildOrder | None = None
    items: msgspec.Raw = NO_VALUE
    items_ref: PayloadRef | None = None
    copied: CopiedEnd | None = None

    def __post_init__(self) -> None:
        """Check key, moment and children.

        Raises: InvalidInputError.
        """
        _check_key(self.step)
        keep_utc(self, "until")
        if self.order is not None:
            check_order(self.order)


class CompleteStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Record the result of a step."""

    epoch: int
    step: str
    kind: StepKind
    target: str
    input_sha256: str = ""
    result: msgspec.Raw = NO_VALUE
    result_ref: PayloadRef | None = None
    tries: int = 1
    duration_ms: float = 0.0
    signal: int = 0  #: `KeptSignal.sequence` of the signal that the step takes
    copied: CopiedEnd | None = None

    def __post_init__(self) -> None:
        """Check the key."""
        _check_key(self.step)


class FailStep(msgspec.Struct, frozen=True, kw_only=True):
    """Record that a try of a step failed; without `retry_at` for good."""

    epoch: int
    step: str
    kind: StepKind
    target: str
    error: ErrorInfo
    input_sha256: str = ""
    tries: int = 1
    retry_at: datetime | None = None
    copied: CopiedEnd | None = None

    def __post_init__(self) -> None:
        """Check key and moment."""
        _check_key(self.step)
        keep_utc(self, "retry_at")


class CopyEnds(msgspec.Struct, frozen=True, kw_only=True):
    """Count ends of another run's children as ends of children of a step that was begun as a copy."""

    epoch: int
    step: str
    completed: Ranges
    copied: CopiedEnds


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """Count ends of children of a step; ends that are counted already are left out."""

    step: str
    completed: Ranges = ()
    failed: Ranges = ()  #: cancelled or discarded
    dead: Ranges = ()  #: dead letters; the step's order decides whether these count as ended
    count: int | None = None  #: how many items an open group has, once that is known


class GiveSignal(msgspec.Struct, frozen=True, kw_only=True):
    """Send the run a message; one with the id of an earlier message is refused."""

    name: str
    id: str = ""
    value: msgspec.Raw = NO_VALUE
    value_ref: PayloadRef | None = None

    def __post_init__(self) -> None:
        """Check name and id.

        Raises: InvalidTokenError, InvalidInputError.
        """
        check_token("signal", self.name)
        if len(self.id) > STEP_KEY_MAX:
            raise InvalidInputError(
                f"the id of signal {self.name!r} has {len(self.id):,} characters, at most {STEP_KEY_MAX} are allowed"
            )


class RefuseSignal(msgspec.Struct, frozen=True, kw_only=True):
    """Record that a wait cannot read the oldest message of its name, which then counts as not sent."""

    epoch: int
    step: str  #: key of the wait
    name: str
    signal: int  #: `KeptSignal.sequence` of the message
    reason: str

    def __post_init__(self) -> None:
        """Check the key."""
        _check_key(self.step)


class RequestPause(msgspec.Struct, frozen=True, kw_only=True):
    """Pause a waiting job at once, until a person resumes it; ask a running one to pause."""

    reason: str = ""


class ResumeJob(msgspec.Struct, frozen=True, kw_only=True):
    """End a person's pause of a job: run the job if the awaited thing has come, else let it wait as before."""

    reason: str = ""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Keep a person's note about a job."""

    text: str
    sealed: str = ""  #: the text as it is stored of a job that has an owner

    def __post_init__(self) -> None:
        """Check the text. Raises: InvalidInputError."""
        check_note(self.text)


def _check_key(key: str) -> None:
    if not 0 < len(key) <= STEP_KEY_MAX:
        raise InvalidInputError(
            f"the step key {key[:40]!r} has {len(key):,} characters: 1 to {STEP_KEY_MAX} are allowed"
        )


StepCommand = StartStep | CompleteStep | FailStep

Command = (
    Enqueue
    | Dispatch
    | PutBack
    | Reschedule
    | Claim
    | TakeOver
    | Rescue
    | Complete
    | Fail
    | Interrupt
    | Snooze
    | Pause
    | Checkpoint
    | ReportProgress
    | CancelJob
    | ConfirmCancel
    | DeadLetter
    | Requeue
    | Discard
    | Fence
    | Carry
    | StepCommand
    | RefuseSignal
    | CopyEnds
    | Join
    | GiveSignal
    | RequestPause
    | ResumeJob
    | Note
)

Outcome = Complete | Fail | Interrupt | Snooze | Pause | ConfirmCancel
ClaimHolderCommand = Outcome | Checkpoint | ReportProgress | StepCommand | RefuseSignal | CopyEnds
