"""Words for the waits of a run: one word for each step. Pure."""

from __future__ import annotations

from typing import Final, Literal

from jobledger.ledger.model.runs.steps import Step, Steps

#: `step`: a step that was begun and whose end is not known, if no other word is right.
Awaited = Literal["signal", "sleep", "children", "retry", "step", "operator"]
AWAITED: Final[tuple[Awaited, ...]] = ("signal", "sleep", "children", "retry", "step", "operator")


def awaited_of(step: Step) -> Awaited:
    """Return the word for a run's wait for this step."""
    if step.state == "retrying":
        return "retry"
    if step.order is not None:
        return "children"
    if step.kind == "wait":
        return "signal"
    return "sleep" if step.kind == "sleep" else "step"


def all_awaited(steps: Steps, awaited: tuple[str, ...], *, by_operator: bool) -> tuple[Awaited, ...]:
    """Return the words for a run's waits, each once, in the order of `AWAITED`; `awaited` are keys of steps.

    A run that a person paused waits only for a person.
    """
    if by_operator:
        return ("operator",)
    found = {awaited_of(steps[key]) for key in awaited if key in steps}
    return tuple(each for each in AWAITED if each in found)
