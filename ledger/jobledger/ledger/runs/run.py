"""`Run`: the operations of a workflow whose results are recorded. The worker passes it as the first parameter."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, Never, ParamSpec, TypeVar, cast, overload
from uuid import UUID

import msgspec

from jobledger.ledger.model.errors import InvalidError, InvalidInputError, TaskDefinitionError
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.runs.errors import StepOverError
from jobledger.ledger.model.runs.orders import OnDeadLetter, check_on_dead_letter
from jobledger.ledger.model.runs.steps import next_signal
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import Options
from jobledger.ledger.outcome import Wish, check_delay
from jobledger.ledger.runs import branches
from jobledger.ledger.runs.chunks import call_each, split
from jobledger.ledger.runs.errors import DivergedError
from jobledger.ledger.runs.groups import Child, Group, Outcome
from jobledger.ledger.runs.passage import Passage, StepRequest, Undo
from jobledger.ledger.runs.scopes import Branch
from jobledger.ledger.runs.signals import Signal
from jobledger.ledger.runs.step_call import StepCall
from jobledger.ledger.runs.steps import StepFunction, as_step
from jobledger.ledger.runs.successor import Again, successor_id
from jobledger.ledger.runs.tables import RunTables
from jobledger.ledger.signature import GivenByWorker
from jobledger.ledger.tasks import Result, Task, TaskWithOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class Run(RunTables, GivenByWorker):
    """A run, for the code of its workflow.

    Operations through it are recorded step by step. When the run goes on elsewhere, after a wait or a crash, the
    function is called again from its start and gets the recorded results of all ended steps. So between steps the code
    must do the same each time; put code whose result may differ into a step, or use `now`, `uuid` and `random`.

    A step is found again by its key: the branch of `gather` that it is in, its name, and `#2` for the second step of that
    name. Steps may be added, left out and moved while runs of older code exist, as long as keys keep their meaning.
    """

    __slots__ = ("_on_dead_letter", "_passage")
    is_of_runs = True

    def __init__(self, passage: Passage, *, on_dead_letter: OnDeadLetter | None = None) -> None:
        self._passage = passage
        self._on_dead_letter = on_dead_letter

    @property
    def id(self) -> str:
        """The job's id."""
        return self._passage.journal.job.id

    @property
    def queue(self) -> str:
        """The job's queue."""
        return self._passage.journal.job.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; after a wait a run has another attempt."""
        return self._passage.attempt

    @property
    def version(self) -> str:
        """The version of the code that the run began with, "" without one."""
        return self._passage.journal.job.order.version

    @property
    def replaying(self) -> bool:
        """Whether the code has yet to reach steps of earlier attempts: skip log lines then, to write each only once."""
        return bool(self._passage.unvisited)

    @property
    def long(self) -> bool:
        """Whether the run has so much history, 10,000 events or more, that it should end soon: see `again`.

        At 50,000 events or 50 MB a further step is refused with RunTooLongError.
        """
        return self._passage.length.is_long

    # Steps in this process.

    @overload
    async def step(self, step: StepFunction[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(
        self, step: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, step: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a step, or a plain function as one, and record its end; return its result.

        The result is read from JSON by the return annotation, as in a later attempt. A step that has its result
        recorded is not called again.

        Raises: StepFailedError when its last try failed, now or earlier; StepInDoubtError; DivergedError;
            ForeignTaskError outside the run's own branches.
        """
        function, passage = as_step(step), self._passage
        with passage.enter(function.name) as branch:
            return await StepCall(passage, function, args, kwargs).run(branch.key(function.name))

    @overload
    async def each(
        self,
        step: StepFunction[[T], R] | Callable[[T], Coroutine[Any, Any, R]],
        items: Iterable[T],
        /,
        *,
        chunk: int = 1,
        limit: int = 1,
        name: str = "",
    ) -> list[R]: ...
    @overload
    async def each(
        self,
        step: Callable[[T], R],
        items: Iterable[T],
        /,
        *,
        chunk: int = 1,
        limit: int = 1,
        name: str = "",
    ) -> list[R]: ...
    async def each(
        self, step: Any, items: Iterable[Any], /, *, chunk: int = 1, limit: int = 1, name: str = ""
    ) -> list[Any]:
        """Call a step, or a plain function as one, for each item; return the results in order.

        `chunk` items are one event; `limit` chunks are done at once.

        It is for many small items that one process can do. An interrupted chunk is done again from its first item.

        Raises: as `step`; ConfigurationError.
        """
        function = as_step(step)
        chunks = split(list(items), chunk, limit)
        with self._passage.enter(function.name) as branch:
            return await call_each(self._passage, branch, function, chunks, limit=limit, name=name)

    # Jobs of their own.

    def options(self, *, on_dead_letter: OnDeadLetter) -> Run:
        """Return the same run; its `call`, `start`, `map` and `map_settled` treat dead letters of children as set.

        `run.options(on_dead_letter="fail").call(charge, 3)`: with `fail` a child has failed once it is a dead letter,
        even if a person requeues it later. With `wait`, the default except for `map_settled`, it has not ended: the run
        waits until a person requeues the child, whose new end counts, or discards it, which counts as a failure.

        Raises: InvalidInputError.
        """
        check_on_dead_letter(on_dead_letter, f"run {self.id}")
        return Run(self._passage, on_dead_letter=on_dead_letter)

    async def call(
        self,
        task: Task[P, Result | Wish] | TaskWithOptions[P, Result | Wish],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Run a task as a job of its own, on any worker, wait for its end and return its result.

        A dead letter has not ended: the run waits until a person requeues or discards it; see `options`.

        Raises: ChildFailedError for a job that did not complete; InvalidInputError, TaskDefinitionError.
        """
        plain, group = self._group(task, [_unpacked(task)[0].signature.named(args, kwargs)], kind="call")

        with self._passage.enter(plain.name) as branch:
            asked = await group.begin(branch)
            (end,) = await group.ends(asked)
            return cast("Result", group.value(asked, end))

    async def start(
        self,
        task: Task[P, Result | Wish] | TaskWithOptions[P, Result | Wish],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Child[Result]:
        """Begin a child job and go on; `await child.result()` waits for it. It is cancelled if the run ends first.

        Raises: InvalidInputError, TaskDefinitionError.
        """
        plain, group = self._group(task, [_unpacked(task)[0].signature.named(args, kwargs)], kind="call")

        with self._passage.enter(plain.name) as branch:
            return Child(self._passage, group, await group.begin(branch))

    async def map(
        self,
        task: Task[Concatenate[T, ...], Result | Wish] | TaskWithOptions[Concatenate[T, ...], Result | Wish],
        items: Iterable[T],
        /,
        *,
        limit: int = 0,
        name: str = "",
    ) -> list[Result]:
        """Run a job for each item, at most `limit` at once (0: all), and return their results in order.

        The item is the task's first argument. The run holds no slot meanwhile, and has one event for many ends.

        Raises: ChildFailedError for the first job that failed, after all begun jobs ended; no further job is begun.
        """
        plain, group = self._group_of(task, items, limit=limit)

        with self._passage.enter(name or plain.name) as branch:
            asked = await group.begin(branch, name)
            return [group.value(asked, end) for end in await group.ends(asked)]

    async def map_settled(
        self,
        task: Task[Concatenate[T, ...], Result | Wish] | TaskWithOptions[Concatenate[T, ...], Result | Wish],
        items: Iterable[T],
        /,
        *,
        limit: int = 0,
        name: str = "",
    ) -> list[Outcome[Result]]:
        """Run a job for each item to its end, even if others fail, and return the outcome of each, in order.

        A dead letter counts as an end here, even if a person requeues the job later; to wait instead, see `options`.
        """
        ends = self._on_dead_letter or "fail"
        plain, group = self._group_of(task, items, limit=limit, on_failure="collect", on_dead_letter=ends)

        with self._passage.enter(name or plain.name) as branch:
            asked = await group.begin(branch, name)
            return [group.outcome(asked, item, end) for item, end in enumerate(await group.ends(asked))]

    def _group_of(self, task: Any, items: Iterable[Any], **more: Any) -> tuple[Task[Any, Any], Group]:
        signature = _unpacked(task)[0].signature
        return self._group(task, [signature.named((item,), {}) for item in items], kind="map", **more)

    def _group(self, task: Any, inputs: list[dict[str, Any]], **more: Any) -> tuple[Task[Any, Any], Group]:
        plain, options = _unpacked(task)
        more.setdefault("on_dead_letter", self._on_dead_letter or "wait")
        return plain, Group(self._passage, plain, options, inputs, **more)

    # Branches.

    @overload
    async def gather(
        self, a: Callable[[], Awaitable[A]], b: Callable[[], Awaitable[B]], /, *, limit: int = 0
    ) -> tuple[A, B]: ...
    @overload
    async def gather(
        self,
        a: Callable[[], Awaitable[A]],
        b: Callable[[], Awaitable[B]],
        c: Callable[[], Awaitable[C]],
        /,
        *,
        limit: int = 0,
    ) -> tuple[A, B, C]: ...
    @overload
    async def gather(
        self,
        a: Callable[[], Awaitable[A]],
        b: Callable[[], Awaitable[B]],
        c: Callable[[], Awaitable[C]],
        d: Callable[[], Awaitable[D]],
        /,
        *,
        limit: int = 0,
    ) -> tuple[A, B, C, D]: ...
    @overload
    async def gather(self, *branches: Callable[[], Awaitable[T]], limit: int = 0) -> tuple[T, ...]: ...
    async def gather(self, *functions: Any, limit: int = 0) -> Any:
        """Run functions without arguments side by side, at most `limit` at once (0: all); return their results in order.

        Each is a branch: the keys of its steps begin with the function's name. All branches end before the first error,
        in their order, is raised, so that each attempt sees the same.
        """
        if type(limit) is not int or limit < 0:
            raise InvalidInputError(f"limit must be a whole number, 0 (no limit) or more, got {limit!r}")
        _check_functions("gather", functions)

        with self._passage.enter("gather") as branch:
            return tuple(await branches.gather(self._passage, branch, functions, limit))

    async def race(self, *functions: Callable[[], Awaitable[T]]) -> T:
        """Run functions without arguments side by side until the first one ends; return its result or raise its error.

        The winner is recorded; the others are cancelled.
        """
        _check_functions("race", functions)

        with self._passage.enter("race") as branch:
            return cast("T", await branches.race(self._passage, branch, functions))

    # Waits. A run whose every branch waits holds no slot.

    async def sleep(self, duration: float | timedelta, /) -> None:
        """Wait for a time, in seconds or as a timedelta, from the moment at which the run first came here.

        Raises: ConfigurationError for anything but 0 to ten years.
        """
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        check_delay("sleep", seconds)
        await self._sleep(lambda now: now + timedelta(seconds=seconds))

    async def sleep_until(self, moment: datetime, /) -> None:
        """Wait until a moment, which has a time zone; a past moment is no wait."""
        if moment.tzinfo is None:
            raise InvalidInputError(f"sleep_until needs a moment with a time zone, got {moment!r}")
        await self._sleep(lambda _: moment)

    async def _sleep(self, until: Callable[[datetime], datetime]) -> None:
        passage = self._passage

        with passage.enter("sleep") as branch:
            asked = await passage.ask(branch.key("sleep"), "sleep", "sleep")
            if asked.known is not None and asked.known.has_ended:
                return
            if asked.known is None:
                await passage.start(asked, until=until(passage.journal.now()))
            await passage.waits.until_over(asked.key)
            await passage.complete(asked, b"null")

    async def wait(self, signal: Signal[T], /, *, timeout_s: float | None = None) -> T:
        """Wait for a signal and return its value. A signal that came before is taken at once, the oldest first.

        A signal with a value of another type is refused, the refusal is recorded, and the run waits on.

        Raises: TimeoutError, in every attempt, if none came within `timeout_s` seconds (None: for ever).
        """
        if timeout_s is not None:
            check_delay("timeout_s", timeout_s)
        with self._passage.enter(signal.name) as branch:
            return await self._wait(branch, signal, timeout_s)

    async def _wait(self, branch: Branch, signal: Signal[T], timeout_s: float | None) -> T:
        passage, journal = self._passage, self._passage.journal
        asked = await passage.ask(branch.key(signal.name), "wait", signal.name)
        if asked.known is None or not asked.known.has_ended:
            await self._take(asked, signal, timeout_s)
        step = journal.job.steps[asked.key]
        if step.state == "failed":
            raise TimeoutError(f"no signal {signal.name!r} came in time")
        text = await passage.result_of(step)
        try:
            return signal.read(text)
        except InvalidError as error:  # an earlier attempt could read it
            raise DivergedError(step.key, step.sequence, "with another value", str(error)) from error

    async def _take(self, asked: StepRequest, signal: Signal[Any], timeout_s: float | None) -> None:
        """Record the end of a wait: the signal taken, or that none came in time."""
        passage, journal, name = self._passage, self._passage.journal, signal.name
        while not await self._takes_one(asked, signal):
            if asked.key not in journal.job.steps:
                until = None if timeout_s is None else journal.now() + timedelta(seconds=timeout_s)
                await passage.start(asked, until=until)
            step = await passage.waits.until_over(asked.key)
            if next_signal(journal.job.signals, name) is None:
                message = f"no signal {name!r} came until {step.until:%Y-%m-%d %H:%M:%S} UTC"
                info = ErrorInfo(kind="timeout", type="TimeoutError", message=message)
                try:
                    await passage.fail(asked, info)
                except StepOverError:  # the signal is recorded already, but its hint was lost
                    await journal.refresh()
                    continue
                return

    async def _takes_one(self, asked: StepRequest, signal: Signal[Any]) -> bool:
        """Take the oldest readable signal; record the refusal of unreadable ones before it."""
        passage, journal = self._passage, self._passage.journal
        async with passage.taking:
            while (found := next_signal(journal.job.signals, signal.name)) is not None:
                try:
                    signal.read(await journal.get(found.value, found.value_ref))
                except InvalidInputError as error:
                    await passage.refuse(asked, found.sequence, str(error))
                else:
                    await passage.take(asked, found.sequence, found.value, found.value_ref)
                    return True
        return False

    # --- Values that differ from run to run.

    async def now(self) -> datetime:
        """Return the time at which the run first came here, UTC."""
        return msgspec.convert(await self._passage.value("now", self._passage.journal.now), datetime)

    async def uuid(self) -> UUID:
        """Return a random UUID, the same one in every attempt."""
        return UUID(await self._passage.value("uuid", uuid.uuid4))

    async def random(self) -> float:
        """Return a random number from 0 to 1, the same one in every attempt."""
        return float(await self._passage.value("random", self._passage.journal.chance.random))

    async def patched(self, name: str) -> bool:
        """Return whether this run takes the new code of the named change.

        True for a run that recorded no step after this place; False for a run that did later steps with the old code.
        The answer is recorded, so it is the same in every attempt.
        """
        check_token("name of a change", name)
        passage = self._passage
        with passage.enter(name) as branch:
            is_new = not passage.has_unvisited(branch)
            asked = await passage.ask(branch.key(name), "patch", name)
            if asked.known is None:
                await passage.complete(asked, b"true" if is_new else b"false")
                return is_new
            return await passage.result_of(asked.known) == b"true"

    # Going on.

    def again(self, *args: Any, **kwargs: Any) -> Never:
        """Return a value that ends this run and begins the next one of its workflow with these arguments, as one.

        `return run.again(...)`: use it in a run that would become too long, such as one that serves a customer for
        years. The next run is called `<id>-r2`, then `-r3`; it begins with no steps, and keeps queue, priority, tenant
        and limits.

        Raises: InvalidInputError, also for a run that is a child: its parent waits for this one's result.
        """
        job = self._passage.journal.job
        if job.member is not None:
            raise InvalidInputError(
                f"run {job.id} is a child of run {job.member.job}, which waits for its result: "
                "begin the next one in that run"
            )
        following: Any = Again(self._passage.encode_input(args, kwargs), successor_id(job.id))
        return following  # type: ignore[misc] # so that a workflow of any result type can return it

    # Undo.

    def on_failure(self, step: StepFunction[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Register a step that undoes earlier work, if this run fails for good or is cancelled.

        Such steps run in reverse order, each with its own tries, before the end of the run is recorded.

        Raises: ForeignTaskError.
        """
        passage = self._passage
        undo = as_step(step)
        key = passage.branch_here(undo.name).undo_key(undo.name)
        passage.undos.append(Undo(key, undo, args, dict(kwargs)))


def _check_functions(verb: str, functions: Sequence[Any]) -> None:
    """Refuse calls that began already, as in `run.gather(run.call(task))`. Raises: InvalidInputError."""
    for each in functions:
        if inspect.iscoroutine(each):
            for left in filter(inspect.iscoroutine, functions):
                left.close()  # they will not be awaited any more
            raise InvalidInputError(
                f"run.{verb} takes functions without arguments, and got the call of {each.__name__}: "
                f"write run.{verb}(lambda: run.call(...), ...)"
            )


def _unpacked(task: Any) -> tuple[Task[Any, Any], Options]:
    """Return a task and its options. Raises: TaskDefinitionError for an object that is no task."""
    if not isinstance(task, Task | TaskWithOptions):
        name = getattr(task, "name", "") or getattr(task, "__name__", "") or repr(task)
        raise TaskDefinitionError(
            f"{name} is no task, so it cannot be a job of its own: decorate it with @task, or call it in this process "
            "with run.step or run.each"
        )
    return task.unpacked  # pyright: ignore[reportUnknownVariableType]
