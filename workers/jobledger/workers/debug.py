"""Another run of one attempt of a job, here, in a ledger that exists only in memory: nothing real is written.

Of a run only the unfinished steps are executed: recorded steps return their results, and no children are made.
Everything the attempt needs is fetched first (`fetch`), so it can run without a server (`run`): a debugger may hold it
for an hour. The task's code is the one that is loaded here, and its effects on the outside world are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from jobledger.audit.export.payloads import PayloadFiles
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import JobView, commit, fold
from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.codec import StoredEvent, digest
from jobledger.ledger.model.commands import (
    Claim,
    Command,
    Dispatch,
    Fail,
    Interrupt,
    Outcome,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import (
    AttemptStoppedError,
    IllegalTransitionError,
    InvalidInputError,
    PayloadMissingError,
    UnreachableError,
)
from jobledger.ledger.model.events import (
    PayloadRef,
    Started,
    StepCompleted,
    StepFailed,
    StepStarted,
    event_type,
)
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.lifecycle import ENDING_TYPES
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.runs.orders import items_of
from jobledger.ledger.model.subjects import JobRef, Names
from jobledger.ledger.options import Rules
from jobledger.ledger.runs.members import MemberEnd
from jobledger.ledger.tasks import Task
from jobledger.workers.attempt.abandoned import AbandonedSlots
from jobledger.workers.attempt.control import Attempt, Control
from jobledger.workers.attempt.execution import Execution
from jobledger.workers.attempt.threads import Threads
from jobledger.workers.pool.pool import PoolConfig, ProcessPool
from jobledger.workers.retry_policy import RetryPolicy
from jobledger.workers.runs.children import ChildJobs
from jobledger.workers.runs.execution import RunExecution
from jobledger.workers.runs.journal import RunSurroundings
from jobledger.workers.surroundings import Surroundings

# A log in memory that begins with stored events, each at its own stream sequence, and goes on behind them.
# For `debug`: a sequence in an event still names the same event, such as the signal that a step took.


class _PastLog(MemoryLog):
    """Holds chains of jobs; it is read by chain and appended to, and in no other way."""

    def __init__(self, past: Sequence[StoredEvent], *, names: Names, clock: Clock) -> None:
        """`past`: whole chains, or their beginnings, in any order."""
        super().__init__(names=names, clock=clock)
        held = sorted(past, key=lambda stored: stored.stream_sequence)
        self._past = [stored.stream_sequence for stored in held]
        newest: dict[str, int] = {}
        for stored in held:
            event = stored.event
            chain = names.chain(JobRef(queue=event.queue, job_id=event.job))
            self._store([Entry(stored.subject, stored.data, chain, newest.get(chain, 0))])
            newest[chain] = stored.stream_sequence

    def _sequence(self, index: int) -> int:
        known = len(self._past)
        return self._past[index] if index < known else (self._past[-1] if known else 0) + index - known + 1


#: The author of events in a ledger in memory.
DEBUGGER: Final = "debug"
_LEASE_S: Final = 3600.0


class Material(msgspec.Struct, frozen=True, kw_only=True):
    """All data that an attempt used."""

    ref: JobRef
    attempt: int
    before: tuple[StoredEvent, ...]  #: the job's events before the attempt, oldest first
    recorded: tuple[
        StoredEvent, ...
    ]  #: the job's events from this attempt up to the next one, as far as the ledger has them
    values: dict[str, bytes]  #: sha256 -> large input, checkpoint, result of a step or value of a signal
    source: tuple[StoredEvent, ...] = ()  #: for a rerun: the events of the run whose steps it copies
    ends: dict[str, dict[int, MemberEnd]] = {}  #: for a run: the ends of its children, by step and item

    @property
    def task(self) -> str:
        """The name of the job's task."""
        return self.before[0].event.task

    @property
    def timeout_s(self) -> float | None:
        """How long the attempt may take; None: without limit."""
        job = fold(self.before).job
        return None if job is None else job.order.timeout_s


class DebugResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attempt that was run again."""

    job: Job
    events: tuple[
        StoredEvent, ...
    ]  #: the events that would have been appended, from `started` to the attempt's end
    error: BaseException | None  #: the exception that the task raised


async def fetch(
    ledger: Ledger,
    history: Sequence[StoredEvent],
    attempt: int | None = None,
    *,
    exports: Sequence[Path] = (),
) -> Material:
    """Fetch all data that an attempt used; without `attempt` the newest one, or the first of a job that never ran.

    Large values that the ledger no longer has are read from `exports`.

    `attempt` may also be the newest one's number plus 1: the attempt that would run next.

    Raises: InvalidInputError when there is no such attempt, it was archived, or the job's values were redacted;
        PayloadMissingError, UnreachableError.
    """
    event, now = history[0].event, fold(history).job
    if any(stored.redacted for stored in history):
        raise InvalidInputError(
            f"the values of job {event.job} were redacted in the archive: it cannot run again"
        )
    assert now is not None, "a job that is there has events"
    starts = {
        stored.event.attempt: index
        for index, stored in enumerate(history)
        if isinstance(stored.event, Started)
    }
    count = now.attempts_count
    chosen = attempt if attempt is not None else max(1, count)
    if not 1 <= chosen <= count + 1:
        had = f"{count} attempt{'' if count == 1 else 's'}"
        raise InvalidInputError(
            f"job {event.job} has had {had}: give --attempt 1 to {count + 1}, the last being the next one"
        )
    if chosen <= count and chosen not in starts:
        first = min(starts, default=count + 1)
        raise InvalidInputError(
            f"attempt {chosen} of job {event.job} was archived, with what it ran on, which --archive DIR reads: the first "
            f"that the ledger has is --attempt {first}{'' if starts else ', the next one'}"
        )
    begin = starts.get(chosen, len(history))
    end = min((index for index in starts.values() if index > begin), default=len(history))
    before = tuple(history[:begin])
    job = fold(before).job
    assert job is not None, "an attempt has events before it"
    source = await _source(ledger, job)
    copied = fold(source).job
    return Material(
        ref=JobRef(queue=event.queue, job_id=event.job),
        attempt=chosen,
        before=before,
        recorded=tuple(history[begin:end]),
        values=await _large_values(ledger, [job] if copied is None else [job, copied], exports),
        source=source,
        ends=await _ends(ledger, job),
    )


async def _large_values(ledger: Ledger, jobs: Iterable[Job], exports: Sequence[Path]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for each in (reference for job in jobs for reference in _references(job)):
        if each is not None and each.sha256 not in found:
            found[each.sha256] = await _large_value(ledger, each, exports)
    return found


def _references(job: Job) -> Iterator[PayloadRef | None]:
    yield from (job.order.input_ref, job.checkpoint_ref)
    yield from (step.result_ref for step in job.steps.values())
    yield from (signal.value_ref for signal in job.signals)


async def _source(ledger: Ledger, job: Job) -> tuple[StoredEvent, ...]:
    """Return the events of the run that a rerun copies steps of."""
    source = job.order.rerun_of
    if source is None:
        return ()
    return tuple(
        await ledger.log.read_chain(ledger.names.chain(JobRef(queue=source.queue, job_id=source.job)))
    )


async def _ends(ledger: Ledger, job: Job) -> dict[str, dict[int, MemberEnd]]:
    """Return the counted ends of the run's children, for steps whose own end is not recorded yet."""
    children, ref = ChildJobs(ledger), JobRef(queue=job.queue, job_id=job.id)
    found: dict[str, dict[int, MemberEnd]] = {}
    for key, step in job.steps.items():
        if step.has_ended or not step.is_joined:
            continue
        with contextlib.suppress(UnreachableError):  # they are in an archive: the run is told so if it asks
            ends = await children.ends(ref, job, key, step.ended)
            found[key] = dict(zip(items_of(step.ended), ends, strict=True))
    return found


async def _large_value(ledger: Ledger, reference: PayloadRef, exports: Sequence[Path]) -> bytes:
    try:
        return await ledger.inputs.get(NO_VALUE, reference, key="")
    except PayloadMissingError as error:
        if not exports:
            raise
        try:
            return await PayloadFiles(*exports).get(NO_VALUE, reference)
        except PayloadMissingError as archived:
            raise (error if error.state == "differs" else archived) from None


async def run(
    material: Material,
    task: Task[Any, Any],
    names: Names,
    *,
    modules: Sequence[str] = (),
    limited: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> DebugResult:
    """Run the attempt and return the events that would have been recorded.

    `limited=False` lifts its timeout, for a debugger. A task for the process pool runs in a process that loads
    `modules`, since it may end its process; without `modules` or limits it runs in this process.

    Raises: IllegalTransitionError when the job cannot run at that point, such as one that had ended.
    """
    memory = _in_memory(names, clock, material)
    chain = await _claimed(memory, material)
    claimed = chain.last_sequence
    job = _job_of(chain)
    if not limited:
        job = msgspec.structs.replace(job, order=msgspec.structs.replace(job.order, timeout_s=None))
        chain = JobView(job, chain.last_sequence, chain.last_data)
    apart = limited and bool(modules) and task.rules.run_in == "process"
    here = task if apart else _in_this_process(task, limited=limited)
    policy = _Witness(random.Random())  # noqa: S311 - jitter
    threads = Threads(memory.loop, 1, AbandonedSlots())
    execution = Execution(memory, threads, policy)
    execution.runs = RunExecution(
        RunSurroundings(execution=execution, ends=material.ends, may_linger=lambda: True)
    )
    own_task = asyncio.current_task(memory.loop)
    assert own_task is not None, "a coroutine runs in a task"
    running = Attempt(
        ref=material.ref,
        task=here,
        identity=DEBUGGER,
        chain=chain,
        job=job,
        own_task=own_task,
        control=Control(),
    )
    try:
        async with contextlib.AsyncExitStack() as stack:
            if apart:
                pool = await stack.enter_async_context(ProcessPool(modules, PoolConfig(size=1)))
                execution.open(pool)
                await stack.enter_async_context(execution.place(here, wait=True))
            outcome: Outcome = await execution.run(running)
    except AttemptStoppedError as error:
        outcome = Interrupt(epoch=job.claim_epoch, reason=str(error))
    if running.control.channel is not None:
        await running.control.channel.close()
    after = running.newest_chain
    if running.control.recorded is None:
        after = await commit(memory.log, after, decide(after.job, outcome, memory.stamp(DEBUGGER)))
    chain_events = await memory.log.read_chain(names.chain(material.ref))
    events = [stored for stored in chain_events if stored.stream_sequence >= claimed]
    return DebugResult(job=_job_of(after), events=tuple(events), error=policy.error)


async def _claimed(memory: Surroundings, material: Material) -> JobView:
    """Claim the attempt, as its worker did."""
    chain = fold(await memory.log.read_chain(memory.log.names.chain(material.ref)))
    job = _job_of(chain)
    if job.state in {JobState.SCHEDULED, JobState.RETRY_WAIT, JobState.WAITING, JobState.PAUSED}:
        chain = await _follow(memory, chain, Dispatch(cause="due", reason="run again here"))
        job = _job_of(chain)
    if job.state is JobState.HELD:
        # Nobody grants slots here: admit the copy as it is.
        chain = await _follow(memory, chain, Dispatch(cause="admitted", grant=chain.last_sequence))
        job = _job_of(chain)
    if job.state is JobState.RUNNING:
        claim: Command = TakeOver(worker=DEBUGGER, lease_s=_LEASE_S, lost_epoch=job.claim_epoch)
    else:
        claim = Claim(worker=DEBUGGER, lease_s=_LEASE_S)
    chain = await _follow(memory, chain, claim)
    if _job_of(chain).state is not JobState.RUNNING:
        raise IllegalTransitionError(job.id, _job_of(chain).state.value, "be run again from there")
    return chain


async def _follow(memory: Surroundings, chain: JobView, command: Command) -> JobView:
    return await commit(memory.log, chain, decide(chain.job, command, memory.stamp(DEBUGGER)))


def _job_of(chain: JobView) -> Job:
    assert chain.job is not None, "a job that is there stays"
    return chain.job


def _in_this_process(task: Task[Any, Any], *, limited: bool) -> Task[Any, Any]:
    """Return the task as it runs here: not in the pool and, unless `limited`, without a limit of its heartbeats."""
    here = copy.copy(task)
    changes: dict[str, Any] = {} if limited else {"heartbeat_s": None}
    if task.rules.run_in == "process":
        changes["run_in"] = "auto"
    here.rules = msgspec.structs.replace(task.rules, **changes)
    return here


def recorded_end(material: Material) -> StoredEvent | None:
    """Return the event that ended the attempt in the ledger, None if it has not ended or never ran."""
    return next((stored for stored in material.recorded if event_type(stored.event) in ENDING_TYPES), None)


class ExecutedSteps(NamedTuple):
    """Keys of a run's steps: those whose end the attempt was given, and those that it began or ended itself."""

    given_back: list[str]
    here: list[str]


def executed(ran: DebugResult) -> ExecutedSteps:
    """Return a run's steps: those whose end the attempt was given or copied, and those it began or ended itself."""
    here = dict.fromkeys(
        stored.event.step
        for stored in ran.events
        if isinstance(stored.event, StepStarted)
        or (isinstance(stored.event, StepCompleted | StepFailed) and stored.event.copied is None)
    )
    given_back = [key for key, step in ran.job.steps.items() if step.has_ended and key not in here]
    return ExecutedSteps(given_back, list(here))


class _Witness(RetryPolicy):
    """Keeps the exception that the task raised."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.error: BaseException | None = None

    def raised(self, job: Job, rules: Rules, error: BaseException, now: datetime) -> Fail:
        self.error = error
        return super().raised(job, rules, error, now)


def _in_memory(names: Names, clock: Clock, material: Material) -> Surroundings:
    """A ledger in memory: surroundings of an attempt that leave no trace."""
    kept = _Values(material.values)
    return Surroundings(
        log=_PastLog([*material.source, *material.before], names=names, clock=clock),
        clock=clock,
        loop=asyncio.get_running_loop(),
        inputs=kept,
        results=kept,
        stamp=lambda by: Stamp(at=clock.now(), by=by),
        tell_progress=lambda _ref, _report: None,
    )


class _Values:
    """The fetched values, and those that the attempt stores."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = dict(values)

    def fits_inline(self, text: bytes, *, what: str, of_group: bool = False) -> bool:  # noqa: ARG002 - the protocol's
        return True

    async def put(self, text: bytes, **_: object) -> tuple[msgspec.Raw, PayloadRef | None]:
        self._values[digest(text)] = text
        return msgspec.Raw(text), None

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None, *, key: str) -> bytes:  # noqa: ARG002
        if reference is None:
            return bytes(value)
        try:
            return self._values[reference.sha256]
        except KeyError as error:
            sentence = f"payload {reference.sha256[:12]}... is gone: it was not fetched for this run"
            raise PayloadMissingError(sentence, state="gone") from error
