"""The fold of a run's steps; also which children of a step may exist, and whether a step is over. Pure and total.

`job.evolve` calls `fold_run`, and there is no second way to compute a step. An event that must not follow changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from jobledger.ledger.model.envelope import NO_VALUE, ErrorInfo, PayloadRef
from jobledger.ledger.model.runs.events import (
    Joined,
    PauseRequested,
    Signalled,
    SignalRefused,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from jobledger.ledger.model.runs.orders import (
    ChildOrder,
    CopiedEnd,
    CopiedEnds,
    JoinFact,
    Origin,
    SignalFact,
    StepKind,
    bits_of,
    items_of,
    ranges_of,
)

#: `started`: the end is not known yet. `retrying`: a try failed, and another follows. The others are ends.
StepState = Literal["started", "retrying", "completed", "failed"]
StepEvent = StepStarted | StepCompleted | StepFailed
RunEvent = StepEvent | Joined | Signalled | SignalRefused | PauseRequested

_replace: Final = msgspec.structs.replace


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One step of a run, folded from its events."""

    key: str
    number: int  #: from 1, in the order of the steps' first events
    kind: StepKind
    target: str
    state: StepState
    sequence: int  #: stream sequence of its newest `step_...` event
    input_sha256: str = ""
    result: msgspec.Raw = NO_VALUE
    result_ref: PayloadRef | None = None
    error: ErrorInfo | None = None  #: error of its newest failed try
    tries: int = 0
    duration_ms: float = 0.0
    retry_at: datetime | None = None  #: time of the next try
    until: datetime | None = None  #: end of its wait even if nothing has come
    order: ChildOrder | None = None  #: the children that it asks for
    items: msgspec.Raw = NO_VALUE  #: inputs of its children
    items_ref: PayloadRef | None = None
    signal: int = 0  #: stream sequence of the event with the signal that it took
    copied: CopiedEnd | None = None  #: source of its copied end; without an end, of its copied beginning
    origins: tuple[Origin, ...] = ()  #: children of other runs whose ends stand for ends of its own
    count: int | None = None  #: number of children of its group; None: not known yet, or no group
    #: Sets of items, as the bytes of a number (little-endian) in which bit i stands for item i.
    opened_set: bytes = b""
    ended_set: bytes = b""
    failed_set: bytes = b""

    @property
    def opened(self) -> int:
        """The items that may exist, as a number in which bit i stands for item i."""
        return int.from_bytes(self.opened_set, "little")

    @property
    def ended(self) -> int:
        """The items whose end was counted, in the form of `opened`."""
        return int.from_bytes(self.ended_set, "little")

    @property
    def failed(self) -> int:
        """The items that were counted as not completed, in the form of `opened`."""
        return int.from_bytes(self.failed_set, "little")

    @property
    def open(self) -> int:
        """The items that may exist and did not end, in the form of `opened`."""
        return self.opened & ~self.ended

    @property
    def has_ended(self) -> bool:
        """Whether the end of the step is recorded."""
        return self.state in ("completed", "failed")

    @property
    def is_joined(self) -> bool:
        """Whether the step asked for children, and all children that will ever exist have ended."""
        return self.order is not None and _is_joined(self, self.order)


class KeptSignal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message that a run was sent."""

    sequence: int  #: stream sequence of the event that has it
    name: str
    id: str = ""
    value: msgspec.Raw = NO_VALUE  #: empty once a step took it as its result, or refused it
    value_ref: PayloadRef | None = None
    taken_by: str = ""  #: key of the step that took it
    refused: str = ""  #: the reason why no step can take it: a mistake in its value


#: Stands for the reason of a refused signal whose event names none.
REFUSED: Final = "refused"
#: The steps of a run by their keys, in the order of their first events.
Steps = Mapping[str, Step]
NO_STEPS: Final[Steps] = MappingProxyType({})


def fold_run(
    steps: Steps, signals: tuple[KeptSignal, ...], event: RunEvent, stream_sequence: int
) -> dict[str, Any]:
    """Return the fields of a job that an event of its run changes, with their new values."""
    match event:
        case StepStarted():
            return {"steps": fold_step(steps, event, stream_sequence)}
        case StepCompleted() | StepFailed():
            changes: dict[str, Any] = {"steps": fold_step(steps, event, stream_sequence), "advanced": True}
            if isinstance(event, StepCompleted) and event.signal:
                changes["signals"] = _changed(signals, event.signal, taken_by=event.step)
            return changes
        case Joined():
            return {"steps": fold_join(steps, event)}
        case Signalled():
            return {"signals": _told(signals, event, stream_sequence)}
        case SignalRefused():
            return {"signals": _changed(signals, event.signal, refused=event.reason or REFUSED)}
        case PauseRequested():
            return {"pause_requested": True, "pause_reason": event.reason}


def fold_waking(
    steps: Steps,
    signals: tuple[KeptSignal, ...],
    joined: JoinFact | None,
    signal: SignalFact | None,
    stream_sequence: int,
) -> dict[str, Any]:
    """Return the fields of a job that change by ends of children, or by a signal, in a `queued` or `held`."""
    changes: dict[str, Any] = {}
    if joined is not None:
        changes["steps"] = fold_join(steps, joined)
    if signal is not None:
        changes["signals"] = _told(signals, signal, stream_sequence)
    return changes


def bytes_of(items: int) -> bytes:
    """Return a number of bits in the form that a step keeps."""
    return items.to_bytes((items.bit_length() + 7) // 8, "little")


def fold_step(steps: Steps, event: StepEvent, stream_sequence: int) -> Steps:
    """Return the steps after an event of one of them."""
    known = steps.get(event.step)
    if known is not None and (known.has_ended or isinstance(event, StepStarted)):
        return steps  # a step has one start and one end: `decide` refuses a second one
    step = known or Step(
        key=event.step,
        number=len(steps) + 1,
        kind=event.kind,
        target=event.target,
        state="started",
        sequence=stream_sequence,
        input_sha256=event.input_sha256,
    )
    match event:
        case StepStarted():
            step = _begun(step, event)
        case StepCompleted():
            step = _replace(
                step,
                state="completed",
                sequence=stream_sequence,
                result=event.result,
                result_ref=event.result_ref,
                error=None,
                tries=event.tries,
                duration_ms=event.duration_ms,
                retry_at=None,
                signal=event.signal,
                copied=event.copied,
            )
        case StepFailed():
            step = _replace(
                step,
                state="failed" if event.retry_at is None else "retrying",
                sequence=stream_sequence,
                error=event.error,
                tries=event.tries,
                retry_at=event.retry_at,
                copied=event.copied,
            )
    return {**steps, event.step: step}


def _begun(step: Step, event: StepStarted) -> Step:
    order = event.order
    if order is None:
        return _replace(step, until=event.until)
    count = None if order.is_open else order.count
    return _replace(
        step,
        until=event.until,
        order=order,
        items=event.items,
        items_ref=event.items_ref,
        count=count,
        copied=event.copied,
        opened_set=bytes_of(admit(order, 0, 0, 0)),
    )


def fold_join(steps: Steps, fact: Joined | JoinFact) -> Steps:
    """Return the steps after ends of children were counted; an unknown step, or one without a group, counts nothing."""
    step = steps.get(fact.step)
    if step is None or step.order is None:
        return steps
    failed = bits_of(fact.failed)
    ended = bits_of(fact.completed) | failed
    opened = bits_of(fact.opened)
    if step.order.is_open:
        opened |= ended  # a client makes its children without waiting for the run
        if step.count is None and fact.count is not None:
            opened |= (1 << fact.count) - 1
    copied = fact.copied if isinstance(fact, Joined) else None
    origins = step.origins
    if copied is not None:
        opened |= ended
        origins = _with_origin(origins, copied, ended)
    joined = _replace(
        step,
        origins=origins,
        count=fact.count if step.count is None else step.count,
        opened_set=bytes_of(step.opened | opened),
        ended_set=bytes_of(step.ended | ended),
        failed_set=bytes_of(step.failed | failed),
    )
    return {**steps, fact.step: joined}


def _with_origin(origins: tuple[Origin, ...], copied: CopiedEnds, items: int) -> tuple[Origin, ...]:
    """Return the origins of a step's ends with further items of one."""
    own = Origin(queue=copied.queue, job=copied.job, number=copied.number, asked=copied.asked)
    others = tuple(each for each in origins if _replace(each, items=()) != own)
    for each in origins:
        if each not in others:
            items |= bits_of(each.items)
    return (*others, _replace(own, items=ranges_of(items)))


def _told(
    signals: tuple[KeptSignal, ...], fact: Signalled | SignalFact, stream_sequence: int
) -> tuple[KeptSignal, ...]:
    kept = KeptSignal(
        sequence=stream_sequence, name=fact.name, id=fact.id, value=fact.value, value_ref=fact.value_ref
    )
    return (*signals, kept)


def _changed(signals: tuple[KeptSignal, ...], sequence: int, **said: str) -> tuple[KeptSignal, ...]:
    """Return the signals after one was taken or refused, without its value, which is no longer needed."""
    return tuple(
        _replace(each, **said, value=NO_VALUE, value_ref=None) if each.sequence == sequence else each
        for each in signals
    )


def try_again(steps: Steps) -> Steps:
    """Return the steps for the attempt after a failed one: failed calls of the run's own functions may be tried again.

    The end of a wait, a group or a `once` step stays, so that it is the same in every attempt.
    """
    anew = {
        key: _replace(step, state="retrying", tries=0)
        for key, step in steps.items()
        if step.state == "failed" and step.kind in _TRIED_ANEW
    }
    return {**steps, **anew} if anew else steps


_TRIED_ANEW: Final = frozenset[StepKind]({"step", "table", "undo"})


def admit(order: ChildOrder, opened: int, ended: int, failed: int) -> int:
    """Return the items that may exist now, given the items opened before, those that ended, and those that failed.

    All sets are numbers in which bit i stands for item i. The same rule serves maps and graphs: an item is opened once
    the items that it waits for have ended, if fewer than `limit` are open; lower numbers come first.
    """
    room = (order.limit or order.count) - (opened & ~ended).bit_count()
    if order.is_open or room <= 0:
        return opened
    if not order.after:
        return opened if failed and order.on_failure == "stop" else _opened_next(order.count, opened, room)
    for item in _ready(order, opened, ended, failed):
        opened |= 1 << item
        room -= 1
        if not room:
            break
    return opened


def admissible(step: Step) -> int:
    """Return the children of a step that may be opened by the recorded facts, as a number of bits."""
    if step.order is None or step.has_ended:
        return 0
    return admit(step.order, step.opened, step.ended, step.failed) & ~step.opened


def _opened_next(count: int, opened: int, room: int) -> int:
    if not opened & (opened + 1):  # no gaps, as in every group without copied ends
        next_item = opened.bit_length()
        return opened | (((1 << max(0, min(room, count - next_item))) - 1) << next_item)
    for first, last in ranges_of(~opened & ((1 << count) - 1)):
        taken = min(room, last - first + 1)
        opened |= ((1 << taken) - 1) << first
        room -= taken
        if not room:
            break
    return opened


def _ready(order: ChildOrder, opened: int, ended: int, failed: int) -> Iterator[int]:
    """Yield the items of a graph that are not opened, and for which all items before them have ended."""
    left_out = _left_out(order, opened, failed)
    over = ended | left_out
    for item in range(order.count):
        if not (opened | left_out) >> item & 1 and all(over >> need & 1 for need in _needs(order, item)):
            yield item


def _left_out(order: ChildOrder, opened: int, failed: int) -> int:
    """Return the items of a graph that will never exist, because others failed."""
    stopped = failed and order.on_failure == "stop"
    always = frozenset(order.always)
    left_out = 0
    for item in range(order.count):
        if opened >> item & 1 or item in always:
            continue
        if stopped or any((failed | left_out) >> need & 1 for need in _needs(order, item)):
            left_out |= 1 << item
    return left_out


def _needs(order: ChildOrder, item: int) -> tuple[int, ...]:
    return order.after[item] if item < len(order.after) else ()


def _is_joined(step: Step, order: ChildOrder) -> bool:
    opened, ended, failed = step.opened, step.ended, step.failed
    if step.count is None or opened & ~ended:
        return False
    if order.after:
        return (opened | _left_out(order, opened, failed)).bit_count() >= order.count
    return bool(failed and order.on_failure == "stop") or ended.bit_count() >= step.count


def name_in(key: str) -> str:
    """Return the name in a step's key: `charge` in `first/charge#2`."""
    return key.rpartition("/")[2].partition("#")[0]


def failed_item(step: Step) -> int:
    """Return the first failed item of a group; 0 if none is known."""
    if step.copied is not None and step.has_ended:
        return step.copied.item
    return items_of(step.failed)[0] if step.failed else 0


def is_over(step: Step, signals: tuple[KeptSignal, ...], now: datetime) -> bool:
    """Return whether the awaited thing of a step has come, by the recorded facts, or its moment has passed."""
    if step.has_ended or step.is_joined:
        return True
    if step.kind == "wait" and next_signal(signals, step.target) is not None:
        return True
    moment = step.retry_at if step.state == "retrying" else step.until
    return moment is not None and moment <= now


def next_signal(signals: tuple[KeptSignal, ...], name: str) -> KeptSignal | None:
    """Return the oldest signal of a name that was neither taken nor refused."""
    return next((each for each in signals if each.name == name and not (each.taken_by or each.refused)), None)


def open_children(steps: Steps) -> int:
    """Return how many children of a run may exist and did not end."""
    return sum(step.open.bit_count() for step in steps.values() if step.order is not None)
