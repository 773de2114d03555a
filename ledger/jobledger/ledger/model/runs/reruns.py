"""The steps that a rerun copies from its source: one rule for the plan and for the copy. Pure."""

from __future__ import annotations

from jobledger.ledger.model.runs.orders import RerunOf, bits_of
from jobledger.ledger.model.runs.steps import Step, Steps


def copied_from(source: Steps, from_step: str) -> list[Step]:
    """Return the steps whose ends are copied, in the order of their first events.

    These have ended, and were first recorded before `from_step`. With "" they are all completed steps, except undo
    steps and groups with a failed child: such a group begins again with its completed children.
    """
    if not from_step:
        return [step for step in source.values() if _is_whole(step)]
    number = source[from_step].number
    return [step for step in source.values() if step.number < number and has_end(step)]


def begun_again(source: Steps) -> list[Step]:
    """Return the groups that a rerun with `failed` begins again, with the ends of completed children."""
    groups = (step for step in source.values() if step.order is not None and not step.order.is_open)
    return [step for step in groups if not _is_whole(step)]


def has_copied(source: RerunOf, steps: Steps) -> bool:
    """Return whether a rerun has recorded everything that it copies from its source."""
    return len(steps) >= source.steps and copied_ends(steps) >= source.children


def copied_ends(steps: Steps) -> int:
    """Return how many ends of children a run has copied, of groups that it began again."""
    return sum(bits_of(origin.items).bit_count() for step in steps.values() for origin in step.origins)


def _is_whole(step: Step) -> bool:
    return step.state == "completed" and step.kind != "undo" and not step.failed


def has_end(step: Step) -> bool:
    """Return whether a step ended or failed; a step that is `retrying` without a time for its next try has failed."""
    return step.has_ended or (step.state == "retrying" and step.retry_at is None)
