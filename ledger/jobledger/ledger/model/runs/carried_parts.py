"""Steps and signals of a run in `carried`: to the stored form, and back. Pure. Source: ADR 011."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from jobledger.ledger.model.envelope import NO_VALUE, ErrorInfo, Moment, PayloadRef, Whole
from jobledger.ledger.model.runs.orders import (
    ChildOrder,
    CopiedEnd,
    Count,
    Origin,
    Ranges,
    StepKind,
    bits_of,
    ranges_of,
)
from jobledger.ledger.model.runs.steps import NO_STEPS, KeptSignal, Step, Steps, bytes_of


class CarriedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One step of a run that is carried over; the fields are `steps.Step`'s."""

    key: str  #: `<branch>/<name>`, with `#n` from its second occurrence on
    number: Whole  #: from 1, in the order of the steps' first events
    kind: StepKind  #: kind of the step
    target: str  #: name of a function, a task, a signal or a table
    state: Literal["started", "retrying", "completed", "failed"]  #: state of the step
    sequence: Whole  #: stream sequence of its newest event
    input_sha256: str = ""  #: the first 16 hex digits of its input's digest
    result: msgspec.Raw = NO_VALUE  #: its result
    result_ref: PayloadRef | None = None  #: place of a large result
    error: ErrorInfo | None = None  #: error of its newest failed try
    tries: Whole = 0  #: number of executions
    duration_ms: float = 0.0  #: duration of the last execution
    retry_at: Moment | None = None  #: time of the next try
    until: Moment | None = None  #: end of its wait even if nothing has come
    order: ChildOrder | None = None  #: the children that it asks for
    items: msgspec.Raw = NO_VALUE  #: inputs of its children
    items_ref: PayloadRef | None = None  #: place of a large array of these
    signal: Whole = 0  #: stream sequence of the event with the signal that it took
    copied: CopiedEnd | None = None  #: source of its copied end or beginning
    origins: tuple[Origin, ...] = ()  #: children of other runs whose ends stand for ends of its own
    count: Count | None = None  #: number of children of its group
    opened: Ranges = ()  #: ranges of items that may exist
    ended: Ranges = ()  #: ranges of items whose end was counted
    failed: Ranges = ()  #: ranges of items that ended, but not completed


class CarriedSignal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message to a run that is carried over; the fields are `steps.KeptSignal`'s."""

    sequence: Whole  #: stream sequence of the event that has it
    name: str  #: name of the signal
    id: str = ""  #: id that the sender chose
    value: msgspec.Raw = NO_VALUE  #: its value, until a step takes it
    value_ref: PayloadRef | None = None  #: place of a large value
    taken_by: str = ""  #: key of the step that took it
    refused: str = ""  #: the reason why no step can take it


class Part(msgspec.Struct, frozen=True, gc=False):
    """The steps and signals of a run that one `carried` holds."""

    steps: tuple[CarriedStep, ...] = ()
    signals: tuple[CarriedSignal, ...] = ()
    steps_before: int = 0  #: number of steps in the parts before it
    signals_before: int = 0
    more: bool = False  #: whether another part follows


#: Bytes of steps and signals in one `carried`, more only if a single step has more: an event may have a megabyte.
PART_BYTES_MAX: Final = 256 * 1024
_encode: Final = msgspec.json.Encoder().encode
_asdict = msgspec.structs.asdict
_SETS = ("opened", "ended", "failed")


def carried_steps(steps: Steps) -> tuple[CarriedStep, ...]:
    """Return steps in the stored form."""
    return tuple(map(_carried_step, steps.values()))


def _carried_step(step: Step) -> CarriedStep:
    fields = {name: getattr(step, name) for name in CarriedStep.__struct_fields__}
    for name in _SETS:
        fields[name] = ranges_of(fields[name])
    return CarriedStep(**fields)


def carried_signals(signals: Iterable[KeptSignal]) -> tuple[CarriedSignal, ...]:
    """Return signals in the stored form."""
    return tuple(CarriedSignal(**_asdict(each)) for each in signals)


def parts_of(steps: Sequence[CarriedStep], signals: Sequence[CarriedSignal]) -> Iterator[Part]:
    """Yield all steps and signals of a run, in parts that fit into one event each; at least one part."""
    at_step = at_signal = 0
    while True:
        size, next_step, next_signal = 0, at_step, at_signal
        while next_step < len(steps) and (not size or size < PART_BYTES_MAX):
            size += len(_encode(steps[next_step]))
            next_step += 1
        while next_step == len(steps) and next_signal < len(signals) and (not size or size < PART_BYTES_MAX):
            size += len(_encode(signals[next_signal]))
            next_signal += 1
        more = next_step < len(steps) or next_signal < len(signals)
        yield Part(
            steps=tuple(steps[at_step:next_step]),
            signals=tuple(signals[at_signal:next_signal]),
            steps_before=at_step,
            signals_before=at_signal,
            more=more,
        )
        if not more:
            return
        at_step, at_signal = next_step, next_signal


def fold_part(
    steps: Steps, signals: tuple[KeptSignal, ...], part: Part, *, is_incomplete: bool
) -> dict[str, object]:
    """Return the fields of a job that change by the part of its steps and signals in a `carried`.

    Steps and signals that were folded from their own events stay as they are, since the part only repeats them. If
    those events are gone, the parts are joined. `is_incomplete`: whether parts after the ones that were read are
    missing.
    """
    told, told_signals = steps_of(part.steps), signals_of(part.signals)
    begins = not (part.steps_before or part.signals_before)
    if begins and not part.more:
        return {"steps": told, "signals": told_signals, "is_incomplete": False}
    is_known = bool(steps or signals)
    known = {each.sequence for each in signals}
    return {
        "steps": {**steps, **told} if is_known else told,
        "signals": (*signals, *(each for each in told_signals if each.sequence not in known)),
        "is_incomplete": part.more and (is_incomplete or (begins and not is_known)),
    }


def steps_of(carried: Iterable[CarriedStep]) -> Steps:
    """Return the carried steps, by their keys."""
    return {each.key: _step_of(each) for each in carried} or NO_STEPS


def _step_of(carried: CarriedStep) -> Step:
    fields = _asdict(carried)
    for name in _SETS:
        fields[f"{name}_set"] = bytes_of(bits_of(fields.pop(name)))
    return Step(**fields)


def signals_of(carried: Iterable[CarriedSignal]) -> tuple[KeptSignal, ...]:
    """Return the carried signals."""
    return tuple(KeptSignal(**_asdict(each)) for each in carried)
