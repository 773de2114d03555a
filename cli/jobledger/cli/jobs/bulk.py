"""`jobledger jobs cancel`, `retry`, `reschedule`, `discard` and `queues purge`: acts on one job, or on many with a plan first."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from jobledger.admin.bulk import Act, cancel_act, discard_act, reschedule_act, retry_act
from jobledger.admin.choice import JobChoice, find_jobs
from jobledger.admin.verbs.jobs import CancelJob, RetryJob
from jobledger.cli import bulk, options
from jobledger.cli.command import CHOOSES, ROWS, Cli, command
from jobledger.cli.errors import DONE, UsageError
from jobledger.cli.groups import JOBS, QUEUES
from jobledger.cli.search import ids_and_search, parsed
from jobledger.cli.session import operator
from jobledger.cli.times import parse_span, seconds, time_of
from jobledger.cli.verbs import perform
from jobledger.ledger import JobState
from jobledger.ledger.model.job import PENDING_STATES
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.outcome import DELAY_S_LIMIT, moment_of

_Task = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only jobs of this task.")]
_Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only jobs enqueued at this time or later.")
]
_OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="SPAN", help="Only jobs enqueued longer ago than this.")
]
_All = Annotated[bool, typer.Option("--all", metavar="", help="Jobs of all queues.")]
_PurgedQueue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue to empty.")]

_To = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="When they are to be due (UTC), such as 18:30.")
]
_In = Annotated[
    float | None,
    typer.Option(
        "--in", metavar="SPAN", parser=seconds(maximum=DELAY_S_LIMIT), help="How long from now, such as 2h."
    ),
]

_CANCELLED: Final = (*(state for state in JobState if state in PENDING_STATES), JobState.RUNNING)
_RETRIED: Final = (
    JobState.RETRY_WAIT,
    JobState.SCHEDULED,
    JobState.WAITING,
    JobState.PAUSED,
    JobState.DEAD_LETTERED,
)
_RESCHEDULED: Final = (JobState.SCHEDULED, JobState.RETRY_WAIT)
_DISCARDED: Final = (JobState.DEAD_LETTERED,)


class _Choice(options.OptionGroup, frozen=True):
    """The options that choose jobs, beside those of `CHOOSES`."""

    queue: options.Queue = None
    task: _Task = None
    since: _Since = None
    older_than: _OlderThan = None
    everything: _All = False


class _StateChoice(_Choice, frozen=True):
    state: options.State = None


def _choice(cli: Cli, of: tuple[JobState, ...], chosen: _Choice, ids: list[str] | None = None) -> JobChoice:
    """Return the checked choice of jobs for an act on the states `of`. Raises: UsageError, InvalidTokenError."""
    for field, value in (("queue", chosen.queue), ("task name", chosen.task)):
        if value is not None:
            check_token(field, value)
    state = chosen.state if isinstance(chosen, _StateChoice) else None
    if state is not None and state not in of:
        able = ", ".join(each.value for each in of)
        raise UsageError(f"--state {state.value}: such jobs are left as they are; give one of {able}")
    named, sought = ids_and_search(ids)
    left = [each for each in parsed(sought).states if each not in of]
    if left:
        raise UsageError(f"state:{left[0]}: such jobs are left as they are; leave it out")
    choice = JobChoice(
        ids=tuple(dict.fromkeys(named)),
        search=sought,
        queue=chosen.queue,
        task=chosen.task,
        states=() if state is None else (state.value,),
        since=time_of("--since", chosen.since),
        older_than=None if chosen.older_than is None else parse_span("--older-than", chosen.older_than),
        said=cli.said,
        everything=chosen.everything,
    )
    bulk.check_chosen(choice, "jobs", "--state")
    return choice


async def _perform(cli: Cli, choice: JobChoice, act: Act, doing: bulk.ActOptions, *, detail: str = "") -> int:
    """Do the act to all chosen jobs, or show the plan; return the exit code."""
    asked = bulk.BulkAct(
        find=functools.partial(find_jobs, choice=choice, states=act.states, limit=doing.limit),
        by_id=len(choice.ids),
        act=act,
        noun="job",
        detail=detail,
        refused="their states do not allow it",
        doing=doing,
    )
    return await bulk.perform_all(cli, asked)


@command(JOBS, "cancel", takes=CHOOSES)
async def cancel(
    cli: Cli,
    *,
    ids: bulk.Ids = None,
    reason: bulk.Why = "",
    chosen: _StateChoice,
    doing: bulk.ActOptions,
) -> int:
    """Cancel jobs: waiting ones at once, running ones when their workers receive the request."""
    choice = _choice(cli, _CANCELLED, chosen, ids)
    if len(choice.ids) == 1 and not doing.plan:
        await perform(cli, CancelJob(id=choice.ids[0], queue=chosen.queue, reason=reason))
        return DONE
    act = cancel_act(reason, by=operator())
    return await _perform(cli, choice, act, doing)


@command(JOBS, "retry", takes=CHOOSES)
async def retry(
    cli: Cli,
    *,
    ids: bulk.Ids = None,
    reason: bulk.Why = "",
    chosen: _StateChoice,
    doing: bulk.ActOptions,
) -> int:
    """Queue waiting jobs now instead of at their time, dead letters for one more attempt; options choose retries."""
    choice = _choice(cli, _RETRIED, chosen, ids)
    if len(choice.ids) == 1 and not doing.plan:
        await perform(cli, RetryJob(id=choice.ids[0], queue=chosen.queue, reason=reason))
        return DONE
    act = retry_act(reason, by=operator())
    return await _perform(cli, choice, act, doing)


@command(JOBS, "reschedule", takes=CHOOSES)
async def reschedule(
    cli: Cli,
    *,
    ids: bulk.Ids = None,
    at: _To = None,
    in_s: _In = None,
    reason: bulk.Why = "",
    chosen: _StateChoice,
    doing: bulk.ActOptions,
) -> int:
    """Give jobs that are scheduled or wait for a retry another time; options choose scheduled ones."""
    if (at is None) == (in_s is None):
        raise UsageError("say when the jobs are to be due: --at TIME or --in SPAN, one of the two")
    moment = time_of("--at", at, ahead=True)
    run_at = moment_of(moment, in_s, datetime.now(UTC))
    choice = _choice(cli, _RESCHEDULED, chosen, ids)
    act = reschedule_act(run_at, reason, by=operator())
    detail = f" to {shown_time(run_at)}"
    return await _perform(cli, choice, act, doing, detail=detail)


@command(JOBS, "discard", takes=CHOOSES)
async def discard(
    cli: Cli,
    *,
    ids: bulk.Ids = None,
    reason: bulk.Why = "",
    chosen: _Choice,
    doing: bulk.ActOptions,
) -> int:
    """Close dead letters for good; `dlq discard` also chooses them by error."""
    choice = _choice(cli, _DISCARDED, chosen, ids)
    act = discard_act(reason, by=operator())
    return await _perform(cli, choice, act, doing)


@command(QUEUES, "purge", takes=ROWS)
async def purge(
    cli: Cli,
    *,
    queue: _PurgedQueue,
    reason: bulk.Why = "",
    older_than: _OlderThan = None,
    doing: bulk.ActOptions,
) -> int:
    """Cancel every job that waits in a queue; those that run continue, and every event is kept."""
    choice = _choice(cli, _CANCELLED, _Choice(queue=queue, older_than=older_than))
    act = cancel_act(reason, by=operator(), running=False)
    return await _perform(cli, choice, act, doing)
