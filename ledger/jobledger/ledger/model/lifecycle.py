"""The events of a job as one table, with all properties of each type in one row.

From these rows follow which event may come next, what a job waits for, what is counted, what is kept of an event, and
its words for a person. `evolve` in `job` applies an event to a job; there is no third place. Pure. Tables are built
when this module is loaded, so that each event costs only a look into one of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from jobledger.ledger.model.attempts import AttemptState
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.event_words import (
    of_attempt,
    of_completed,
    of_dead_letter,
    of_end,
    of_failure,
    of_held,
    of_joined,
    of_pause,
    of_progress,
    of_queued,
    of_reason,
    of_refused_signal,
    of_scheduled,
    of_signal,
    of_step_end,
    of_step_started,
)
from jobledger.ledger.model.events import (
    EVENT_CLASSES,
    Cancelled,
    CancelRequested,
    Carried,
    CarriedJob,
    CarriedStep,
    Cause,
    Checkpointed,
    Completed,
    DeadLettered,
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
)
from jobledger.ledger.model.job import CLOSED_STATES, PENDING_STATES, JobState

#: The store of a large value: inputs and checkpoints stay as long as the ledger, results for a week.
StoreName = Literal["inputs", "results"]

E = TypeVar("E", bound=Event)
_replace: Final = msgspec.structs.replace
_NO_ERROR: Final = ErrorInfo(kind="exception", type="", message="")


class Row(msgspec.Struct, Generic[E], frozen=True, kw_only=True):
    """All properties of a type of event."""

    after: frozenset[JobState | None]  #: the states in which it may follow; None: before a job's first event
    to: tuple[
        JobState, ...
    ] = ()  #: the state, or states, to which it leads; empty: the state does not change
    ends: AttemptState | None = None  #: the state of the running attempt after it; None: the attempt goes on
    claimed: bool = False  #: only the holder of the claim may append it, about the running attempt
    order: bool = False  #: it has the fields of a work order
    due: str = ""  #: the name of its field with the moment at which the job goes on by itself
    payloads: tuple[
        tuple[StoreName, str], ...
    ] = ()  #: its fields that refer to a large value, with the store of each
    lean: Callable[[E], E] | None = (
        None  #: returns the event without the values that no check looks at; None: it has no such values
    )
    counted: bool = True  #: statistics count it under its own name
    words: Callable[[E], str]  #: returns its content beyond its type, for a person; "" if there is none


_S = JobState
_ANY: Final = frozenset[JobState | None](JobState)
_RUNNING: Final = frozenset[JobState | None]({_S.RUNNING})
_CLOSED: Final = frozenset[JobState | None](CLOSED_STATES)
_FROM_NOTHING: Final = frozenset[JobState | None]({None})
_INPUTS: Final[tuple[tuple[StoreName, str], ...]] = (("inputs", "input_ref"),)
_WAKING: Final[tuple[tuple[StoreName, str], ...]] = (*_INPUTS, ("inputs", "signal.value_ref"))
_NO_ORDER: Final[dict[str, Any]] = {
    "input": NO_VALUE,
    "input_ref": None,
    "trace": "",
    "correlation": "",
    "notify": "",
    "metadata": {},
}


def _without(**values: Any) -> Callable[[Any], Any]:
    return lambda event: _replace(event, **values)


def lean_order(order: Order) -> Order:
    """Return a work order without the values that no check looks at."""
    return _replace(order, **_NO_ORDER)


def _lean_carried(event: Carried) -> Carried:
    state = event.job_state
    attempts = tuple(
        each if each.error is None else _replace(each, error=_NO_ERROR) for each in state.attempts
    )
    no_values: dict[str, Any] = {
        "error": None,
        "result": NO_VALUE,
        "checkpoint": NO_VALUE,
        "checkpoint_ref": None,
        "steps": tuple(map(_lean_step, state.steps)),
        "signals": tuple(_replace(each, value=NO_VALUE, value_ref=None) for each in state.signals),
    }
    order = lean_order(state.order)
    return _replace(event, job_state=_replace(state, order=order, attempts=attempts, **no_values))


_R = TypeVar("_R", Held, Queued)


def _lean_ready(event: _R) -> _R:
    signal = None if event.signal is None else _replace(event.signal, value=NO_VALUE)
    return _replace(event, signal=signal, **_NO_ORDER)


def _lean_step(step: CarriedStep) -> CarriedStep:
    """Return a step without what `lean` takes from its events."""
    return _replace(step, result=NO_VALUE, items=NO_VALUE, error=None)


LIFECYCLE: Final[Mapping[type[JobEvent], Row[Any]]] = MappingProxyType(
    {
        Scheduled: Row[Scheduled](
            after=_FROM_NOTHING | {_S.SCHEDULED, _S.RETRY_WAIT, _S.PAUSED},
            to=(_S.SCHEDULED,),
            order=True,
            due="run_at",
            payloads=_INPUTS,
            lean=_without(**_NO_ORDER),
            counted=False,
            words=of_scheduled,
        ),
        Held: Row[Held](
            after=(_FROM_NOTHING | PENDING_STATES | {_S.DEAD_LETTERED}) - {_S.HELD},
            to=(_S.HELD,),
            order=True,
            payloads=_WAKING,
            lean=_lean_ready,
            counted=False,
            words=of_held,
        ),
        Queued: Row[Queued](
            after=_FROM_NOTHING | _RUNNING | PENDING_STATES | {_S.DEAD_LETTERED},
            to=(_S.QUEUED,),
            order=True,
            payloads=_WAKING,
            lean=_lean_ready,
            counted=False,
            words=of_queued,
        ),
        Started: Row[Started](
            after=_RUNNING | {_S.QUEUED},
            to=(_S.RUNNING,),
            words=lambda event: f"attempt {event.attempt} on {event.worker}",
        ),
        Completed: Row[Completed](
            after=_RUNNING,
            to=(_S.COMPLETED,),
            ends="completed",
            claimed=True,
            payloads=(("results", "result_ref"),),
            words=of_completed,
        ),
        Failed: Row[Failed](
            after=_RUNNING,
            to=(_S.RETRY_WAIT, _S.QUEUED),  # its work item is delivered again
            ends="failed",
            claimed=True,
            due="retry_at",
            lean=_without(error=_NO_ERROR),
            words=of_failure,
        ),
        Interrupted: Row[Interrupted](
            after=_RUNNING,
            to=(_S.RETRY_WAIT,),
            ends="interrupted",
            claimed=True,
            words=lambda event: of_attempt(event.attempt, event.reason),
        ),
        Snoozed: Row[Snoozed](
            after=_RUNNING,
            to=(_S.RETRY_WAIT,),
            ends="snoozed",
            claimed=True,
            due="until",
            words=lambda event: of_attempt(event.attempt, until=event.until),
        ),
        Paused: Row[Paused](
            after=_RUNNING | PENDING_STATES,  # only a person pauses a waiting job
            to=(_S.WAITING, _S.PAUSED),  # as its attempt asks, or as a person does
            ends="paused",
            claimed=True,
            due="until",
            words=of_pause,
        ),
        Cancelled: Row[Cancelled](
            after=_RUNNING | PENDING_STATES, to=(_S.CANCELLED,), ends="cancelled", words=of_end
        ),
        DeadLettered: Row[DeadLettered](
            after=_RUNNING | {_S.QUEUED, _S.RETRY_WAIT},
            to=(_S.DEAD_LETTERED,),
            ends="lost",
            lean=_without(error=None),
            words=of_dead_letter,
        ),
        Discarded: Row[Discarded](
            after=frozenset({_S.DEAD_LETTERED}), to=(_S.DISCARDED,), ends="lost", words=of_end
        ),
        Checkpointed: Row[Checkpointed](
            after=_RUNNING,
            claimed=True,
            payloads=(("inputs", "value_ref"),),
            lean=_without(value=NO_VALUE, value_ref=None),
            counted=False,
            words=lambda event: f"attempt {event.attempt}",
        ),
        Progressed: Row[Progressed](after=_RUNNING, claimed=True, counted=False, words=of_progress),
        CancelRequested: Row[CancelRequested](
            after=_RUNNING | {_S.QUEUED, _S.HELD}, counted=False, words=of_reason
        ),
        Fenced: Row[Fenced](
            after=_ANY,
            words=lambda event: f"{event.outcome} of {event.worker} came after its claim expired",
        ),
        Carried: Row[Carried](
            after=_ANY | _FROM_NOTHING,
            due="job_state.due_at",
            payloads=(
                ("inputs", "job_state.order.input_ref"),
                ("inputs", "job_state.checkpoint_ref"),
                ("results", "job_state.result_ref"),
                ("inputs", "job_state.steps[].result_ref"),
                ("inputs", "job_state.steps[].items_ref"),
                ("inputs", "job_state.signals[].value_ref"),
            ),
            lean=_lean_carried,
            counted=False,
            words=lambda event: f"whole, since events up to {event.through} go into an archive",
        ),
        StepStarted: Row[StepStarted](
            after=_RUNNING,
            claimed=True,
            payloads=(("inputs", "items_ref"),),
            lean=_without(items=NO_VALUE),
            counted=False,
            words=of_step_started,
        ),
        StepCompleted: Row[StepCompleted](
            after=_RUNNING,
            claimed=True,
            payloads=(("inputs", "result_ref"),),
            lean=_without(result=NO_VALUE),
            counted=False,
            words=of_step_end,
        ),
        StepFailed: Row[StepFailed](
            after=_RUNNING, claimed=True, lean=_without(error=_NO_ERROR), counted=False, words=of_step_end
        ),
        Joined: Row[Joined](after=_ANY - _CLOSED, counted=False, words=of_joined),
        Signalled: Row[Signalled](
            after=_RUNNING | PENDING_STATES,
            payloads=(("inputs", "value_ref"),),
            lean=_without(value=NO_VALUE),
            counted=False,
            words=of_signal,
        ),
        SignalRefused: Row[SignalRefused](
            after=_RUNNING, claimed=True, counted=False, words=of_refused_signal
        ),
        PauseRequested: Row[PauseRequested](after=_RUNNING, counted=False, words=of_reason),
        Lost: Row[Lost](
            after=_RUNNING, counted=False, words=lambda event: f"attempt {event.attempt} on {event.worker}"
        ),
        Noted: Row[Noted](after=_ANY, counted=False, words=lambda event: event.text),
    }
)
_UNEVEN: Final = sorted(cls.__name__ for cls in set(LIFECYCLE) ^ set(EVENT_CLASSES))
assert not _UNEVEN, f"each event is a member of JobEvent and has a row in LIFECYCLE, but not {_UNEVEN}"

_ROW_OF_TYPE: Final[Mapping[str, Row[Any]]] = {
    str(cls.__struct_config__.tag): row for cls, row in LIFECYCLE.items()
}

#: The classes of event that may follow in each state; None is the state before the first event held. `fenced` is a
#: receipt and may come late; `carried` says the state once more; `retry_wait` is also where a job is between
#: the two events of one atomic batch.
LEGAL: Final[Mapping[JobState | None, frozenset[type[JobEvent]]]] = MappingProxyType(
    {
        state: frozenset(cls for cls, row in LIFECYCLE.items() if state in row.after)
        for state in (None, *JobState)
    }
)
#: Events that may follow the end of a job without being an end: a receipt and a note.
REMARKS: Final = (Fenced, Noted)
#: Events that begin a job, or dispatch it again.
ORDERS: Final = frozenset(cls for cls, row in LIFECYCLE.items() if row.order)
#: Events about the attempt that runs, which only the holder of its claim may append.
CLAIMED: Final = frozenset(cls for cls, row in LIFECYCLE.items() if row.claimed)
#: The events among `CLAIMED` that end the attempt.
OUTCOMES: Final = frozenset(cls for cls in CLAIMED if LIFECYCLE[cls].ends is not None)
#: The types of event that may end the attempt that runs.
ENDING_TYPES: Final = frozenset(
    tag for tag, row in _ROW_OF_TYPE.items() if row.ends is not None and JobState.RUNNING in row.after
)
#: The states of an attempt whose end its own worker recorded.
ENDED_BY_HOLDER: Final = frozenset(LIFECYCLE[cls].ends for cls in OUTCOMES)
#: The types of event that may name a moment at which the job goes on by itself.
TIMED_WAITS: Final = tuple(tag for tag, row in _ROW_OF_TYPE.items() if row.due)

#: Why a job may become ready (`queued`, or `held` where it has limits) in each state.
CAUSES: Final[Mapping[JobState | None, frozenset[Cause]]] = MappingProxyType(
    {
        None: frozenset[Cause]({"new"}),
        JobState.SCHEDULED: frozenset[Cause]({"due", "cancelling"}),
        JobState.HELD: frozenset[Cause]({"admitted"}),
        JobState.QUEUED: frozenset[Cause]({"redispatched", "carried", "ungranted"}),
        JobState.RUNNING: frozenset[Cause]({"redispatched", "carried"}),
        JobState.RETRY_WAIT: frozenset[Cause]({"retried", "due", "interrupted", "cancelling"}),
        JobState.WAITING: frozenset[Cause]({"resumed", "due", "cancelling"}),
        JobState.PAUSED: frozenset[Cause]({"resumed", "due", "cancelling"}),
        JobState.COMPLETED: frozenset[Cause](),
        JobState.CANCELLED: frozenset[Cause](),
        JobState.DEAD_LETTERED: frozenset[Cause]({"requeued"}),
        JobState.DISCARDED: frozenset[Cause](),
    },
)
#: Causes with which a job that has limits is queued at once: its limits admitted it, or it still has its slot.
PAST_ITS_LIMITS: Final = frozenset[Cause]({"admitted", "interrupted", "redispatched", "carried"})

#: Fields of events with values of users, kept as raw JSON, which must not appear in logs or lists.
VALUE_FIELDS: Final = frozenset(
    name
    for cls in (*EVENT_CLASSES, *Held.__mro__, CarriedJob, Order)
    for name, annotation in vars(cls).get("__annotations__", {}).items()
    if annotation is msgspec.Raw
)


def words(event: JobEvent) -> str:
    """Return the content of an event beyond its type, in a few words for a person; "" if there is none."""
    found: str = LIFECYCLE[type(event)].words(event)
    return found


def lean(event: JobEvent) -> JobEvent:
    """Return `event` without the values that no check looks at, so that an open job keeps no payload alive."""
    make = _LEAN_OF[type(event)]
    return event if make is None else make(event)


_LEAN_OF: Final[Mapping[type[JobEvent], Callable[[Any], JobEvent] | None]] = {
    cls: row.lean for cls, row in LIFECYCLE.items()
}


def due_at(event: JobEvent) -> datetime | None:
    """Return the moment in the event at which the job goes on by itself; None if it names none."""
    read = _DUE_OF.get(type(event))
    moment: datetime | None = None if read is None else read(event)
    return moment


_DUE_OF: Final[Mapping[type[JobEvent], Callable[[JobEvent], Any]]] = {
    cls: operator.attrgetter(row.due) for cls, row in LIFECYCLE.items() if row.due
}


def references_of(event: JobEvent) -> Iterator[tuple[StoreName, PayloadRef]]:
    """Yield the large values that an event refers to, with their stores; children's results are in that of inputs."""
    is_child = _member_of_end(event) is not None
    for store, path in LIFECYCLE[type(event)].payloads:
        for reference in _at(event, path):
            yield "inputs" if is_child else store, reference


def _member_of_end(event: JobEvent) -> Member | None:
    """Return the parent of a job, from an event that may have the job's result."""
    if isinstance(event, Carried):
        return event.job_state.order.member
    return event.member if isinstance(event, Completed) else None


def _at(value: Any, path: str) -> Iterator[PayloadRef]:
    """Yield the values on a path of fields: `[]` after a field's name stands for each of its values."""
    if value is None or not path:
        yield from () if value is None else (value,)
        return
    name, _, rest = path.partition(".")
    found: Any = getattr(value, name.removesuffix("[]"))
    for each in found if name.endswith("[]") else (found,):
        yield from _at(each, rest)
