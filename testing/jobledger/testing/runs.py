"""`run_in_memory`: a run from its beginning to its end, with its children, on a clock that jumps from moment to moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from jobledger.audit.why import Facts, explain
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import ConfigurationError, LedgerError
from jobledger.ledger.model.events import Completed, ErrorInfo
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.outcome import Wish
from jobledger.ledger.runs.signals import Signal
from jobledger.ledger.tasks import Result, Task, TaskWithOptions
from jobledger.testing.backlog import Backlog
from jobledger.testing.clock import MovableClock
from jobledger.testing.memory import MemoryLedger
from jobledger.testing.stand_ins import Fakes, StandIns

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

#: Attempts that a test makes at most, of the run and its children together: with more it would hardly end.
ATTEMPTS_MAX: Final = 10_000
_STUCK_SHOWN_MAX: Final = 5


class TimedSignal(msgspec.Struct, frozen=True):
    """A signal that is sent some time after the run began; made by `after`."""

    after: timedelta
    signal: Signal[Any]
    value: Any
    id: str


def after(
    signal: Signal[T],
    value: T,
    /,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    id: str = "",  # noqa: A002 - as of `Ledger.signal`
) -> TimedSignal:
    """Return a signal for `run_in_memory`, sent so long after the run began; the same `id` counts once.

    Raises: ConfigurationError for a time before the run.
    """
    span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if span < timedelta(0):
        raise ConfigurationError(
            f"signal {signal.name} cannot be sent before the run begins, {span} after it"
        )
    return TimedSignal(span, signal, value, id)


class RunReport(Generic[R_co]):
    """What became of a run in memory."""

    def __init__(
        self,
        ledger: MemoryLedger,
        job: Job,
        *,
        history: list[StoredEvent],
        children: tuple[Job, ...],
        virtual: timedelta,
        result: Any,
        failure: LedgerError | None,
    ) -> None:
        self.ledger = ledger  #: as the run left it, for further questions
        self.job = job  #: the run as it ended; of one that went on in others, the last one
        self.history = history  #: every event of the run, and of those that it went on in, oldest first
        self.children = children  #: the jobs that it made, in the order in which they were made
        self.virtual = virtual  #: how long it took on the virtual clock
        self._result = result
        self._failure = failure

    def __repr__(self) -> str:
        """Show state, time and error."""
        error = self.error
        said = "" if error is None else f", {error.type}: {error.message}"
        return f"<run {self.job.id} {self.state.value} after {self.virtual}{said}>"

    @property
    def result(self) -> R_co:
        """What the workflow returned.

        Raises: JobFailedError, JobCancelledError for a run that did not complete, ResultMismatchError.
        """
        if self._failure is not None:
            raise self._failure
        return cast("R_co", self._result)

    @property
    def state(self) -> JobState:
        """How the run ended."""
        return self.job.state

    @property
    def error(self) -> ErrorInfo | None:
        """Why the run failed: its `kind`, `type` and `message`; None for one that did not fail."""
        return None if self.state is JobState.COMPLETED else self.job.error

    @property
    def steps(self) -> Mapping[str, Step]:
        """The run's steps by their keys, in the order in which they began."""
        return self.job.steps


async def run_in_memory(
    workflow: Task[..., Result | Wish] | TaskWithOptions[..., Result | Wish],
    /,
    *args: Any,
    tasks: Iterable[Task[..., Any]] = (),
    signals: Iterable[TimedSignal] = (),
    fakes: Fakes | None = None,
    crash_after: str | Iterable[str] = (),
    at: datetime | None = None,
    attempts_max: int = ATTEMPTS_MAX,
    **kwargs: Any,
) -> RunReport[Result]:
    """Run a workflow on these arguments to its end, in memory, and return what became of it.

    The attempts, the ledger's rules and what counts the ends of children are those of a worker. The clock begins at `at`
    (now) and jumps to the next moment at which something is due, so that sleeps, timeouts of waits, and pauses between
    tries take no time. Limits such as `timeout_s` of a step take real time.

    `tasks`: those of the jobs that the run makes. `signals`: made by `after`. `fakes`: functions that are called in place
    of steps and tasks, with the same arguments; of a task without its Context or Run. `crash_after`: keys of steps; when
    the end of such a step is recorded, the worker dies, and another one goes on with the run.

    Raises: AssertionError when nothing can ever wake the run, saying what it waits for, and when a step of `crash_after`
        never ended; UnknownTaskError for a job whose task is not among `tasks`; ConfigurationError after `attempts_max`
        attempts; InvalidInputError for arguments that the workflow does not take.
    """
    stand_ins = StandIns(fakes)
    ledger = MemoryLedger(*stand_ins.tasks, *tasks, clock=MovableClock(at))
    ledger.memory.crash_after = {crash_after} if isinstance(crash_after, str) else set(crash_after)
    begin = ledger.clock.now()
    world = _World(ledger, stand_ins, attempts_max)
    coming = sorted(signals, key=lambda each: each.after)
    handle = await ledger.enqueue(workflow, *args, **kwargs)
    refs = await world.run_to_end(handle.ref, [(begin + each.after, each) for each in coming])
    virtual = ledger.clock.now() - begin
    _require_crashed(ledger, world.pending.jobs[refs[-1]])
    result, failure = await _result(handle)
    return RunReport(
        ledger,
        world.pending.jobs[refs[-1]],
        history=[stored for ref in refs for stored in await ledger.handle_of(ref).history()],
        children=tuple(job for job in world.pending.jobs.values() if _is_child(job, refs)),
        virtual=virtual,
        result=result,
        failure=failure,
    )


def _is_child(job: Job, refs: list[JobRef]) -> bool:
    member = job.member
    return member is not None and JobRef(queue=member.queue, job_id=member.job) in refs


async def _result(handle: JobHandle[Any]) -> tuple[Any, LedgerError | None]:
    try:
        return await handle.result(), None
    except LedgerError as error:
        return None, error


def _require_crashed(ledger: MemoryLedger, job: Job) -> None:
    missed = sorted(ledger.memory.crash_after)
    if missed:
        steps = ", ".join(job.steps) or "none"
        raise AssertionError(
            f"crash_after names step {missed[0]!r}, which never ended; steps of the run: {steps}"
        )


class _World:
    """A run and everything around it, from moment to moment."""

    def __init__(self, ledger: MemoryLedger, stand_ins: StandIns, attempts_max: int) -> None:
        self._ledger = ledger
        self._attempts_max = attempts_max
        self._attempts = 0
        self.pending = Backlog(ledger, ledger.memory, ledger.tasks, stand_ins)

    async def run_to_end(self, ref: JobRef, coming: list[tuple[datetime, TimedSignal]]) -> list[JobRef]:
        """Let the run come to its end; return its name, and those of the runs that it went on in."""
        refs, clock = [ref], self._ledger.clock
        while True:
            self._attempts += len(await self.pending.run(self._attempts_max, before=self._attempts))
            if self.pending.jobs[refs[-1]].is_final:
                successor = await self._successor(refs[-1])
                if successor is None:
                    return refs
                refs.append(successor)
                continue
            moment = await self.pending.look()
            if coming and (moment is None or coming[0][0] <= moment):
                moment, timed = coming.pop(0)
                clock.move_to(max(moment, clock.now()))
                handle = self._ledger.handle_of(refs[-1])
                await self._ledger.signal(handle, timed.signal, timed.value, id=timed.id)
            elif moment is not None:
                clock.move_to(max(moment, clock.now()))
            else:
                raise AssertionError(self._stuck(refs[-1]))

    async def _successor(self, ref: JobRef) -> JobRef | None:
        end = (await self._ledger.handle_of(ref).history())[-1].event
        if isinstance(end, Completed) and end.successor:
            return JobRef(queue=ref.queue, job_id=end.successor)
        return None

    def _stuck(self, ref: JobRef) -> str:
        """Return a sentence on what the run and its unfinished jobs wait for."""
        jobs, facts = self.pending.jobs, Facts(now=self._ledger.clock.now())
        run = jobs.get(ref)
        others = [job for job in jobs.values() if not job.is_final and job is not run]
        lines = [
            f"\n  {'run' if job.steps else 'job'} {job.id} of {job.task}: {explain(job, facts).sentence}"
            for job in others[:_STUCK_SHOWN_MAX]
        ]
        more = f"\n  and {len(others) - _STUCK_SHOWN_MAX} more jobs" if len(others) > _STUCK_SHOWN_MAX else ""
        said = "" if run is None else explain(run, facts).sentence
        return f"nothing can ever wake run {ref.job_id}: {said}{''.join(lines)}{more}"
