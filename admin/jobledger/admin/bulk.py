"""Acts on jobs, one or many: first as a plan that changes nothing, then for good."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

import anyio
import msgspec

from jobledger.admin.choice import ChosenJob
from jobledger.admin.rows import Rows
from jobledger.ledger.client import Ledger
from jobledger.ledger.dead_letters import RequeueOptions, plan_requeue, requeue
from jobledger.ledger.handle import would_accept
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import CancelJob, Discard, Reschedule
from jobledger.ledger.model.decisions import retry_command
from jobledger.ledger.model.errors import (
    AccessDeniedError,
    IllegalTransitionError,
    InvalidError,
    NotFoundError,
    PayloadMissingError,
    UniqueKeyTakenError,
)
from jobledger.ledger.model.job import PENDING_STATES, Job, JobState

_AT_ONCE: Final = 32
_DEAD: Final = (JobState.DEAD_LETTERED.value,)
_WAITING: Final = tuple(state.value for state in JobState if state in PENDING_STATES)

Result = Literal["planned", "done", "refused", "invalid"]


class Effect(NamedTuple):
    """The facts that a successful act returns."""

    input_text: bytes | None = None  #: the new input as JSON, where there is one
    about: str = ""  #: what happens next


#: Plans or performs an act on one job.
Step = Callable[[Ledger, ChosenJob], Awaitable[Effect]]


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One verb on jobs: how it is tried and how it is done, each on one job."""

    verb: Literal["cancel", "retry", "reschedule", "requeue", "discard"]
    past: Literal["cancelled", "queued", "rescheduled", "requeued", "discarded"]
    states: tuple[str, ...]  #: states that a condition chooses from if it names none
    plan: Step
    do: Step


class ActResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one job."""

    chosen: ChosenJob
    result: Result  #: refused: its state does not allow it; invalid: it cannot be done as it was asked for
    message: str = ""  #: why it was not done, or what is still to come
    input_text: bytes | None = None  #: the new input as JSON, where there is one


def requeue_act(how: Callable[[ChosenJob], RequeueOptions], *, by: str) -> Act:
    """Give new attempts; `how` gets the job, since a new input is read by the types of that job's task."""

    async def plan(ledger: Ledger, chosen: ChosenJob) -> Effect:
        return Effect((await plan_requeue(ledger, chosen.ref, how(chosen))).input_text)

    async def do(ledger: Ledger, chosen: ChosenJob) -> Effect:
        return Effect((await requeue(ledger, chosen.ref, how(chosen), by=by)).input_text)

    return Act(verb="requeue", past="requeued", states=_DEAD, plan=plan, do=do)


def discard_act(reason: str, *, by: str) -> Act:
    """Close for good; every event is kept."""

    async def plan(ledger: Ledger, chosen: ChosenJob) -> Effect:
        await would_accept(ledger, chosen.ref, Discard(reason=reason))
        return Effect()

    async def do(ledger: Ledger, chosen: ChosenJob) -> Effect:
        await ledger.execute(chosen.ref, Discard(reason=reason), by=by)
        return Effect()

    return Act(verb="discard", past="discarded", states=_DEAD, plan=plan, do=do)


def cancel_act(reason: str, *, by: str, running: bool = True) -> Act:
    """End waiting jobs at once, ask running ones to end; without `running` conditions choose waiting ones alone."""

    async def plan(ledger: Ledger, chosen: ChosenJob) -> Effect:
        return _asked_to_end(await would_accept(ledger, chosen.ref, CancelJob(reason=reason)), done=False)

    async def do(ledger: Ledger, chosen: ChosenJob) -> Effect:
        return _asked_to_end(await ledger.cancel(chosen.ref, reason=reason, by=by), done=True)

    states = (*_WAITING, JobState.RUNNING.value) if running else _WAITING
    return Act(verb="cancel", past="cancelled", states=states, plan=plan, do=do)


def _asked_to_end(job: Job, *, done: bool) -> Effect:
    if job.state is not JobState.RUNNING:
        return Effect()
    return Effect(
        about=f"runs on {job.attempts[-1].worker}, which {'was' if done else 'would be'} asked to end it"
    )


def retry_act(reason: str, *, by: str) -> Act:
    """Queue now jobs that wait for a time, give dead letters one more attempt; conditions choose retries that wait."""

    async def plan(ledger: Ledger, chosen: ChosenJob) -> Effect:
        job = (await load(ledger.log, chosen.ref)).job
        await would_accept(ledger, chosen.ref, retry_command(job, chosen.ref.job_id, reason))
        return Effect()

    async def do(ledger: Ledger, chosen: ChosenJob) -> Effect:
        await ledger.retry(chosen.ref, reason=reason, by=by)
        return Effect()

    return Act(verb="retry", past="queued", states=(JobState.RETRY_WAIT.value,), plan=plan, do=do)


def reschedule_act(run_at: datetime, reason: str, *, by: str) -> Act:
    """Move jobs that wait for a time to another time; conditions choose scheduled jobs, and no retries."""

    async def plan(ledger: Ledger, chosen: ChosenJob) -> Effect:
        await would_accept(ledger, chosen.ref, Reschedule(run_at=run_at))
        return Effect()

    async def do(ledger: Ledger, chosen: ChosenJob) -> Effect:
        await ledger.reschedule(chosen.ref, run_at=run_at, reason=reason, by=by)
        return Effect()

    states = (JobState.SCHEDULED.value,)
    return Act(verb="reschedule", past="rescheduled", states=states, plan=plan, do=do)


async def perform_one(ledger: Ledger, act: Act, chosen: ChosenJob, *, plan: bool) -> ActResult:
    """Try it on one job, or do it.

    Raises: AccessDeniedError, IllegalTransitionError, UniqueKeyTakenError, NotFoundError, InvalidError, PayloadMissingError,
        UnreachableError.
    """
    effect = await (act.plan if plan else act.do)(ledger, chosen)
    return ActResult(
        chosen=chosen,
        result="planned" if plan else "done",
        message=effect.about,
        input_text=effect.input_text,
    )


async def perform(rows: Rows, act: Act, chosen: Sequence[ChosenJob], *, plan: bool) -> list[ActResult]:
    """Try the act on each, or do it, several at once; a refused one does not stop the others.

    Raises: UnreachableError.
    """
    outcomes: dict[int, ActResult] = {}
    left = iter(enumerate(chosen))

    async def work() -> None:
        for number, each in left:
            outcomes[number] = await _outcome(rows.ledger, act, each, plan=plan)
            progress(len(outcomes), len(chosen))

    with rows.progress(f"looking at what to {act.verb}" if plan else act.past) as progress:
        try:
            async with anyio.create_task_group() as group:
                for _ in range(min(_AT_ONCE, len(chosen))):
                    group.start_soon(work)
        except ExceptionGroup as errors:  # several workers may fail at once for one reason: say it once
            raise errors.exceptions[0] from errors
    return [outcomes[number] for number in sorted(outcomes)]


async def _outcome(ledger: Ledger, act: Act, chosen: ChosenJob, *, plan: bool) -> ActResult:
    try:
        return await perform_one(ledger, act, chosen, plan=plan)
    except (AccessDeniedError, IllegalTransitionError, NotFoundError, UniqueKeyTakenError) as error:
        return ActResult(chosen=chosen, result="refused", message=str(error))
    except (InvalidError, PayloadMissingError) as error:
        return ActResult(chosen=chosen, result="invalid", message=str(error))
