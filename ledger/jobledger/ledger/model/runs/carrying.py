"""What `carried` keeps of a run: its steps and signals in the form that is stored, and back. Pure. Source: ADR 011."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from jobledger.ledger.model.envelope import NO_VALUE, ErrorInfo, Moment, PayloadRef, Whole
from jobledger.ledger.model.runs.orders import ChildOrder, Copied, Count, Ranges, StepKind, bits_of, ranges_of
from jobledger.ledger.model.runs.steps import NO_STEPS, KeptSignal, Step, Steps, bytes_of


class CarriedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One step of a run that is carried over; the fields are `steps.Step`'s."""

    key: str  #: `<branch>/<name>`, with `#n` from its second occurrence on
    number: Whole  #: from 1, in the order of the steps' first events
    kind: StepKind  #: what it is
    target: str  #: what it is about
    state: Literal["started", "retrying", "completed", "failed"]  #: how far it is
    sequence: Whole  #: stream sequence of its newest event
    input_sha256: str = ""  #: the first 16 hex digits of its input's digest
    result: msgspec.Raw = NO_VALUE  #: what it returned
    result_ref: PayloadRef | None = None  #: where a large result lies
    error: ErrorInfo | None = None  #: of its newest try that failed
    tries: Whole = 0  #: how often it was executed
    duration_ms: float = 0.0  #: of the last execution
    retry_at: Moment | None = None  #: when the next try is due
    until: Moment | None = None  #: when its wait is over at the latest
    order: ChildOrder | None = None  #: its children
    items: msgspec.Raw = NO_VALUE  #: the inputs of its children
    items_ref: PayloadRef | None = None  #: where a large array of them lies
    signal: Whole = 0  #: stream sequence of the event that told the signal it took
    copied: Copied | None = None  #: where its end was copied from
    count: Count | None = None  #: how many children its group has
    opened: Ranges = ()  #: ranges of items that may exist
    ended: Ranges = ()  #: ranges of items whose end was counted
    failed: Ranges = ()  #: ranges of those that had not completed


class CarriedSignal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message to a run that is carried over; the fields are `steps.KeptSignal`'s."""

    sequence: Whole  #: stream sequence of the event that told it
    name: str  #: what it is about
    id: str = ""  #: chosen by the sender
    value: msgspec.Raw = NO_VALUE  #: what it says, until a step took it
    value_ref: PayloadRef | None = None  #: where a large value lies
    taken_by: str = ""  #: key of the step that took it


_asdict = msgspec.structs.asdict
_SETS = ("opened", "ended", "failed")


def carried_steps(steps: Steps) -> tuple[CarriedStep, ...]:
    """Return steps in the form that is stored."""
    return tuple(map(_carried_step, steps.values()))


def _carried_step(step: Step) -> CarriedStep:
    fields = {name: getattr(step, name) for name in CarriedStep.__struct_fields__}
    for name in _SETS:
        fields[name] = ranges_of(fields[name])
    return CarriedStep(**fields)


def carried_signals(signals: Iterable[KeptSignal]) -> tuple[CarriedSignal, ...]:
    """Return signals in the form that is stored."""
    return tuple(CarriedSignal(**_asdict(each)) for each in signals)


def steps_of(carried: Iterable[CarriedStep]) -> Steps:
    """Return the steps that were carried, by their keys."""
    return {each.key: _step_of(each) for each in carried} or NO_STEPS


def _step_of(carried: CarriedStep) -> Step:
    fields = _asdict(carried)
    for name in _SETS:
        fields[f"{name}_set"] = bytes_of(bits_of(fields.pop(name)))
    return Step(**fields)


def signals_of(carried: Iterable[CarriedSignal]) -> tuple[KeptSignal, ...]:
    """Return the signals that were carried."""
    return tuple(KeptSignal(**_asdict(each)) for each in carried)
