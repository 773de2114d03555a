"""The facts that only runs have: steps, counted children, messages; and what a person tells any job, or says of it.

They are members of `events.JobEvent`; how steps add up is in `steps`.
"""

from typing import Annotated

import msgspec

from jobledger.ledger.model.envelope import NO_VALUE, ErrorInfo, Event, Moment, PayloadRef, Whole
from jobledger.ledger.model.rights.marks import REASON
from jobledger.ledger.model.runs.orders import ChildOrder, CopiedEnd, CopiedEnds, Count, Ranges, StepKind


class _OfStep(Event, frozen=True, kw_only=True, gc=False):
    attempt: Whole  #: which attempt, from 1
    step: str  #: the step's key: `<branch>/<name>`, with `#n` from its second occurrence on
    kind: StepKind  #: what the step is
    target: str  #: what it is about: the name of a function, a task, a signal or a table
    input_sha256: str = (
        ""  #: the first 16 hex digits of its input's digest; "" where the input has no JSON form
    )


class StepStarted(_OfStep, frozen=True, kw_only=True, tag="step_started", gc=False):
    """The run is going to do this step: recorded before anything of it happens."""

    until: Moment | None = None  #: the moment at which the wait ends even if nothing has come
    order: ChildOrder | None = None  #: the children that it asks for
    items: msgspec.Raw = NO_VALUE  #: JSON array of the children's inputs, each an object of keyword arguments
    items_ref: PayloadRef | None = None  #: where a large array lies
    copied: CopiedEnd | None = (
        None  #: the event of another run that this one repeats; ends of its children follow
    )


class StepCompleted(_OfStep, frozen=True, kw_only=True, tag="step_completed", gc=False):
    """The step has its result: no later attempt of the run does it again."""

    result: msgspec.Raw = NO_VALUE  #: what it returned
    result_ref: PayloadRef | None = None  #: where a large result lies
    tries: Whole = 1  #: how often it was executed
    duration_ms: float = 0.0  #: of the last execution
    signal: Whole = 0  #: stream sequence of the event with the signal that it took; 0: it took none
    copied: CopiedEnd | None = None  #: the event of another run that this one repeats


class StepFailed(_OfStep, frozen=True, kw_only=True, tag="step_failed", gc=False):
    """A try of the step failed; without `retry_at` there is no other."""

    error: ErrorInfo  #: why
    tries: Whole = 1  #: how often it was executed
    retry_at: Moment | None = None  #: when it will be tried again; absent: it failed for good
    copied: CopiedEnd | None = None  #: the event of another run that this one repeats


class Joined(Event, frozen=True, kw_only=True, tag="joined", gc=False):
    """Ends of a step's children are counted, and further children may be made; this wakes nobody."""

    step: str  #: key of the step
    completed: Ranges = ()  #: ranges of items that completed: pairs of the first and the last
    failed: Ranges = ()  #: ranges of items that ended otherwise
    opened: Ranges = ()  #: ranges of items whose jobs may be made from now on
    count: Count | None = None  #: how many items an open group has: said once, by whoever made the last one
    copied: CopiedEnds | None = None  #: the children of another run whose ends stand for the completed ones


class Signalled(Event, frozen=True, kw_only=True, tag="signalled", gc=False):
    """Somebody sent the run a message, for which it does not wait yet."""

    name: str  #: what it is about
    id: str = ""  #: chosen by the sender: the same one twice is the same message; "": each is its own
    value: msgspec.Raw = NO_VALUE  #: what it says
    value_ref: PayloadRef | None = None  #: where a large value lies


class SignalRefused(Event, frozen=True, kw_only=True, tag="signal_refused", gc=False):
    """The wait that a message was for could not read it: no step takes the message, and the run waits on."""

    since_form = 2

    attempt: Whole  #: which attempt, from 1
    step: str  #: key of the wait
    name: str  #: what the message is about
    signal: Whole  #: stream sequence of the event with the message, which has its value
    id: str = ""  #: chosen by the sender, who may use it again now
    reason: str = ""  #: what is wrong with the value, in a sentence


class Noted(Event, frozen=True, kw_only=True, tag="noted", gc=False):
    """A person's note about the job, in whatever state the job is; it changes nothing."""

    text: str  #: at most 4,000 characters


class PauseRequested(Event, frozen=True, kw_only=True, tag="pause_requested", gc=False):
    """Somebody asked a running job to pause; its worker, or one that takes it over, obeys before the next step."""

    reason: Annotated[str, REASON] = ""  #: why, if somebody said so
