"""`@task`: a function with a name, options and a typed input, which jobs can run.

Collects no registry behind the user's back: a worker is told modules, and `TaskRegistry` finds the tasks in them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, get_args, get_type_hints, overload

import msgspec
import msgspec.inspect

from jobledger.ledger.backoff import Backoff
from jobledger.ledger.context import Context
from jobledger.ledger.hooks import Hooks
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidInputError,
    TaskDefinitionError,
    UnknownTaskError,
)
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import MAX_ATTEMPTS_DEFAULT, ExceptionTypes, Options, Rules, RunIn

P = ParamSpec("P")
R = TypeVar("R")

_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, TypeError)


class Task(Generic[P, R]):
    """A function that jobs can run; calling it runs it here, as ever."""

    def __init__(
        self, function: Callable[..., Any], name: str, options: Options, rules: Rules | None = None
    ) -> None:
        self.function = function
        self.name = check_token("task name", name)
        self.defaults = options
        self.rules = rules or Rules()
        self.is_async = inspect.iscoroutinefunction(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function here and now, without a job; a Context parameter must then be given."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        """Show the name a job carries."""
        return f"<task {self.name}>"

    def options(
        self,
        *,
        queue: str | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
        timeout_s: float | None = None,
        id: str | None = None,  # noqa: A002 - the public name of the option
        delay_s: float | None = None,
        run_at: datetime | None = None,
    ) -> TaskWithOptions[P, R]:
        """Return the task with some options set for the next job.

        Raises: InvalidTokenError, ConfigurationError, InvalidInputError.
        """
        given = {
            "queue": queue,
            "priority": priority,
            "max_attempts": max_attempts,
            "timeout_s": timeout_s,
            "id": id,
            "delay_s": delay_s,
            "run_at": run_at,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return TaskWithOptions(self, msgspec.structs.replace(self.defaults, **changes))

    @functools.cached_property
    def signature(self) -> TaskSignature:
        """The typed input.

        Raises: TaskDefinitionError when the function's parameters cannot be an input.
        """
        return TaskSignature(self)


class TaskWithOptions(Generic[P, R]):
    """A task and the options of the next job; made by `Task.options`."""

    def __init__(self, task: Task[P, R], options: Options) -> None:
        self.task = task
        self.chosen = options


class TaskSignature:
    """A task's input as a type: JSON object of its parameters, nothing missing, nothing unknown."""

    def __init__(self, task: Task[Any, Any]) -> None:
        self._task_name = task.name
        parameters, hints = _parameters(task)
        self.context_parameter = next((p.name for p in parameters if _is_context(hints.get(p.name))), None)
        self._parameters = [p for p in parameters if p.name != self.context_parameter]
        self._types = {p.name: hints.get(p.name, Any) for p in self._parameters}
        self._positional = [p.name for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        try:
            self._struct = msgspec.defstruct(
                task.name,
                [_field(p, self._types[p.name]) for p in self._parameters],
                forbid_unknown_fields=True,
                kw_only=True,
            )
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._struct)
        except TypeError as error:
            message = f"task {task.name}: a parameter's type cannot be read from JSON: {error}"
            raise TaskDefinitionError(message) from error
        self._names = tuple(p.name for p in self._parameters)
        for name, wanted in self._types.items():
            if isinstance(msgspec.inspect.type_info(wanted), msgspec.inspect.CustomType):
                message = (
                    f"task {task.name}: parameter {name} is a {_type_name(wanted)}, which JSON cannot hold"
                )
                raise TaskDefinitionError(message)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the input's JSON text after checking it against the signature.

        Raises: InvalidInputError with the task, the parameter and what is wrong.
        """
        if args:
            kwargs = self._named(args, kwargs)
        text = encode_value(kwargs, what=f"input of task {self._task_name}")
        self._read(text)
        return text

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._positional):
            message = (
                f"task {self._task_name} takes {len(self._positional)} positional arguments, got {len(args)}"
            )
            raise InvalidInputError(message)
        named = dict(zip(self._positional, args, strict=False))
        twice = sorted(named.keys() & kwargs.keys())
        if twice:
            message = f"task {self._task_name}: argument {twice[0]!r} is given twice"
            raise InvalidInputError(message)
        return named | dict(kwargs)

    def decode(self, text: bytes | msgspec.Raw) -> dict[str, Any]:
        """Return the keyword arguments in an input's JSON text.

        Raises: InvalidInputError.
        """
        return msgspec.structs.asdict(self._read(text))

    def _read(self, text: bytes | msgspec.Raw) -> Any:
        try:
            return self._decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            expected = ", ".join(self._names) or "no arguments"
            message = f"task {self._task_name} ({expected}): {error}"
            raise InvalidInputError(message) from error

    def parse_words(self, words: Mapping[str, str]) -> dict[str, Any]:
        """Read key=value words by the parameters' types: a str stays as it is, the rest is read as JSON would be.

        Raises: InvalidInputError.
        """
        parsed: dict[str, Any] = {}
        for name, word in words.items():
            if name not in self._types:
                known = ", ".join(self._names) or "none"
                message = f"task {self._task_name} has no argument {name!r}; its arguments: {known}"
                raise InvalidInputError(message)
            parsed[name] = self._parse_word(name, word)
        return parsed

    def _parse_word(self, name: str, word: str) -> Any:
        wanted = self._types[name]
        if wanted is Any:
            return _json_or_text(word)
        # Lax conversion reads numbers, booleans and dates from text; what has structure is read as JSON.
        with contextlib.suppress(*_UNREADABLE):
            return msgspec.to_builtins(msgspec.convert(word, wanted, strict=False))
        with contextlib.suppress(*_UNREADABLE):
            return msgspec.to_builtins(msgspec.json.decode(word, type=wanted))
        message = f"task {self._task_name}: argument {name}={word[:60]!r} is not {_type_name(wanted)}"
        raise InvalidInputError(message)


def _json_or_text(word: str) -> Any:
    try:
        return msgspec.json.decode(word)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return word


def _type_name(wanted: Any) -> str:
    return getattr(wanted, "__name__", None) or str(wanted).replace("typing.", "")


def _parameters(task: Task[Any, Any]) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    try:
        hints = get_type_hints(task.function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        message = (
            f"task {task.name}: an annotation cannot be resolved at run time ({error}): import it for real"
        )
        raise TaskDefinitionError(message) from error
    parameters = list(inspect.signature(task.function).parameters.values())
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            message = (
                f"task {task.name}: parameter {parameter} cannot be part of an input: name every argument"
            )
            raise TaskDefinitionError(message)
    return parameters, hints


def _is_context(hint: Any) -> bool:
    return hint is Context or Context in get_args(hint)


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    default = parameter.default
    return (parameter.name, hint, msgspec.field(default_factory=lambda: copy.deepcopy(default)))


# The Context parameter is given by the worker, so it is not part of what a caller of `enqueue` passes.
@overload
def task(function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
@overload
def task(function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
@overload
def task(function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    name: str | None = None,
    queue: str = "default",
    priority: Priority = "normal",
    max_attempts: int = MAX_ATTEMPTS_DEFAULT,
    timeout_s: float | None = None,
    run_in: RunIn = "auto",
    backoff: Backoff | None = None,
    retry_on: ExceptionTypes = (),
    give_up_on: ExceptionTypes = (),
    hooks: Hooks | None = None,
    heartbeat_s: float | None = None,
) -> _Decorator: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    queue: str = "default",
    priority: Priority = "normal",
    max_attempts: int = MAX_ATTEMPTS_DEFAULT,
    timeout_s: float | None = None,
    run_in: RunIn = "auto",
    backoff: Backoff | None = None,
    retry_on: ExceptionTypes = (),
    give_up_on: ExceptionTypes = (),
    hooks: Hooks | None = None,
    heartbeat_s: float | None = None,
) -> Any:
    """Make a function, async or not, a task: `@task` or `@task(queue=..., max_attempts=..., timeout_s=...)`.

    The name a job carries is the function's, unless `name` is given; it must stay the same while jobs of it exist.
    What the options mean is said at `Options` and `Rules`.

    Raises: InvalidTokenError, ConfigurationError.
    """
    options = Options(queue=queue, priority=priority, max_attempts=max_attempts, timeout_s=timeout_s)
    rules = Rules(
        run_in=run_in,
        backoff=backoff or Backoff(),
        retry_on=retry_on,
        give_up_on=give_up_on,
        hooks=hooks or Hooks(),
        heartbeat_s=heartbeat_s,
    )

    def decorate(decorated: Callable[..., Any]) -> Task[Any, Any]:
        return Task(decorated, name or decorated.__name__, options, rules)

    return decorate if function is None else decorate(function)


class _Decorator:
    """The type of `task(...)` with options; never instantiated."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Decorate; the real decorator is a closure of `task`."""
        raise AssertionError(function)


class TaskRegistry:
    """Tasks by name, as found in modules."""

    def __init__(self, tasks: Iterable[Task[Any, Any]] = ()) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}
        self.modules: tuple[str, ...] = ()  #: as given to `load`, so that another process can load the same
        self.hooks: tuple[Hooks, ...] = ()  #: found at the top of modules: for every task here
        for found in tasks:
            self.add(found)

    @classmethod
    def load(cls, modules: Iterable[str]) -> TaskRegistry:
        """Import modules by dotted name (or a path to a .py file) and collect the tasks and the `Hooks` they hold.

        Raises: ConfigurationError for a module that cannot be imported or holds no task, TaskDefinitionError.
        """
        registry = cls()
        for name in modules:
            members: list[Any] = list(vars(_import(name)).values())
            registry.modules += (name,)
            for each in members:
                if isinstance(each, Hooks) and each not in registry.hooks:
                    registry.hooks += (each,)
            found: list[Task[Any, Any]] = [value for value in members if isinstance(value, Task)]
            if not found:
                message = f"module {name!r} holds no task: decorate a function with @task"
                raise ConfigurationError(message)
            for each in found:
                registry.add(each)
        return registry

    def add(self, task: Task[Any, Any]) -> None:
        """Add a task after checking that its signature can be an input.

        Raises: ConfigurationError for a second task of the same name, TaskDefinitionError.
        """
        known = self._tasks.setdefault(task.name, task)
        if known is not task:
            message = (
                f"two tasks are called {task.name!r} ({_where(known)} and {_where(task)}): give one a name="
            )
            raise ConfigurationError(message)
        # A wrong signature is reported here, not by the first job.
        if task.signature.context_parameter is None and task.rules.heartbeat_s is not None:
            message = f"task {task.name} has heartbeat_s but no Context parameter to give signs of life by"
            raise TaskDefinitionError(message)

    def get(self, name: str) -> Task[Any, Any]:
        """Return the task of that name.

        Raises: UnknownTaskError.
        """
        found = self._tasks.get(name)
        if found is None:
            raise UnknownTaskError(name, sorted(self._tasks))
        return found

    def find(self, name: str) -> Task[Any, Any] | None:
        """Return the task of that name, None where it is not loaded."""
        return self._tasks.get(name)

    @property
    def queues(self) -> list[str]:
        """The queues that the tasks name by default, sorted."""
        return sorted({found.defaults.queue for found in self._tasks.values()})

    def __iter__(self) -> Any:
        """Iterate over the tasks, by name."""
        return iter(sorted(self._tasks.values(), key=lambda found: found.name))

    def __contains__(self, name: object) -> bool:
        """Return whether a task of that name is loaded."""
        return name in self._tasks

    def __len__(self) -> int:
        """Return how many tasks there are."""
        return len(self._tasks)


def _where(task: Task[Any, Any]) -> str:
    return f"{task.function.__module__}.{task.function.__qualname__}"


def _import(name: str) -> ModuleType:
    """Import a module; one given as a file is found beside itself, as `python file.py` would."""
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
            message = f"there is no module {name!r} on the import path: is --app right, and is this the right folder?"
            raise ConfigurationError(message) from error
        raise
