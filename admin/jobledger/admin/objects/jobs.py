"""One job as an object: whole, its steps, its graph, what it waits for, its trail. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from jobledger.admin.run_graph import Node, graph_of
from jobledger.admin.runs import RunRecord, StepShown, step_shown
from jobledger.admin.views import JobDetails
from jobledger.audit.clocks import Clocks
from jobledger.audit.trail import Line, Summary, Trail
from jobledger.audit.verify.links import ChainCheck
from jobledger.audit.why import Why
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.fingerprint import job_fingerprint
from jobledger.ledger.model.job import Job, JobState
from jobledger.projections import Moment
from jobledger.projections.tables.steps import SignalRow


class CheckedChain(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the hash links of a chain found; see `ChainCheck`."""

    events: int
    broken_at: int | None  #: stream sequence of the first event whose link does not hold; None: all hold
    problem: str  #: one sentence on that link
    archived_before: bool  #: the chain begins before the ledger does: those links were not checked
    text: str  #: all of it in words


class JobName(msgspec.Struct, frozen=True, kw_only=True):
    """Which job, and its state."""

    id: str
    queue: str
    status: str


class JobNow(JobName, frozen=True, kw_only=True):
    """A job after an act, in few words."""

    last_sequence: int  #: stream sequence of its newest event
    attempts_left: int
    due_at: datetime | None  #: when it moves on by itself
    cancel_requested: bool  #: it runs, and its worker was asked to end it
    pause_requested: bool  #: it runs, and its worker was asked to pause it
    worker: str | None  #: who runs it; None: nobody


class JobShown(JobDetails, frozen=True, kw_only=True):
    """A job with everything that its events tell, now or as of a past moment; times are UTC."""

    as_of: Moment | msgspec.UnsetType = msgspec.UNSET  #: the past moment; left out of a job as it is now
    chain: CheckedChain


class DeadLetterShown(JobDetails, frozen=True, kw_only=True):
    """A dead letter with everything that its events tell."""

    fingerprint: str  #: equal for what is most likely one cause
    chain: CheckedChain


class WhyShown(Why, frozen=True, kw_only=True):
    """What a job waits for."""

    id: str


class StepsShown(JobName, frozen=True, kw_only=True):
    """What a run has done so far."""

    steps: list[StepShown]  #: in the order in which they were recorded first
    signals: list[SignalRow]
    chain: CheckedChain


class GraphShown(JobName, frozen=True, kw_only=True):
    """The steps of a run, and what came after what; see `RunGraph`."""

    nodes: tuple[Node, ...]  #: nodes in an order in which they can run
    edges: tuple[tuple[str, str], ...]  #: pairs of a node and one that comes after it
    hidden: int  #: how many nodes are left out
    chain: CheckedChain


class LineShown(Line, frozen=True, kw_only=True):
    """One event of a trail, also as one line of words."""

    words: str = msgspec.field(name="text")


class SummaryShown(Summary, frozen=True, kw_only=True):
    """The summary of a trail, also as one line of words."""

    words: str = msgspec.field(name="text")


class TrailShown(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a job, event by event, in words."""

    id: str
    queue: str
    task: str
    times: Literal["server", "events"]  #: whose clock gave the times
    times_apart_s: float  #: the greatest difference between an event's two times
    lines: list[LineShown]
    summary: SummaryShown
    chain: CheckedChain


class ChainShown(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to something that is no job: a lock, a reactor."""

    chain: str  #: what a person calls it: `lock account/42`
    times: Literal["server", "events"]
    times_apart_s: float
    lines: list[LineShown]
    check: CheckedChain


def checked(check: ChainCheck) -> CheckedChain:
    """Return what a check found, as an object."""
    return CheckedChain(
        events=check.events,
        broken_at=check.broken_at,
        problem=check.problem,
        archived_before=check.archived_before,
        text=check.text(),
    )


def job_now(job: Job) -> JobNow:
    """Return a job after an act."""
    return JobNow(
        id=job.id,
        queue=job.queue,
        status=job.state.value,
        last_sequence=job.last_sequence,
        attempts_left=job.attempts_left,
        due_at=job.due_at,
        cancel_requested=job.cancel_requested,
        pause_requested=job.pause_requested,
        worker=job.attempts[-1].worker if job.state is JobState.RUNNING else None,
    )


def dead_letter_shown(details: JobDetails, job: Job, check: ChainCheck) -> DeadLetterShown:
    """Return a dead letter whole."""
    fields = msgspec.structs.asdict(details)
    return DeadLetterShown(**fields, fingerprint=job_fingerprint(job), chain=checked(check))


def why_shown(job: Job, why: Why) -> WhyShown:
    """Return what a job waits for."""
    return WhyShown(id=job.id, **msgspec.structs.asdict(why))


def steps_shown(run: RunRecord, check: ChainCheck, *, results: bool = False) -> StepsShown:
    """Return the steps of a run, and the signals that it was sent; with `results` the inputs and results of steps."""
    job = run.job
    return StepsShown(
        id=job.id,
        queue=job.queue,
        status=job.state.value,
        steps=[step_shown(run, row, values=results) for row in run.steps],
        signals=run.signals,
        chain=checked(check),
    )


def graph_shown(job: Job, check: ChainCheck) -> GraphShown:
    """Return the steps of a run as a graph."""
    drawn = graph_of(job)
    return GraphShown(
        id=job.id,
        queue=job.queue,
        status=job.state.value,
        nodes=drawn.nodes,
        edges=drawn.edges,
        hidden=drawn.hidden,
        chain=checked(check),
    )


def lines_shown(lines: Sequence[Line]) -> list[LineShown]:
    """Return the lines of a trail with their words."""
    return [LineShown(**msgspec.structs.asdict(line), words=line.text()) for line in lines]


def chain_shown(label: str, lines: Sequence[Line], clocks: Clocks, check: ChainCheck) -> ChainShown:
    """Return what happened to something that is no job."""
    return ChainShown(
        chain=label,
        times=clocks.of,
        times_apart_s=clocks.apart_s,
        lines=lines_shown(lines),
        check=checked(check),
    )


def trail_shown(history: Sequence[StoredEvent], trail: Trail, check: ChainCheck) -> TrailShown:
    """Return what happened to the job of these events; there is at least one."""
    event, summary = history[0].event, trail.summary
    return TrailShown(
        id=event.job,
        queue=event.queue,
        task=event.task,
        times=trail.clocks.of,
        times_apart_s=trail.clocks.apart_s,
        lines=lines_shown(trail.lines),
        summary=SummaryShown(**msgspec.structs.asdict(summary), words=summary.text()),
        chain=checked(check),
    )
