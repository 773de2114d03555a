"""`Task`, which `@task` makes of a function: its name, options and typed input; and the registry that finds tasks.

There is no hidden global registry: a worker gets modules, and `TaskRegistry` finds the tasks in them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
)

import msgspec

from jobledger.ledger.hooks import Hooks
from jobledger.ledger.limits.declarations import Limit, Queue
from jobledger.ledger.limits.keys import check_keys, own_key
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidInputError,
    TaskDefinitionError,
    UnknownTaskError,
)
from jobledger.ledger.model.limits.definition import Terms
from jobledger.ledger.model.limits.names import joined
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import Options, OrderOptions, Rules
from jobledger.ledger.schedules.in_code import Schedule
from jobledger.ledger.signature import TaskSignature
from jobledger.ledger.templates import check_fields
from jobledger.ledger.unique.rule import Unique

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from jobledger.ledger.declared_route import Route

    #: The type of a job's result: the return type of its task, without the outcomes. A task that returns
    #: nothing but outcomes has the result None.
    Result = TypeVarWithDefault("Result", default=None)
else:
    Result = TypeVar("Result")


class AnyCallback(Protocol):
    """A task that gets the end of a run, with options or without."""

    @property
    def unpacked(self) -> tuple[Task[..., Any], Options]:
        """The task, and the options that a job of it has."""
        ...


class AwaitedSignal(Protocol):
    """A message that runs of a workflow wait for; see `runs.signals.Signal`."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    def json_schema(self) -> Any:
        """Return the JSON Schema of its value."""
        ...


class TaskOptions(OrderOptions, total=False):
    """The options of the next enqueue of a task; a missing one, or None, is as in the task's code."""

    queue: str | Queue | None
    limits: Iterable[str | Limit]  #: beside those of the task
    unique: Unique | None
    debounce_s: float | None
    max_wait_s: float | None
    name: str | None  #: for runs and graphs: name of the step of `run.call(...)`, or of the node
    by: str | None


_OPTIONS: Final = frozenset(TaskOptions.__annotations__)


class Task(Generic[P, R_co]):
    """A function that jobs can run. `P`: the parameters that are a job's input; `R_co`: what the function returns."""

    #: Whether its jobs are runs, whose steps are recorded: of a workflow.
    makes_runs: ClassVar[bool] = False
    #: The version of its code, which each run keeps; "": none.
    version: str = ""
    #: The jobs that are enqueued when one of its runs has ended, and after which ends.
    callbacks: tuple[tuple[Literal["success", "fail"], AnyCallback], ...] = ()
    #: Seconds from its first event until a run is cancelled; None: never.
    deadline_s: float | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: Options,
        rules: Rules | None = None,
        *,
        schedule: Schedule | None = None,
    ) -> None:
        self.function = function
        self.name = check_token("task name", name)
        self.defaults = options
        self.rules = rules or Rules()
        self.schedule = None if schedule is None else schedule.of(self)
        self.is_async = inspect.iscoroutinefunction(function)
        functools.update_wrapper(cast("Any", self), function)

    @property
    def signals(self) -> Sequence[AwaitedSignal]:
        """The signals that its runs are known to wait for."""
        return ()

    def __repr__(self) -> str:
        """Show the name a job carries."""
        return f"<task {self.name}>"

    def options(self, **given: Unpack[TaskOptions]) -> TaskWithOptions[P, R_co]:
        """Return the task with some options set for the next job; `given` is in `TaskOptions`.

        Raises: InvalidTokenError, ConfigurationError, InvalidInputError.
        """
        if not given.keys() <= _OPTIONS:
            wrong = min(given.keys() - _OPTIONS)
            raise TypeError(f"Task.options() got an unexpected keyword argument {wrong!r}")
        chosen: dict[str, Any] = {**given}
        queue, limits = chosen.pop("queue", None), chosen.pop("limits", ())
        return TaskWithOptions(self, self.defaults.changed(chosen, queue=queue, limits=limits))

    @property
    def unpacked(self) -> tuple[Task[P, R_co], Options]:
        """The task itself, and the options that a job of it has."""
        return self, self.defaults

    def with_input(self, *args: P.args, **kwargs: P.kwargs) -> TaskWithInput:
        """Return the task with an input, for a call that enqueues the job only if needed: see `Ledger.signal`.

        Raises: InvalidInputError for arguments that the task does not take.
        """
        return TaskWithInput(self, self.defaults, args, kwargs)

    @functools.cached_property
    def signature(self) -> TaskSignature:
        """The types of input and result.

        Raises: TaskDefinitionError when the function's annotations cannot be those of JSON.
        """
        return TaskSignature(self.function, self.name)


#: Methods of tasks in other job systems.
_OF_OTHERS: Final = frozenset(
    {"apply_async", "defer", "defer_async", "delay", "enqueue", "kiq", "send", "send_with_options"}
)


class TaskFunction(Task[P, R_co], Generic[P, R_co, Q, C_co]):
    """A task as `@task` makes it: it can still be called. `Q` and `C_co` are the function's own, with its Context."""

    if not TYPE_CHECKING:  # to a type checker a task has no other attributes

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError; for a method of another job system it says what to write instead."""
            if name in _OF_OTHERS:
                task = self.__dict__.get("name", "task")
                raise AttributeError(
                    f"task {task} has no {name}(): write `await ledger.enqueue({task}, ...)`, with `ledger` from "
                    "`jobledger.ledger.connect`, or from `jobledger.ledger.sync.connect` in code that blocks"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> C_co:
        """Run the function here and now, without a job; a Context parameter must then be given."""
        return cast("C_co", self.function(*args, **kwargs))


class TaskWithOptions(Generic[P, R_co]):
    """A task and the options of the next job; made by `Task.options`."""

    def __init__(self, task: Task[P, R_co], options: Options) -> None:
        self.task = task
        self.chosen = options

    @property
    def unpacked(self) -> tuple[Task[P, R_co], Options]:
        """The task itself, and the options that the next job has."""
        return self.task, self.chosen

    def with_input(self, *args: P.args, **kwargs: P.kwargs) -> TaskWithInput:
        """Return them with an input; see `Task.with_input`."""
        return TaskWithInput(self.task, self.chosen, args, kwargs)


class TaskWithInput:
    """A job to be made: a task, its options and its input; made by `with_input`."""

    def __init__(
        self, task: Task[..., Any], options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        task.signature.encode(args, kwargs)  # a wrong input is refused here, not at the enqueue
        self.args = args
        self.kwargs = kwargs
        self._task = task
        self._options = options

    @property
    def task(self) -> Task[..., Any]:
        """The task of the job."""
        return self._task

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return self._options.queue

    def named(self, job_id: str, by: str = "") -> TaskWithOptions[..., Any]:
        """Return its task with options for a job of that id; `by`: the author, unless the options have one.

        Raises: InvalidInputError if the options have another id, and for a unique job, since another job may stand for
        it.
        """
        options = self._options
        if options.id not in (None, job_id):
            raise InvalidInputError(
                f"the job to start has the id {options.id}, and the signal is for {job_id}: leave out id="
            )
        if options.unique is not None:
            raise InvalidInputError(
                f"task {self._task.name} is unique, so another job may be in the place of {job_id}: give it no "
                "unique= and no debounce_s="
            )
        # The job is made if it is missing; an existing one is not made again, whatever its input is.
        named = msgspec.structs.replace(options, id=job_id, by=options.by or by, on_other_input="keep")
        return TaskWithOptions(self._task, named)


class TaskRegistry:
    """Tasks by name, as found in modules."""

    def __init__(self, tasks: Iterable[Task[Any, Any]] = ()) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._versions: dict[tuple[str, str], Task[Any, Any]] = {}  #: of workflows, by name and version
        self._built_in: dict[str, Task[Any, Any]] = {}
        self.modules: tuple[str, ...] = ()  #: as given to `load`, so that another process can load the same
        self.hooks: tuple[Hooks, ...] = ()  #: found at the top of modules: for every task here
        self.schedules: dict[str, Schedule] = {}  #: those of the tasks, and those found at the top of modules
        self.routes: dict[str, Route] = {}  #: found at the top of modules
        for found in tasks:
            self.add(found)

    @classmethod
    def load(cls, modules: Iterable[str]) -> TaskRegistry:
        """Import modules by dotted name (or a path to a .py file) and collect the tasks and the `Hooks` they hold.

        Raises: ConfigurationError for a module that cannot be imported or holds no task, TaskDefinitionError.
        """
        from jobledger.ledger.declared_route import Route  # noqa: PLC0415 - who only enqueues has no routes

        registry = cls()
        for name in modules:
            members: list[Any] = list(vars(_import(name)).values())
            registry.modules += (name,)
            for each in members:
                if isinstance(each, Hooks) and each not in registry.hooks:
                    registry.hooks += (each,)
            found: list[Task[Any, Any]] = [value for value in members if isinstance(value, Task)]
            schedules = [each for each in members if isinstance(each, Schedule) and not each.is_used]
            routes = [each for each in members if isinstance(each, Route)]
            if not found and not schedules and not routes:
                message = f"module {name!r} holds no task: decorate a function with @task"
                raise ConfigurationError(message)
            for each in found:
                registry.add(each)
            for each in schedules:
                registry.add_schedule(each)
            for each in routes:
                registry.add_route(each)
        return registry

    def add(self, task: Task[Any, Any]) -> None:
        """Add a task after checking that its signature can be an input.

        Workflows of one name may have several versions: a new run begins with the version that the caller names, and
        goes on with it.

        Raises: ConfigurationError for a second task of the same name, TaskDefinitionError.
        """
        known = self._tasks.setdefault(task.name, task)
        if task.makes_runs and known.makes_runs:
            known = self._versions.setdefault((task.name, task.version), task)
        if known is not task:
            message = (
                f"two tasks are called {task.name!r} ({_where(known)} and {_where(task)}): give one a name="
            )
            raise ConfigurationError(message)
        # A wrong signature is reported here, not by the first job.
        options = task.defaults
        if options.declared or options.declared_queue is not None:
            check_keys(task.name, task.signature.names, options.declared, options.declared_queue)
        check_identity(task.name, options, task.signature.names)
        if task.signature.context_parameter is None and task.rules.heartbeat_s is not None:
            message = f"task {task.name} has heartbeat_s but no Context parameter to give signs of life by"
            raise TaskDefinitionError(message)
        given = task.signature.given
        if given is not None and given.is_of_runs and not task.makes_runs:
            raise TaskDefinitionError(f"task {task.name} takes a Run: decorate it with @workflow")
        if task.schedule is not None:
            self.add_schedule(task.schedule)

    def add_schedule(self, schedule: Schedule) -> None:
        """Add a schedule after checking that it is complete and that its task takes its input.

        Raises: ConfigurationError, also for a second schedule of the same name, InvalidInputError, TaskDefinitionError.
        """
        schedule.check()
        if self.schedules.setdefault(schedule.name, schedule) is not schedule:
            raise ConfigurationError(f"two schedules are called {schedule.name!r}: give one another name")

    def add_route(self, route: Route) -> None:
        """Add a route. Raises: ConfigurationError for a second one of the same name."""
        if self.routes.setdefault(route.name, route) is not route:
            raise ConfigurationError(f"two routes are called {route.name!r}: give one another name")

    def add_built_in(self, task: Task[Any, Any]) -> None:
        """Add a task of the ledger's own: found by name, unless a module has one of that name, and never listed."""
        self._built_in[task.name] = task

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each schedule here, by its name; see `Schedule.fingerprint`."""
        return {name: schedule.fingerprint for name, schedule in self.schedules.items()}

    @property
    def limits(self) -> dict[str, Terms]:
        """The terms of limits in the code here, by `name`, or `name:key` where the key is the own queue or task."""
        found: dict[str, Terms] = {}
        for task in self._tasks.values():
            for limit in task.defaults.limits_in_code:
                if isinstance(limit, Limit) and limit.is_defined:
                    name = joined(limit.name, own_key(limit, task.name, task.defaults.queue))
                    found.setdefault(name, limit.terms)
        return found

    def get(self, name: str) -> Task[Any, Any]:
        """Return the task of that name.

        Raises: UnknownTaskError.
        """
        found = self.find(name)
        if found is None:
            raise UnknownTaskError(name, sorted(self._tasks))
        return found

    def find(self, name: str) -> Task[Any, Any] | None:
        """Return the task of that name, None where it is not loaded."""
        return self._tasks.get(name) or self._built_in.get(name)

    @property
    def queues(self) -> list[str]:
        """The queues that the tasks name by default, sorted."""
        return sorted({found.defaults.queue for found in self._tasks.values()})

    def of_version(self, name: str, version: str) -> Task[Any, Any] | None:
        """Return the workflow that a run of a version goes on with, None where it is not loaded."""
        return self._versions.get((name, version)) if version else self.find(name)

    def __iter__(self) -> Any:
        """Iterate over the tasks, by name; over every version of a workflow."""
        others = [task for task in self._versions.values() if self._tasks[task.name] is not task]
        return iter(sorted([*self._tasks.values(), *others], key=lambda found: (found.name, found.version)))

    def __contains__(self, name: object) -> bool:
        """Return whether a task of that name is loaded."""
        return name in self._tasks

    def __len__(self) -> int:
        """Return how many tasks there are."""
        return len(self._tasks)


def check_identity(task: str, options: Options, arguments: Collection[str]) -> None:
    """Refuse templates of ids and tenants that name an argument the task does not have. Raises: TaskDefinitionError."""
    if options.id_template:
        check_fields(task, "id", options.id_template, arguments)
    if options.tenant_template:
        check_fields(task, "tenant", options.tenant_template, arguments)
    if options.owner:
        check_fields(task, "owner", options.owner, arguments)


def _where(task: Task[Any, Any]) -> str:
    return f"{task.function.__module__}.{task.function.__qualname__}"


def _import(name: str) -> ModuleType:
    """Import a module; a file can import its neighbours, as with `python file.py`."""
    path = Path(name)
    if path.suffix == ".py":
        if not path.is_file():
            message = f"there is no file {name!r} to load tasks from"
            raise ConfigurationError(message)
        sys.path.insert(0, str(path.parent.resolve()))
        name = path.stem
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(
            f"{name!r} is not the name of a module: give one as package.module or a .py file"
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            message = f"there is no module {name!r} on the import path: is its name right, and is this the right folder?"
            raise ConfigurationError(message) from error
        raise
    except SystemExit as error:  # it would end the caller, perhaps with exit code 0
        message = (
            f"module {name!r} called sys.exit({error.code!r}) while it was imported: put what ends a program below "
            '`if __name__ == "__main__":`'
        )
        raise ConfigurationError(message) from error
