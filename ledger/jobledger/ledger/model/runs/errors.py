"""Refusals to a run, below the root and branches of `model.errors`."""

from __future__ import annotations

from jobledger.ledger.model.errors import IllegalTransitionError, RefusedError


class StepOverError(IllegalTransitionError):
    """The run must not wait for this step: the awaited thing has come, or the run was asked to end.

    Nothing was recorded; go on with the run's code.
    """

    def __init__(self, job_id: str, step: str, why: str) -> None:
        self.step = step  #: the key of that step
        super().__init__(job_id, f"past step {step!r} ({why})", "wait for it")


class SignalKnownError(IllegalTransitionError):
    """A signal of this id was sent to the run before. That one counts, and nothing was recorded."""

    def __init__(self, job_id: str, signal_id: str) -> None:
        self.signal_id = signal_id
        super().__init__(job_id, f"told signal id {signal_id!r} already", "be told it again")


class UnknownSignalError(RefusedError):
    """The run has ended, so that no signal can be sent to it; nothing was recorded."""

    def __init__(self, run_id: str, state: str, name: str) -> None:
        self.run_id = run_id
        self.state = state
        self.name = name
        super().__init__(f"run {run_id} has ended ({state}): signal {name!r} was not recorded")
