"""`@workflow`: makes an async function whose first parameter is a `Run` a task whose steps are recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar, cast, overload

import msgspec

from jobledger.ledger.backoff import Backoff
from jobledger.ledger.decorator import task
from jobledger.ledger.hooks import Hooks
from jobledger.ledger.limits.declarations import Limit, Queue
from jobledger.ledger.model.errors import ConfigurationError, TaskDefinitionError
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import MAX_ATTEMPTS_DEFAULT, ExceptionTypes, Options, refuse_of_maker
from jobledger.ledger.outcome import check_delay
from jobledger.ledger.runs.determinism import warn_of_nondeterminism
from jobledger.ledger.runs.ends import RunEnd
from jobledger.ledger.runs.run import Run
from jobledger.ledger.runs.signals import Signal, signals_in
from jobledger.ledger.schedules.in_code import Schedule
from jobledger.ledger.signature import TaskSignature
from jobledger.ledger.tasks import Task, TaskFunction, TaskWithOptions
from jobledger.ledger.templates import check_fields
from jobledger.ledger.unique.rule import Unique

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)

AnyCallback = Task[[RunEnd], Any] | TaskWithOptions[[RunEnd], Any]

PARALLEL_DEFAULT: Final = 10
_PARALLEL_MAX: Final = 1_000


class WorkflowRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which workers run a workflow, beside those of every task."""

    parallel: int = PARALLEL_DEFAULT  #: how many functions of steps may run at the same time in one run
    on_success: AnyCallback | None = None  #: task of a job that is made when a run completed
    on_fail: AnyCallback | None = None  #: task of a job that is made when a run ended otherwise
    signals: tuple[Signal[Any], ...] | None = None  #: what its runs wait for; None: what its code names

    def __post_init__(self) -> None:
        """Check the rules.

        Raises: ConfigurationError, TaskDefinitionError.
        """
        for name in ("on_success", "on_fail"):
            callback = getattr(self, name)
            if callback is not None and not isinstance(callback, Task | TaskWithOptions):
                raise ConfigurationError(f"{name} must be a task that takes a RunEnd, got {callback!r}")
            if callback is not None:
                plain, options = cast("tuple[Task[..., Any], Options]", callback.unpacked)
                own = msgspec.structs.replace(options, owner="")  # it may have another one than its run
                refuse_of_maker(own, f"task {plain.name} as {name}", "its run")
                check_fields(
                    plain.name, "owner", options.owner, ()
                )  # its argument is not known before the end
        for signal in self.signals or ():
            if not isinstance(signal, Signal):  # pyright: ignore[reportUnnecessaryIsInstance] # a caller may be untyped
                raise ConfigurationError(f"signals must be made by Signal(name, type), got {signal!r}")
        if type(self.parallel) is not int or not 1 <= self.parallel <= _PARALLEL_MAX:
            raise ConfigurationError(
                f"parallel must be a whole number from 1 to {_PARALLEL_MAX}, got {self.parallel!r}"
            )

    @property
    def callbacks(self) -> tuple[tuple[Literal["success", "fail"], AnyCallback], ...]:
        """The tasks that get the end of a run, each with the kind of end."""
        told: list[tuple[Literal["success", "fail"], AnyCallback]] = []
        if self.on_success is not None:
            told.append(("success", self.on_success))
        if self.on_fail is not None:
            told.append(("fail", self.on_fail))
        return tuple(told)


class WorkflowFunction(TaskFunction[P, R_co, Q, C_co], Generic[P, R_co, Q, C_co]):
    """A task whose jobs are runs."""

    makes_runs = True
    workflow: WorkflowRules = WorkflowRules()

    @property
    def signals(self) -> Sequence[Signal[Any]]:
        """The known signals of its runs: the declared ones, else those that its code names."""
        declared = self.workflow.signals
        return signals_in(self.function) if declared is None else declared

    @functools.cached_property
    def signature(self) -> TaskSignature:
        """The types of input and result. Raises: TaskDefinitionError, also if no parameter is annotated `Run`."""
        found = TaskSignature(self.function, self.name)
        if found.given is not Run:
            raise TaskDefinitionError(
                f"workflow {self.name} takes no Run: annotate its first parameter, `run: Run`"
            )
        return found


Decorated = WorkflowFunction[P, R, Concatenate[Run, P], Coroutine[Any, Any, R]]


@overload
def workflow(function: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]], /) -> Decorated[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    queue: str | Queue = "default",
    version: str = "",
    parallel: int = PARALLEL_DEFAULT,
    deadline_s: float | None = None,
    on_success: AnyCallback | None = None,
    on_fail: AnyCallback | None = None,
    signals: Sequence[Signal[Any]] | None = None,
    priority: Priority = "normal",
    max_attempts: int = MAX_ATTEMPTS_DEFAULT,
    timeout_s: float | None = None,
    id: str | None = None,
    tenant: str | None = None,
    owner: str | None = None,
    limits: tuple[str | Limit, ...] = (),
    unique: Unique | None = None,
    debounce_s: float | None = None,
    max_wait_s: float | None = None,
    backoff: Backoff | None = None,
    retry_on: ExceptionTypes = (),
    give_up_on: ExceptionTypes = (),
    hooks: Hooks | None = None,
    schedule: Schedule | None = None,
) -> _Decorator: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    version: str = "",
    parallel: int = PARALLEL_DEFAULT,
    deadline_s: float | None = None,
    on_success: AnyCallback | None = None,
    on_fail: AnyCallback | None = None,
    signals: Sequence[Signal[Any]] | None = None,
    schedule: Schedule | None = None,
    **options: Any,
) -> Any:
    """Make an async function a workflow: `@workflow` or `@workflow(queue=..., version=..., parallel=...)`.

    `on_success` and `on_fail` are tasks that take a `RunEnd`: a job `<run id>-end` of one of them is made in the same
    moment as the record of the run's end.

    A run that has not ended `deadline_s` seconds after it was enqueued is cancelled for the reason `deadline`, even
    while it waits, and with its undos. A run keeps the deadline that the code had when the run was enqueued.

    `signals` are the signals that its runs wait for: workers announce them, so that a value of another type is refused
    when it is sent. None: the signals that the function names, if they are objects of its module or of modules that it
    names.

    The first parameter of the function is annotated `Run`, which the worker gives; the others are the input. The other
    options are those of `@task`. `timeout_s` and `max_attempts` concern attempts: an attempt ends when the run waits,
    and a lost attempt that recorded a step does not count.

    Warns with NondeterminismWarning of calls outside of steps whose results may differ in the next attempt.

    Raises: as `task`; TaskDefinitionError for a function that is not async or takes no Run.
    """
    awaited = None if signals is None else tuple(signals)
    rules = WorkflowRules(parallel=parallel, on_success=on_success, on_fail=on_fail, signals=awaited)
    if version:
        check_token("version", version)
    if deadline_s is not None:
        check_delay("deadline_s", deadline_s)

    def decorate(decorated: Callable[..., Any]) -> WorkflowFunction[Any, Any, Any, Any]:
        plain = task(**options)(decorated)
        if not plain.is_async:
            raise TaskDefinitionError(f"{plain.name} cannot be a workflow: define it with `async def`")
        made = WorkflowFunction[Any, Any, Any, Any](
            plain.function, plain.name, plain.defaults, plain.rules, schedule=schedule
        )
        made.workflow, made.version, made.callbacks = rules, version, rules.callbacks
        made.deadline_s = deadline_s
        warn_of_nondeterminism(plain.function, plain.name)
        return made

    return decorate if function is None else decorate(function)


class _Decorator:
    """The type of `workflow(...)` with options; never instantiated."""

    def __call__(self, function: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]], /) -> Decorated[P, R]:
        """Decorate; the real decorator is a closure of `workflow`."""
        raise AssertionError(function)
