"""The facts that only runs have: steps, counted children, messages; also notes on any job, and requests to pause.

They are members of `events.JobEvent`; how steps add up is in `steps`.
"""

from typing import Annotated

import msgspec

from jobledger.ledger.model.envelope import NO_VALUE, ErrorInfo, Event, Moment, PayloadRef, Whole
from jobledger.ledger.model.rights.marks import REASON
from jobledger.ledger.model.runs.orders import ChildOrder, CopiedEnd, CopiedEnds, Count, Ranges, StepKind


class _OfStep(Event, frozen=True, kw_only=True, gc=False):
    attempt: Whole  #: number of the attempt, from 1
    step: str  #: the step's key: `<branch>/<name>`, with `#n` from its second occurrence on
    kind: StepKind  #: kind of the step
    target: str  #: name of a function, a task, a signal or a table
    input_sha256: str = ""  #: the first 16 hex digits of its input's digest; "" if the input has no JSON form


class StepStarted(_OfStep, frozen=True, kw_only=True, tag="step_started", gc=False):
    """The run begins this step: recorded before anything of it happens."""

    until: Moment | None = None  #: end of the wait even if nothing has come
    order: ChildOrder | None = None  #: the children that it asks for
    items: msgspec.Raw = NO_VALUE  #: JSON array of the children's inputs, each an object of keyword arguments
    items_ref: PayloadRef | None = None  #: place of a large array
    copied: CopiedEnd | None = None  #: event of another run that this one copies; ends of its children follow


class StepCompleted(_OfStep, frozen=True, kw_only=True, tag="step_completed", gc=False):
    """The step has its result, so no later attempt of the run does it again."""

    result: msgspec.Raw = NO_VALUE  #: its result
    result_ref: PayloadRef | None = None  #: place of a large result
    tries: Whole = 1  #: number of executions
    duration_ms: float = 0.0  #: duration of the last execution
    signal: Whole = 0  #: stream sequence of the event with the signal that it took; 0: it took none
    copied: CopiedEnd | None = None  #: event of another run that this one copies


class StepFailed(_OfStep, frozen=True, kw_only=True, tag="step_failed", gc=False):
    """A try of the step failed; without `retry_at` it was the last one."""

    error: ErrorInfo  #: the error
    tries: Whole = 1  #: number of executions
    retry_at: Moment | None = None  #: time of the next try; absent: it failed for good
    copied: CopiedEnd | None = None  #: event of another run that this one copies


class Joined(Event, frozen=True, kw_only=True, tag="joined", gc=False):
    """Ends of a step's children are counted, and further children may be made; it does not wake the run."""

    step: str  #: key of the step
    completed: Ranges = ()  #: ranges of items that completed: pairs of the first and the last
    failed: Ranges = ()  #: ranges of items that ended otherwise
    opened: Ranges = ()  #: ranges of items whose jobs may be made from now on
    count: Count | None = None  #: number of items of an open group, set once, with its last item
    copied: CopiedEnds | None = None  #: children of another run whose ends stand for the completed ones


class Signalled(Event, frozen=True, kw_only=True, tag="signalled", gc=False):
    """The run was sent a message that it does not wait for yet."""

    name: str  #: name of the signal
    id: str = ""  #: id chosen by the sender: two messages of one id are one; "": each is its own
    value: msgspec.Raw = NO_VALUE  #: its value
    value_ref: PayloadRef | None = None  #: place of a large value


class SignalRefused(Event, frozen=True, kw_only=True, tag="signal_refused", gc=False):
    """The wait for a message could not read its value: no step takes the message, and the run waits on."""

    since_form = 2

    attempt: Whole  #: number of the attempt, from 1
    step: str  #: key of the wait
    name: str  #: name of the signal
    signal: Whole  #: stream sequence of the event with the message, which has its value
    id: str = ""  #: id chosen by the sender, who may use it again now
    reason: str = ""  #: a sentence on what is wrong with the value


class Noted(Event, frozen=True, kw_only=True, tag="noted", gc=False):
    """A person's note about the job, in whatever state the job is; it changes nothing."""

    text: str  #: at most 4,000 characters


class PauseRequested(Event, frozen=True, kw_only=True, tag="pause_requested", gc=False):
    """A person asked a running job to pause; its worker, or one that takes it over, obeys before the next step."""

    reason: Annotated[str, REASON] = ""  #: reason, if one was given
