"""Job verbs: what a person does to one job. Each is stored with who did it and why, or changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final

from jobledger.admin import run_acts
from jobledger.admin.objects.jobs import JobNow, job_now
from jobledger.admin.verbs.kit import Place, Reason, Verb, option, verb
from jobledger.ledger.client import Ledger
from jobledger.ledger.dead_letters import Changes
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.outcome import DELAY_S_LIMIT

JobId = Annotated[str, option("The job's id, or a prefix that only one job has.", "ID")]
JobQueue = Annotated[str | None, option("Only this queue.", "QUEUE")]
_RUNNING: Final = JobState.RUNNING.value
_ASKED: Final = 202  #: status for a running job: its worker was asked, and acts a moment later
_ABOUT_ONE: Final = ("JOB_NOT_FOUND", "ARCHIVED", "LEDGER_DAMAGED")
_CHANGES: Final = (*_ABOUT_ONE, "ILLEGAL_TRANSITION", "PRECONDITION_FAILED", "LEDGER_FULL", "LEDGER_BUSY")
_ACT: Final[dict[str, Any]] = {
    "about": "own",
    "heeds": ("If-Match",),
    "problems": _CHANGES,
    "then": "/jobs/{queue}/{id}",
    "reads_rows": True,
}


def _on(name: str) -> str:
    return f"POST /v1/jobs/{{queue}}/{{id}}/{name}"


def _form(name: str) -> str:
    return f"/jobs/{{queue}}/{{id}}/{name}"


class JobVerb(Verb[JobNow], frozen=True, kw_only=True):
    """An act on one job."""

    id: JobId
    queue: JobQueue = None

    async def act(self, ledger: Ledger, ref: JobRef, by: str) -> Job:
        """Do it to the job that was found. Raises: what it says itself."""
        raise NotImplementedError

    async def do(self, place: Place) -> JobNow:
        """Find the job and do it. Raises: as `Place.act_on_job` and `act`."""
        permission = self.declaration.permission
        return job_now(
            await place.act_on_job(
                self.id, self.queue, permission, lambda ledger, ref: self.act(ledger, ref, place.by)
            )
        )

    def version_of(self, found: JobNow) -> int | None:
        """Return the sequence of the job's newest event."""
        return found.last_sequence


@verb(
    "jobs cancel",
    _on("cancel"),
    permission="cancel",
    summary="End a waiting job at once, ask a running one to end",
    form=_form("cancel"),
    also=(_ASKED,),
    has_own_command=True,
    **_ACT,
)
class CancelJob(JobVerb, frozen=True, kw_only=True):
    """End a waiting job at once, ask a running one to end."""

    reason: Reason = ""

    async def act(self, ledger: Ledger, ref: JobRef, by: str) -> Job:
        """Cancel it. Raises: as `Ledger.cancel`."""
        return await ledger.cancel(ref, reason=self.reason, by=by)

    def status_of(self, found: JobNow) -> int | None:
        """Say of a running job that it was asked to end."""
        return _ASKED if found.status == _RUNNING else None

    def say(self, found: JobNow) -> Iterator[str]:
        """Say whether it has ended, or who was asked."""
        if found.status != _RUNNING:
            yield f"job {found.id} is cancelled"
        else:
            yield f"job {found.id} runs on {found.worker}, which was asked to end it: `jobledger jobs show {found.id}`"


@verb(
    "jobs retry",
    _on("retry"),
    permission="cancel",
    summary="Queue a waiting job at once, or a dead letter for one more attempt",
    form=_form("retry"),
    has_own_command=True,
    **_ACT | {"problems": (*_CHANGES, "UNIQUE_KEY_TAKEN")},
)
class RetryJob(JobVerb, frozen=True, kw_only=True):
    """Queue a job that waits for a time at once, give a dead letter one more attempt."""

    reason: Reason = ""

    async def act(self, ledger: Ledger, ref: JobRef, by: str) -> Job:
        """Queue it. Raises: as `Ledger.retry`."""
        return await ledger.retry(ref, reason=self.reason, by=by)

    def say(self, found: JobNow) -> Iterator[str]:
        """Say where it is queued, and how many attempts it has."""
        left = f"{found.attempts_left} attempt{'s' if found.attempts_left > 1 else ''}"
        yield f"job {found.id} is queued in {found.queue} with {left} left"


@verb(
    "jobs reschedule",
    _on("reschedule"),
    permission="cancel",
    summary="Give a waiting job another time",
    form=_form("reschedule"),
    has_own_command=True,
    **_ACT,
)
class RescheduleJob(JobVerb, frozen=True, kw_only=True):
    """Give a job that waits for a time another one."""

    run_at: Annotated[datetime | None, option("When it is to be due.", "TIME", flag="--at")] = None
    delay_s: (
        Annotated[
            float, option("How long from now, such as 2h.", "SPAN", flag="--in", ge=0, le=DELAY_S_LIMIT)
        ]
        | None
    ) = None
    reason: Reason = ""

    def __post_init__(self) -> None:
        """Refuse a wish without a time, or with two. Raises: InvalidInputError."""
        if (self.run_at is None) == (self.delay_s is None):
            raise InvalidInputError(
                "say when the job is to be due: give run_at or delay_s, a time or a number of seconds, one of the two"
            )

    async def act(self, ledger: Ledger, ref: JobRef, by: str) -> Job:
        """Give it the time. Raises: as `Ledger.reschedule`."""
        return await ledger.reschedule(
            ref, run_at=self.run_at, delay_s=self.delay_s, reason=self.reason, by=by
        )

    def say(self, found: JobNow) -> Iterator[str]:
        """Say that it waits for another time."""
        yield f"job {found.id} is rescheduled"


@verb(
    "jobs pause",
    _on("pause"),
    permission="cancel",
    summary="Pause a job until it is resumed",
    form=_form("pause"),
    also=(_ASKED,),
    **_ACT,
)
class PauseJob(JobVerb, frozen=True, kw_only=True):
    """Pause a job until it is resumed: a waiting one at once, a running one at its next step or checkpoint.

    A task that makes neither steps nor checkpoints and runs already goes on to its end.
    """

    reason: Reason = ""

    async def act(self, ledger: Ledger, ref: JobRef, by: str) -> Job:
        """Pause it. Raises: as `pause_ref`."""
        return await run_acts.pause_ref(ledger, ref, reason=self.reason, by=by)

    def status_of(self, found: JobNow) -> int | None:
        """Say of a running job that it was asked to pause."""
        return _ASKED if found.status == _RUNNING else None

    def say(self, found: JobNow) -> Iterator[str]:
        """Say whether it is paused, or who was asked."""
        if found.status == JobState.PAUSED.value:
            yield f"job {found.id} is paused; `jobledger jobs resume {found.id}` lets it go on"
        else:
            yield (
                f"job {found.id} runs on {found.worker}, which was asked to pause it at its next step or "
                f"checkpoint; without any it goes on to its end: `jobledger jobs show {found.id} --why`"
            )


@verb(
    "jobs resume",
    _on("resume"),
    permission="cancel",
    summary="Let a paused job go on",
    form=_form("resume"),
    **_ACT,
)
class ResumeJob(JobVerb, frozen=True, kw_only=True):
    """Let a job go on that a person paused, and the children that were paused with it."""

    reason: Reason = ""

    async def act(self, ledger: Ledger, ref: JobRef, by: str) -> Job:
        """Let it go on. Raises: as `resume_ref`."""
        return await run_acts.resume_ref(ledger, ref, reason=self.reason, by=by)

    def say(self, found: JobNow) -> Iterator[str]:
        """Say whether it goes on, or waits as before."""
        if found.status in (JobState.QUEUED.value, JobState.HELD.value):
            yield f"job {found.id} is {found.status} in {found.queue}"
        else:
            yield f"job {found.id} waits as before it was paused: `jobledger jobs show {found.id} --why`"


@verb(
    "dlq requeue",
    _on("requeue"),
    permission="review",
    summary="Give a dead letter new attempts, perhaps with another input",
    has_own_command=True,
    **_ACT
    | {
        "problems": (
            *_CHANGES,
            "JOB_INVALID_INPUT",
            "PAYLOAD_TOO_LARGE",
            "PAYLOAD_GONE",
            "UNIQUE_KEY_TAKEN",
        )
    },
)
class RequeueJob(JobVerb, frozen=True, kw_only=True):
    """Give a dead letter new attempts; the old input stays in the ledger.

    Another input asks for another job, so it needs the permission `queue` as well.
    """

    input: Annotated[dict[str, Any] | None, option("The whole new input; left out: as before.", "JSON")] = (
        None
    )
    edit: Annotated[
        dict[str, Any] | None, option("Arguments to replace; the others stay as they are.", "JSON")
    ] = None
    attempts: Annotated[int, option("How many more it may have.", "N", ge=1, le=1_000)] = 1
    priority: Annotated[Priority | None, option("Left out: as before.", "LEVEL")] = None
    reason: Reason = ""

    async def do(self, place: Place) -> JobNow:
        """Requeue it. Raises: AccessDeniedError, and as every act on a job."""
        if self.input is not None or self.edit is not None:
            place.principal.require("queue", self.queue)
        return await super().do(place)

    async def act(self, ledger: Ledger, ref: JobRef, by: str) -> Job:
        """Requeue it. Raises: as `Ledger.requeue`."""
        changes: Changes = {
            "input": self.input,
            "edit": self.edit,
            "attempts": self.attempts,
            "priority": self.priority,
            "reason": self.reason,
        }
        return await ledger.requeue(ref, by=by, **changes)

    def say(self, found: JobNow) -> Iterator[str]:
        """Say that it is requeued."""
        yield f"job {found.id} is requeued"


@verb(
    "dlq discard",
    _on("discard"),
    permission="review",
    summary="Close a dead letter for good",
    form=_form("discard"),
    has_own_command=True,
    **_ACT,
)
class DiscardJob(JobVerb, frozen=True, kw_only=True):
    """Close a dead letter for good; every event of it is kept."""

    reason: Reason = ""

    async def act(self, ledger: Ledger, ref: JobRef, by: str) -> Job:
        """Close it. Raises: as `Ledger.discard`."""
        return await ledger.discard(ref, reason=self.reason, by=by)

    def say(self, found: JobNow) -> Iterator[str]:
        """Say that it is closed."""
        yield f"job {found.id} is discarded"


@verb(
    "jobs note",
    _on("note"),
    permission="review",
    summary="Keep a note about a job",
    form=_form("note"),
    asks_why=False,
    **_ACT
    | {"problems": (*_ABOUT_ONE, "PRECONDITION_FAILED", "JOB_INVALID_INPUT", "LEDGER_FULL", "LEDGER_BUSY")},
)
class NoteJob(JobVerb, frozen=True, kw_only=True):
    """Keep a note about a job, in whatever state it is; it changes nothing, and stays with the job's events."""

    text: Annotated[str, option("The note, at most 4,000 characters.", "TEXT", is_argument=True)]

    async def act(self, ledger: Ledger, ref: JobRef, by: str) -> Job:
        """Keep it. Raises: as `Ledger.note`."""
        return await ledger.note(ref, self.text, by=by)

    def say(self, found: JobNow) -> Iterator[str]:
        """Say where it is shown."""
        yield f"kept with job {found.id}; `jobledger jobs show {found.id}` shows it"
