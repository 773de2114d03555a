"""`@task`: makes a function, async or not, a task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from jobledger.ledger.backoff import Backoff
from jobledger.ledger.context import Context
from jobledger.ledger.hooks import Hooks
from jobledger.ledger.limits.declarations import Limit, Queue, divided, queue_of
from jobledger.ledger.model.errors import TaskDefinitionError
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.subjects import check_users_queue
from jobledger.ledger.options import MAX_ATTEMPTS_DEFAULT, ExceptionTypes, Options, Rules, RunIn
from jobledger.ledger.schedules.in_code import Schedule
from jobledger.ledger.tasks import TaskFunction, check_identity
from jobledger.ledger.templates import What, check_template
from jobledger.ledger.unique.rule import Unique

P = ParamSpec("P")
R = TypeVar("R")


# The worker passes the Context parameter, so callers of `enqueue` do not.
@overload
def task(
    function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
) -> TaskFunction[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
@overload
def task(
    function: Callable[P, Coroutine[Any, Any, R]], /
) -> TaskFunction[P, R, P, Coroutine[Any, Any, R]]: ...
@overload
def task(
    function: Callable[Concatenate[Context, P], R], /
) -> TaskFunction[P, R, Concatenate[Context, P], R]: ...
@overload
def task(function: Callable[P, R], /) -> TaskFunction[P, R, P, R]: ...
@overload
def task(
    *,
    name: str | None = None,
    queue: str | Queue = "default",
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
    run_in: RunIn = "auto",
    backoff: Backoff | None = None,
    retry_on: ExceptionTypes = (),
    give_up_on: ExceptionTypes = (),
    hooks: Hooks | None = None,
    heartbeat_s: float | None = None,
    schedule: Schedule | None = None,
) -> _Decorator: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    queue: str | Queue = "default",
    priority: Priority = "normal",
    max_attempts: int = MAX_ATTEMPTS_DEFAULT,
    timeout_s: float | None = None,
    id: str | None = None,  # noqa: A002 - the public name of the option
    tenant: str | None = None,
    owner: str | None = None,
    limits: tuple[str | Limit, ...] = (),
    unique: Unique | None = None,
    debounce_s: float | None = None,
    max_wait_s: float | None = None,
    run_in: RunIn = "auto",
    backoff: Backoff | None = None,
    retry_on: ExceptionTypes = (),
    give_up_on: ExceptionTypes = (),
    hooks: Hooks | None = None,
    heartbeat_s: float | None = None,
    schedule: Schedule | None = None,
) -> Any:
    """Make a function, async or not, a task: `@task` or `@task(queue=..., max_attempts=..., timeout_s=...)`.

    The name a job carries is the function's, unless `name` is given; it must stay the same while jobs of it exist.
    `id`, `tenant` and `owner` are templates, such as `id="charge-{tenant_id}-{invoice}"`: each enqueue fills them from the job's
    input. `{name}` is an argument, `{metadata.name}` a word of the metadata, `{tenant}` the tenant.
    The options are explained at `Options` and `Rules`; `schedule` makes jobs of the task regularly, see `Schedule`.

    Raises: TaskDefinitionError for anything but a plain function, InvalidTokenError, ConfigurationError.
    """
    name_of_queue, declared_queue = queue_of(queue)
    names, declared = divided(limits)
    options = Options(
        queue=name_of_queue,
        priority=priority,
        max_attempts=max_attempts,
        timeout_s=timeout_s,
        id_template=_template("id", id),
        tenant_template=_template("tenant", tenant),
        owner=owner or "",
        limits=names,
        declared=declared,
        declared_queue=declared_queue,
        unique=unique,
        debounce_s=debounce_s,
        max_wait_s=max_wait_s,
    )
    rules = Rules(
        run_in=run_in,
        backoff=backoff or Backoff(),
        retry_on=retry_on,
        give_up_on=give_up_on,
        hooks=hooks or Hooks(),
        heartbeat_s=heartbeat_s,
    )

    def decorate(decorated: Callable[..., Any]) -> TaskFunction[Any, Any, Any, Any]:
        _refuse_unfit(decorated)
        if not (getattr(decorated, "__module__", None) or "").startswith("jobledger."):
            check_users_queue(name_of_queue)
        # The parameters that the worker passes are known once annotations can be read: see `TaskRegistry.add`.
        check_identity(name or decorated.__name__, options, inspect.signature(decorated).parameters)
        return TaskFunction(decorated, name or decorated.__name__, options, rules, schedule=schedule)

    return decorate if function is None else decorate(function)


def _template(what: What, given: str | None) -> str:
    if given is None:
        return ""
    check_template(what, given)
    return given


class _Decorator:
    """The type of `task(...)` with options; never instantiated."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, R, P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Decorate; the real decorator is a closure of `task`."""
        raise AssertionError(function)


def _refuse_unfit(decorated: Any) -> None:
    """Refuse, at its definition, a function that no job could run.

    Raises: TaskDefinitionError.
    """
    name = getattr(decorated, "__qualname__", None) or repr(decorated)
    advice = _unfit(decorated, name)
    if advice:
        raise TaskDefinitionError(f"{name} cannot be a task: {advice}")


def _unfit(decorated: Any, name: str) -> str:
    """Return why an object cannot be a task and what to write instead; "" if it can."""
    if isinstance(decorated, functools.partial):
        return "it is a partial, which has no name; define a function that calls it"
    if inspect.isasyncgenfunction(decorated) or inspect.isgeneratorfunction(decorated):
        return "it yields, and a job has one result; return a list, or report with context.progress"
    if inspect.isclass(decorated) or not callable(decorated) or not hasattr(decorated, "__name__"):
        return "it is no function; decorate a function with @task"
    is_in_class = "." in name.rpartition("<locals>.")[2]
    if inspect.ismethod(decorated) or is_in_class:
        return (
            "it belongs to a class, and a job has no object to call it on; define it at the top of a module"
        )
    return ""
