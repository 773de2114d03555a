"""Which steps a rerun copies from its source: the one rule of who plans it and of who copies. Pure."""

from __future__ import annotations

from jobledger.ledger.model.runs.steps import Step, Steps


def copied_from(source: Steps, from_step: str) -> list[Step]:
    """Return the steps that were first recorded before a step and have ended, in the order of their first events."""
    number = source[from_step].number
    return [step for step in source.values() if step.number < number and _has_end(step)]


def _has_end(step: Step) -> bool:
    """Whether its newest event is its end, also where the source may try it again because an attempt failed."""
    return step.has_ended or (step.state == "retrying" and step.retry_at is None)
