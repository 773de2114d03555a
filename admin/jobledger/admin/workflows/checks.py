"""Whether recorded runs fit the code at hand: each one is rehearsed in memory, and nothing is called or appended."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, cast

import msgspec

from jobledger.admin.rows import Rows, View
from jobledger.admin.workflows.versions import IS_RUN
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.errors import ErasedError, KeyUnavailableError, PayloadMissingError
from jobledger.ledger.model.job import FINAL_STATES, Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.times import time_text
from jobledger.ledger.runs.rehearsal import RehearsalResult, rehearse
from jobledger.ledger.runs.workflow import WorkflowFunction
from jobledger.ledger.tasks import TaskRegistry

#: Runs that are read and rehearsed at a time: each is in memory as a whole.
_AT_ONCE: Final = 16
_PAGE: Final = 256
#: A rehearsal is given up after this many seconds: its code waits for something that is no step.
_RUN_S_MAX: Final = 10.0
#: At most this many runs are named of each outcome; the others are counted.
NAMED_MAX: Final = 100
_WORDS_MAX: Final = 500

_OPEN_STATES: Final = ", ".join(f"'{each.value}'" for each in sorted(set(JobState) - FINAL_STATES))
#: A run that diverged counts as open: once its code is mended, a requeue of the dead letter goes on with its steps.
_OPEN: Final = f"(status IN ({_OPEN_STATES}) OR (status = 'dead_lettered' AND dead_reason = 'diverged'))"
_SINCE: Final = "created_at >= ?"

#: `fits`: all recorded steps fit. `in_part`: the code asks for a new step before recorded ones, which were not
#: compared. `diverges`: it asks for another step than is recorded. `fails`: the function raised something, perhaps as
#: before. `missing`: the code at hand has no such workflow or version. `unread`: a recorded value is gone, or it took
#: too long.
Outcome = Literal["fits", "in_part", "diverges", "fails", "missing", "unread"]


class RunCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the rehearsal of one run."""

    queue: str
    id: str
    task: str
    version: str
    status: str
    outcome: Outcome
    step: str = ""  #: the key of the step that diverges, or of the first new one
    sequence: int = 0  #: the stream sequence of the recorded step's newest event
    recorded: str = ""  #: the recorded step, in words
    asked: str = ""  #: what the code asks for
    more: str = ""  #: further words on the outcome

    @property
    def sentence(self) -> str:
        """Say what is wrong, for a person."""
        if self.outcome != "diverges":
            return self.more
        return (
            f"step {self.step!r} was recorded at stream sequence {self.sequence} {self.recorded}; "
            f"the code asks for {self.asked}"
        )


class RunsCheck(msgspec.Struct, kw_only=True):
    """The outcome of a check of many runs."""

    runs: int = 0
    counts: dict[str, int] = {}
    named: list[
        RunCheck
    ] = []  #: runs that do not simply fit, `NAMED_MAX` of each outcome, in the order of their ids

    def add(self, found: RunCheck) -> None:
        """Count one."""
        self.runs += 1
        count = self.counts[found.outcome] = self.counts.get(found.outcome, 0) + 1
        if found.outcome != "fits" and count <= NAMED_MAX:
            self.named.append(found)

    @property
    def first_diverged(self) -> RunCheck | None:
        """The first run that diverges."""
        return next((each for each in self.named if each.outcome == "diverges"), None)


async def check_runs(rows: Rows, tasks: TaskRegistry, *, since: datetime | None = None) -> RunsCheck:
    """Rehearse the open runs, or all that were made since a moment, against the workflows of a registry.

    In bounded memory: a few runs at a time. Runs whose events are all in an archive are left out.

    Raises: ProjectionError, UnreachableError.
    """
    checked = RunsCheck()
    where, given = (_OPEN, ()) if since is None else (_SINCE, (time_text(since),))
    async with rows.opened() as view:
        total = int(view.store.select(f"SELECT count(*) FROM jobs WHERE {where} AND {IS_RUN}", given)[0][0])  # noqa: S608
        with rows.progress("rehearsing runs") as progress:
            after: tuple[str, str] = ("", "")
            while some := _page(view, where, given, after):
                for start in range(0, len(some), _AT_ONCE):
                    refs = [
                        JobRef(queue=queue, job_id=job_id) for job_id, queue in some[start : start + _AT_ONCE]
                    ]
                    found = await asyncio.gather(*(_check(rows.ledger, tasks, ref) for ref in refs))
                    for each in found:
                        if each is not None:
                            checked.add(each)
                    progress(min(checked.runs, total), total)
                after = some[-1]
    return checked


def _page(view: View, where: str, given: Sequence[object], after: tuple[str, str]) -> list[tuple[str, str]]:
    sql = f"SELECT id, queue FROM jobs WHERE {where} AND (id, queue) > (?, ?) AND {IS_RUN} ORDER BY id, queue LIMIT ?"  # noqa: S608
    return cast("list[tuple[str, str]]", view.store.select(sql, (*given, *after, _PAGE)))


async def _check(ledger: Ledger, tasks: TaskRegistry, ref: JobRef) -> RunCheck | None:
    job = (await load(ledger.log, ref)).job
    if job is None:
        return None  # all of it is in an archive
    workflow = tasks.of_version(job.task, job.order.version)
    if not isinstance(workflow, WorkflowFunction):
        return _told(job, "missing", more=f"the code has no workflow {_named(job)}")
    plain = cast("WorkflowFunction[..., Any, ..., Any]", workflow)
    get = functools.partial(ledger.inputs.get, key=job.order.key)
    try:
        async with asyncio.timeout(_RUN_S_MAX):
            key = await ledger.keys.key(job.order.key) if job.order.key else None
            found = await rehearse(plain, job, now=ledger.clock.now(), get=get, key=key)
    except TimeoutError:
        return _told(job, "unread", more=f"its code took more than {_RUN_S_MAX:g} s between two steps")
    except (PayloadMissingError, ErasedError, KeyUnavailableError) as error:
        return _told(job, "unread", more=str(error))
    return _outcome(job, found)


def _outcome(job: Job, found: RehearsalResult) -> RunCheck:
    if found.diverged is not None:
        error = found.diverged
        return _told(
            job,
            "diverges",
            step=error.key,
            sequence=error.sequence or job.steps[error.key].sequence,
            recorded=error.recorded,
            asked=error.asked,
        )
    if found.error is not None:
        return _told(job, "fails", more=f"{type(found.error).__name__}: {found.error}")
    if found.new and found.unvisited:
        left = len(found.unvisited)
        return _told(
            job,
            "in_part",
            step=found.new[0],
            more=f"step {found.new[0]!r} is new; {left:,} recorded {'step' if left == 1 else 'steps'} may come after it",
        )
    return _told(job, "fits")


def _told(job: Job, outcome: Outcome, **more: Any) -> RunCheck:
    cut: dict[str, Any] = {
        key: value[:_WORDS_MAX] if isinstance(value, str) else value for key, value in more.items()
    }
    return RunCheck(
        queue=job.queue,
        id=job.id,
        task=job.task,
        version=job.order.version,
        status=job.state.value,
        outcome=outcome,
        **cut,
    )


def _named(job: Job) -> str:
    return f"{job.task} of version {job.order.version}" if job.order.version else job.task
