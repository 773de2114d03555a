"""Acts on one job: pause and resume; and on a run: send a signal, begin again."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

from jobledger.admin.find import find_job
from jobledger.admin.rows import Rows
from jobledger.ledger.client import Ledger
from jobledger.ledger.handle import JobHandle, would_accept
from jobledger.ledger.model.commands import RequestPause, ResumeJob
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.json_text import check_text
from jobledger.ledger.model.runs.steps import open_children
from jobledger.ledger.model.runs.wait_words import awaited_of
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.reruns.plans import RerunPlan, RerunRequest, plan_rerun
from jobledger.ledger.sent_signals import give_signal


class SignalReceipt(NamedTuple):
    """A run after it was sent a signal."""

    job: Job
    is_new: bool  #: False: a signal of that id was sent before, and nothing was changed
    awaits: tuple[str, ...]  #: names of the signals that it waited for before
    refused: str  #: why its wait refused it already, "": it did not


class _Json:
    """A signal whose type is not known here: its value is JSON text."""

    def __init__(self, name: str) -> None:
        self.name = check_token("signal name", name)

    def encode(self, value: bytes, /) -> bytes:
        """Return the text. Raises: InvalidInputError for what is no JSON."""
        return check_text(value, what=f"value of signal {self.name}")


async def signal(
    rows: Rows,
    job_id: str,
    name: str,
    value: bytes,
    *,
    signal_id: str = "",
    queue: str | None = None,
    by: str,
) -> SignalReceipt:
    """Send a run a signal; `value` is JSON text, which the run reads as the signal's type once it takes it.

    Raises: as `find_job` and `Ledger.signal`.
    """
    told = _Json(name)
    handle = await find_job(rows, job_id, queue)
    before = await handle.snapshot()
    is_new = await give_signal(rows.ledger, handle.ref, told, value, id=signal_id, by=by)
    after = await handle.snapshot()
    since = (each for each in after.signals if each.sequence > before.last_sequence and each.name == name)
    refused = next((each.refused for each in since if each.refused), "")
    return SignalReceipt(after, is_new, _signals_awaited(before), refused)


def _signals_awaited(job: Job) -> tuple[str, ...]:
    steps = (job.steps[key] for key in job.awaited if key in job.steps)
    return tuple(step.target for step in steps if awaited_of(step) == "signal")


async def pause_ref(ledger: Ledger, ref: JobRef, *, reason: str = "", by: str) -> Job:
    """Let a waiting job wait until a person resumes it, ask a running one to pause; return the job as it is after that.

    The open children of a run are paused with it.

    Raises: JobNotFoundError; IllegalTransitionError for a job that has ended, or was paused or asked already;
        UnreachableError.
    """
    job = await ledger.execute(ref, RequestPause(reason=reason), by=by)
    if job.state is JobState.RUNNING:
        ledger.hints.tell_resume(ref)
    return job


async def resume_ref(ledger: Ledger, ref: JobRef, *, reason: str = "", by: str) -> Job:
    """Let a job go on that a person paused, and its children that were paused with it; return it as it is after that.

    Raises: JobNotFoundError; IllegalTransitionError for a job that no person paused; UnreachableError.
    """
    command = ResumeJob(reason=reason)
    job = await would_accept(ledger, ref, command)
    if open_children(job.steps):
        # Imported here: no other act needs the code that children follow.
        from jobledger.workers.reactors.children.reach import ChildFollower  # noqa: PLC0415

        # Before the run itself: if this process dies in between, the run can still be resumed.
        await ChildFollower(ledger).resume(ref, job)
    return await ledger.execute(ref, command, by=by)


async def rerun_planned(
    rows: Rows, job_id: str, queue: str | None = None, **how: Unpack[RerunRequest]
) -> RerunPlan:
    """Return what `rerun` would begin now; nothing is written. Raises: as `rerun`."""
    return await plan_rerun(rows.ledger, (await find_job(rows, job_id, queue)).ref, **how)


async def rerun(
    rows: Rows, job_id: str, queue: str | None = None, **how: Unpack[RerunRequest]
) -> JobHandle[Any]:
    """Begin a run again as a new job that copies what it did. Raises: as `find_job` and `Ledger.rerun`."""
    ref = (await find_job(rows, job_id, queue)).ref
    return await rows.ledger.rerun(ref, **how)
