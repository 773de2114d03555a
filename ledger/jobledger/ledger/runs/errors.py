"""Errors in a run, as a tree.

InvalidError
├── DivergedError
└── ForeignTaskError
RefusedError
├── RerunSourceError
├── RunTooLongError
└── StepInDoubtError
OutcomeError
├── StepFailedError
└── ChildFailedError
"""

from __future__ import annotations

from jobledger.ledger.model.errors import InvalidError, OutcomeError, RefusedError
from jobledger.ledger.model.events import ErrorInfo


class DivergedError(InvalidError):
    """The code asks for something else under a step's key than the recorded step: it changed during the run.

    The run becomes a dead letter at once, because another attempt would ask for the same. Correct the code
    (`run.patched`, or another name for the step), then requeue it: it goes on with all recorded steps.
    """

    def __init__(self, key: str, sequence: int, recorded: str, asked: str) -> None:
        """`recorded`, `asked`: the recorded step, and the step that the code asks for, in words."""
        self.key = key
        self.sequence = sequence  #: stream sequence of the step's newest event
        self.recorded = recorded
        self.asked = asked
        super().__init__(
            f"step {key!r} was recorded at stream sequence {sequence} {recorded}; the code now asks for {asked}"
        )


class ForeignTaskError(InvalidError):
    """A step was begun without a fixed place in the run: in an asyncio task that is no branch, or inside a step."""

    def __init__(self, name: str, where: str = "in a task that the run did not make: use run.gather") -> None:
        self.name = name
        super().__init__(f"step {name!r} was begun {where}")


class RerunSourceError(RefusedError):
    """A rerun cannot copy its steps: the source run is no longer in the ledger, or it has changed.

    The rerun becomes a dead letter at once, because another attempt would find the same.
    """

    def __init__(self, run_id: str, sequence: int, *, differs: bool = False) -> None:
        self.run_id = run_id
        self.sequence = sequence  #: stream sequence of the event that is needed
        why = "is not the one that the rerun names" if differs else "is in an archive by now"
        super().__init__(
            f"the steps of run {run_id} cannot be copied: its event at stream sequence {sequence} {why}; enqueue a new run"
        )


class RunTooLongError(RefusedError):
    """The run has the most events or bytes that one run may have: end it with `return run.again(...)`."""

    def __init__(self, run_id: str, events: int, bytes_: int) -> None:
        self.events = events
        self.bytes = bytes_
        super().__init__(
            f"run {run_id} has {events:,} events of {bytes_:,} bytes and may have no further step: "
            "end it in time with `return run.again(...)`, which begins the next one (run.long says when)"
        )


class StepInDoubtError(RefusedError):
    """A step that may run only once was begun and has no recorded end, so it is not known whether it was done.

    Raised in the attempt after the one that ended in the middle of it. `@step(once=True, on_doubt=...)` replaces this
    error: by a function that finds out, or by `"retry"`.
    """

    def __init__(self, run_id: str, key: str, sequence: int) -> None:
        self.key = key
        self.sequence = sequence  #: stream sequence of its `step_started`
        super().__init__(
            f"step {key!r} of run {run_id} was begun at stream sequence {sequence} and has no end: it may have been "
            "done. Find out; then let on_doubt of its @step say so, and requeue the run"
        )


class StepFailedError(OutcomeError):
    """A step failed for good. Its exception is recorded as `type` and `message`, the same in every attempt.

    In the attempt that ran it, the exception itself is `__cause__`.
    """

    def __init__(self, key: str, error: ErrorInfo, tries: int) -> None:
        self.key = key
        self.error = error
        self.tries = tries
        tried = "" if tries <= 1 else f" after {tries} tries"
        super().__init__(f"step {key!r} failed{tried}: {error.type}: {error.message}")

    @property
    def type(self) -> str:
        """The name of the exception's class."""
        return self.error.type

    @property
    def message(self) -> str:
        """The exception's text."""
        return self.error.message


class ChildFailedError(OutcomeError):
    """A job that the run made ended without a result."""

    def __init__(self, step: str, item: int, job_id: str, sentence: str) -> None:
        self.step = step
        self.item = item  #: its number in its group, from 0
        self.job_id = job_id
        super().__init__(f"item {item} of step {step!r} failed: {sentence} (`jobledger jobs show {job_id}`)")
