"""`RunJournal` for one attempt in a worker: its steps are appended to the chain that the attempt holds the claim of."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from jobledger.ledger.graphs.stored import graph_named
from jobledger.ledger.logs import job_filter
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import (
    CompleteStep,
    CopyEnds,
    Enqueue,
    Join,
    Outcome,
    Pause,
    RefuseSignal,
    StartStep,
    StepCommand,
)
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    LedgerFullError,
    RefusedError,
    StaleClaimError,
    TaskDefinitionError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import ErrorInfo, PayloadRef
from jobledger.ledger.model.graphs.stored import StoredGraph
from jobledger.ledger.model.job import OPERATOR, Job
from jobledger.ledger.model.log import ChainEvents
from jobledger.ledger.model.runs.errors import StepOverError
from jobledger.ledger.model.runs.orders import items_of
from jobledger.ledger.model.runs.steps import admissible
from jobledger.ledger.model.seals import ValueKey, seal_value
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.options import Options
from jobledger.ledger.reruns.groups import CopiedGroup, find_groups
from jobledger.ledger.runs.members import MemberEnd
from jobledger.ledger.runs.step_call import FailedElsewhereError
from jobledger.ledger.runs.steps import StepFunction
from jobledger.ledger.tables.table import TableWork
from jobledger.ledger.tasks import Task
from jobledger.workers.attempt.channel import AttemptChannel
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.execution import Execution
from jobledger.workers.attempt.kept_chains import KeptChains
from jobledger.workers.attempt.retry_store import retry_store
from jobledger.workers.pool.child_process import TaskFailure, TaskValue
from jobledger.workers.pool.messages import ENGINE, Call
from jobledger.workers.retry_policy import describe
from jobledger.workers.runs.children import ChildJobs
from jobledger.workers.runs.tables import AttemptTables, WorkerTables

StepAppend = StepCommand | RefuseSignal | CopyEnds | Join

T = TypeVar("T")

#: Errors that prevent a write or a read, and are no failure of the run's code.
_TROUBLES: Final = (LedgerFullError, UnreachableError, WrongSequenceError)
#: Pause before a chain is read again because a known event was not in it.
_LAG_S: Final = 0.02
#: The function called for a step of a run: the step itself in a worker, perhaps a stand-in in a test.
InPlaceOf = Callable[[StepFunction[..., Any]], StepFunction[..., Any]]


class RunSurroundings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The objects that the runs of one worker share."""

    execution: Execution
    children: ChildJobs | None = None  #: makes the jobs that runs ask for; None: none may be made
    tables: WorkerTables | None = None  #: makes and reads tables; None if there are none
    #: Without `children`: the ends of children that a run may read, by step and item.
    ends: Mapping[str, Mapping[int, MemberEnd]] = {}
    kept: KeptChains | None = None  #: keeps the chains of runs that are parked here
    #: Whether a run that waits for a short time may keep its slot now.
    may_linger: Callable[[], bool] = lambda: False
    in_place_of: InPlaceOf = lambda step: step
    #: Jitter, and random numbers of runs.
    chance: random.Random = msgspec.field(default_factory=random.Random)


class AttemptJournal:
    """The journal of one attempt of a run; see `RunJournal`."""

    def __init__(self, shared: RunSurroundings, attempt: Attempt, channel: AttemptChannel) -> None:
        self.chance = shared.chance
        self.epoch = attempt.job.claim_epoch
        #: The error that prevented a record: the attempt then has no outcome of its own.
        self.trouble: LedgerFullError | UnreachableError | WrongSequenceError | None = None
        self._shared = shared
        self._ledger = shared.execution.ledger
        self._children = shared.children
        self._attempt = attempt
        self._channel = channel
        self._together = _Together(channel)
        self._tables: AttemptTables | None = None
        self._news = asyncio.Event()
        self._is_hinted = False

    @property
    def job(self) -> Job:
        """See `RunJournal.job`."""
        job = self._channel.chain.job
        assert job is not None, "a claimed chain has a job"
        return job

    @property
    def key(self) -> ValueKey | None:
        """See `RunJournal.key`."""
        return self._attempt.control.key

    def now(self) -> datetime:
        """See `RunJournal.now`."""
        return self._ledger.clock.now()

    async def call(self, step: StepFunction[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `RunJournal.call`: a coroutine runs on the worker's loop, others in its threads or processes."""
        step = self._shared.in_place_of(step)
        before = job_filter.step.set(step.name)
        try:
            if step.rules.rules.run_in == "process":
                return await self._call_in_process(step, tuple(args), kwargs)
            if step.is_async:
                return await step.function(*args, **kwargs)
            name = f"step {step.name} of {self._attempt.name}"
            return await self._shared.execution.threads.call(
                lambda: step.function(*args, **kwargs), name=name
            )
        finally:
            job_filter.step.reset(before)

    async def _call_in_process(
        self, step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function in a process of the pool, which finds it by its name.

        Raises: FailedElsewhereError for what it raised there, InvalidInputError, ChildStartError, PoolClosedError.
        """
        function, job = step.function, self._attempt.job
        call = Call(
            task=job.task,
            step=f"{function.__module__}:{function.__qualname__}",
            input=msgspec.Raw(step.signature.encode(args, kwargs)),
            job_id=job.id,
            queue=job.queue,
            attempt=job.attempts[-1].number,
            worker=self._attempt.identity,
            claim_epoch=job.claim_epoch,
        )
        is_ours = function.__module__ == ENGINE
        result = await self._shared.execution.call_in_process(call, is_ours=is_ours)
        if isinstance(result, TaskValue):
            if isinstance(result.value, msgspec.Raw):
                return result.value
            raise TaskDefinitionError(f"step {step.name} returned {result.value!r}, which only a task may")
        raise FailedElsewhereError(
            result.error, may_retry=not isinstance(result, TaskFailure) or result.may_retry
        )

    async def append(self, command: StepAppend) -> None:
        """See `RunJournal.append`. What branches append at the same time goes together."""
        await self._store(f"step {command.step} of run {self.job.id}", lambda: self._together.append(command))
        self._news.set()

    async def park(self, steps: tuple[str, ...], until: datetime | None, undos: int) -> bool:
        """See `RunJournal.park`. While the pause is recorded, nothing else ends the attempt."""
        event = OPERATOR if self.job.pause_requested else ""
        command = Pause(epoch=self.epoch, steps=steps, until=until, event=event, undos=undos)
        control = self._attempt.control
        control.recording = True
        try:
            await self._store(f"the pause of run {self.job.id}", lambda: self._channel.append(command))
        except StepOverError:
            control.recording = False
            await self._catch_up()
            for key in steps:
                if admissible(self.job.steps[key]):
                    await self._reopen(key)
            return False
        except BaseException:  # the pause was not recorded: the attempt may be told to stop again
            control.recording = False
            raise
        control.recorded = command
        return True

    async def _reopen(self, key: str) -> None:
        """Open the children that were held back while a person had the run paused."""
        with contextlib.suppress(IllegalTransitionError):  # the reactor was faster
            await self._channel.append(Join(step=key))
        await self.open(key, again=True)

    async def end(self, outcome: Outcome, begin: Enqueue) -> None:
        """End the run and begin another job in one append; nothing is recorded where the claim is lost.

        Raises: JobExistsError if another job has that id, LedgerFullError, UnreachableError.
        """
        control = self._attempt.control
        outcome = control.sealed(outcome)
        control.recording = True
        try:
            await self._store(
                f"the end of run {self.job.id}", lambda: self._channel.append_with(outcome, begin)
            )
        except (StaleClaimError, IllegalTransitionError):
            return  # the recorder finds its outcome refused, too, and leaves the receipt
        finally:
            control.recording = False
        control.recorded = outcome

    async def _catch_up(self) -> None:
        """Read the events that a refusal is based on; wait a moment if a replica lags."""
        known = self._channel.chain.last_sequence
        await self._channel.refresh()
        if self._channel.chain.last_sequence == known:
            await asyncio.sleep(_LAG_S)

    async def _store(self, what: str, store: Callable[[], Awaitable[T]]) -> T:
        """Store or read something, again while the server is away or full. Raises: as `retry_store`."""
        try:
            return await retry_store(what, store, outage=self._ledger.outage)
        except _TROUBLES as error:
            self.trouble = error
            raise

    @contextlib.contextmanager
    def _troubled(self) -> Generator[None, None, None]:
        """Remember an error that stops the attempt and is no failure of the run's code."""
        try:
            yield
        except _TROUBLES as error:
            self.trouble = error
            raise

    async def news(self, limit_s: float, *, look: bool) -> None:
        """See `RunJournal.news`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._news.wait()
        except TimeoutError:
            self._is_hinted = self._is_hinted or look
        self._news.clear()
        if self._is_hinted:
            self._is_hinted = False
            with contextlib.suppress(UnreachableError):  # the caller looks again within seconds, or parks
                await self._channel.refresh()

    async def refresh(self) -> None:
        """See `RunJournal.refresh`. It also reads what this attempt appended without getting an answer."""
        with self._troubled():
            await self._channel.refresh()

    async def read(self, ref: JobRef) -> tuple[ChainEvents, int]:
        """Return the events of another job, and the first stream sequence that the ledger holds. Raises: UnreachableError."""
        log = self._ledger.log
        with self._troubled():
            return await log.read_chain(log.names.chain(ref)), await self.first_sequence()

    async def groups_of(
        self, ref: JobRef, source: Job, events: Sequence[StoredEvent], *, ends_to: int
    ) -> list[CopiedGroup]:
        """Return the groups that a rerun begins again; see `find_groups`."""
        with self._troubled():
            return await find_groups(self._ledger.log, ref, source, events, ends_to=ends_to)

    async def first_sequence(self) -> int:
        """Return the first stream sequence that the ledger holds. Raises: UnreachableError."""
        with self._troubled():
            return (await self._ledger.log.head()).first_sequence

    def poke(self) -> None:
        """See `RunJournal.poke`."""
        self._news.set()

    def on_hint(self) -> None:
        """Hear that somebody appended to the run's chain."""
        self._is_hinted = True
        self._news.set()

    @property
    def may_linger(self) -> bool:
        """See `RunJournal.may_linger`."""
        return self._shared.may_linger()

    # Children. A run in a debugger makes none, and waits for those that it asks for.

    async def ensure_limits(self, task: Task[Any, Any], options: Options) -> None:
        """See `RunJournal.ensure_limits`."""
        if self._children is not None:
            with self._troubled():
                await self._children.ensure_limits(task, options)

    async def stored_graph(self, name: str) -> StoredGraph:
        """See `RunJournal.stored_graph`."""
        what = f"graph {name} for run {self.job.id}"
        found, _ = await self._store(what, lambda: graph_named(self._ledger.log, name))
        return found

    async def open(self, key: str, *, again: bool) -> None:
        """See `RunJournal.open`."""
        children = self._children
        if children is None:
            return
        await self._store(
            f"the children of step {key} of run {self.job.id}",
            lambda: children.open(self._attempt.ref, self._channel.chain, key, again=again),
        )

    async def ends(self, key: str, items: int | None = None) -> list[MemberEnd]:
        """See `RunJournal.ends`."""
        if self._children is None:
            return self._ends_given(key, items)
        children = self._children
        return await self._store(
            f"how the children of step {key} of run {self.job.id} ended",
            lambda: children.ends(self._attempt.ref, self.job, key, items),
        )

    def _ends_given(self, key: str, items: int | None) -> list[MemberEnd]:
        """Return how children had ended. Raises: RefusedError if the ledger no longer has them."""
        known = self._shared.ends.get(key, {})
        wanted = items_of(self.job.steps[key].opened if items is None else items)
        if not known.keys() >= set(wanted):
            raise RefusedError(
                f"the children of step {key!r} of run {self.job.id} are not in the ledger any more: "
                "how they ended cannot be given to the run"
            )
        return [known[item] for item in wanted]

    async def abandon(self, prefix: str) -> None:
        """See `RunJournal.abandon`."""
        steps = self.job.steps.items()
        items = {key: step.open for key, step in steps if key.startswith(prefix) and step.open}
        if items and self._children is not None:
            with self._troubled():
                await self._children.cancel(self._attempt.ref, self._channel.chain, items)

    async def put(
        self, text: bytes, *, what: str, of_group: bool = False
    ) -> tuple[msgspec.Raw, PayloadRef | None]:
        """See `RunJournal.put`. Large values go to PAYLOADS: a run may outlive results of jobs."""
        inputs, key = self._ledger.inputs, self.job.order.key
        if inputs.fits_inline(text, what=what, of_group=of_group) and not key:
            return msgspec.Raw(text), None
        return await self._store(
            f"the {what}", lambda: inputs.put(text, what=what, key=key, of_group=of_group)
        )

    async def put_items(self, texts: Sequence[bytes], *, what: str) -> tuple[msgspec.Raw, PayloadRef | None]:
        """See `RunJournal.put_items`."""
        if (key := self.key) is not None:
            texts = [seal_value(key, each) for each in texts]
        array, inputs = b"[" + b",".join(texts) + b"]", self._ledger.inputs
        if inputs.fits_inline(array, what=what, of_group=True):
            return msgspec.Raw(array), None
        return await self._store(f"the {what}", lambda: inputs.put(array, what=what, key="", of_group=True))

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None) -> bytes:
        """See `RunJournal.get`."""
        key = self.job.order.key
        if reference is None and not key:
            return bytes(value)
        with self._troubled():
            return await self._ledger.inputs.get(value, reference, key=key)

    @property
    def tables(self) -> TableWork:
        """See `RunJournal.tables`."""
        if self.key is not None:
            raise RefusedError(
                f"run {self.job.id} has an owner, and tables are not sealed: return its rows as values of steps"
            )
        if self._shared.tables is None:
            raise RefusedError(
                f"run {self.job.id} is run here without a worker: its tables cannot be made or read"
            )
        if self._tables is None:
            self._tables = AttemptTables(self._shared.tables, self._attempt, self.call, self._store)
        return self._tables

    def release(self) -> None:
        """Release the files that the attempt kept on this machine."""
        if self._tables is not None:
            self._tables.release()

    def describe(self, error: BaseException) -> ErrorInfo:
        """See `RunJournal.describe`."""
        return describe(error, _OWN_MODULES)


#: Their frames are above those of every step.
_OWN_MODULES = frozenset(
    {
        __name__,
        "asyncio.timeouts",
        "jobledger.ledger.runs.step_call",
    }
)


# Appends of a run's branches: those that come while one is under way go together, as one batch if they are many.

#: A batch of this size costs the server less than as many appends one by one. Source: measured, as ADR 005.
_BATCH_MIN: Final = 16
_BATCH_MAX: Final = 200
#: Bytes of results and items in one batch, at most.
_BYTES_MAX: Final = 1 << 20


class _WaitingStep(msgspec.Struct, eq=False):
    command: StepAppend
    stored: asyncio.Future[None]


class _Together:
    """Appends what the branches of one attempt record, one append at a time: each rests on the one before."""

    def __init__(self, channel: AttemptChannel) -> None:
        self._channel = channel
        self._waiting: list[_WaitingStep] = []
        self._emptying: asyncio.Task[None] | None = None
        self._is_busy = False

    async def append(self, command: StepAppend) -> None:
        """Return once the events that follow from the command are stored. Raises: as `AttemptChannel.append`.

        Cancelled, it may be stored or not, as any append.
        """
        if self._is_busy:
            loop = asyncio.get_running_loop()
            entry = _WaitingStep(command, loop.create_future())
            self._waiting.append(entry)
            await entry.stored
            return
        self._is_busy = True
        try:
            await self._channel.append(command)
        finally:
            if self._waiting:
                self._emptying = asyncio.get_running_loop().create_task(self._empty())
            else:
                self._is_busy = False

    async def _empty(self) -> None:
        """Append waiting entries until there are none."""
        try:
            while some := self._take():
                if len(some) < _BATCH_MIN:
                    for each in some:
                        await self._alone(each)
                else:
                    await self._as_one(some)
                # These branches go on first: their next entries then go together with those that wait.
                await asyncio.sleep(0)
        finally:
            self._is_busy = False

    def _take(self) -> list[_WaitingStep]:
        """Take the next entries; drop those whose branches were cancelled meanwhile."""
        waiting = [each for each in self._waiting if not each.stored.done()]
        size = count = 0
        for each in waiting[:_BATCH_MAX]:
            size += _size(each.command)
            if count and size > _BYTES_MAX:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]

    async def _as_one(self, some: Sequence[_WaitingStep]) -> None:
        try:
            refused = await self._channel.append_all([each.command for each in some])
        except (LedgerFullError, UnreachableError) as error:  # raised in each of the branches
            for each in some:
                _settle(each, error)
            return
        except Exception:  # noqa: BLE001 - one is at fault: appended alone, each shows whether it is the one
            refused = list(range(len(some)))
        for number, each in enumerate(some):
            if number not in refused:
                _settle(each)
        for number in refused:  # appended alone, each is decided on what is stored by then
            await self._alone(some[number])

    async def _alone(self, entry: _WaitingStep) -> None:
        if entry.stored.done():
            return
        try:
            await self._channel.append(entry.command)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for it
            _settle(entry, error)
        else:
            _settle(entry)


def _settle(entry: _WaitingStep, error: Exception | None = None) -> None:
    if entry.stored.done():  # its branch was cancelled
        return
    if error is None:
        entry.stored.set_result(None)
    else:
        entry.stored.set_exception(error)


def _size(command: StepAppend) -> int:
    if isinstance(command, CompleteStep):
        return len(bytes(command.result))
    return len(bytes(command.items)) if isinstance(command, StartStep) else 0
