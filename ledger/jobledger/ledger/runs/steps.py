"""`@step`: makes a function a step, which a run calls once and whose result it records."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, cast, get_type_hints, overload

import msgspec

from jobledger.ledger.backoff import Backoff
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidInputError,
    TaskDefinitionError,
)
from jobledger.ledger.model.json_text import encode_sorted
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import ExceptionTypes, Rules, RunIn
from jobledger.ledger.signature import UNREADABLE, TaskSignature, result_decoder
from jobledger.ledger.tasks import Task, TaskWithOptions

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_TRIES_MAX: Final = 1_000
_DIGEST_DIGITS: Final = 16


class NotDone:
    """The value that an `on_doubt` function returns if the step was not done."""

    def __repr__(self) -> str:
        """Show the name that code uses."""
        return "NOT_DONE"


NOT_DONE: Final = NotDone()

#: The treatment of a `once` step that has a start and no end. A function gets the step's arguments and finds out.
OnDoubt = Literal["fail", "retry"] | Callable[..., Any]


class StepRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which a run calls a step."""

    rules: Rules = Rules()  #: where it runs, how long it waits between tries, which errors are tried again
    max_attempts: int = 1  #: tries in all, each of them recorded
    timeout_s: float | None = None  #: time limit of one try
    once: bool = False  #: record the intent before the call, and never call the step again in doubt
    on_doubt: OnDoubt = "fail"

    def __post_init__(self) -> None:
        """Check every rule.

        Raises: ConfigurationError.
        """
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= _TRIES_MAX:
            raise ConfigurationError(
                f"max_attempts of a step must be a whole number from 1 to {_TRIES_MAX}, got {self.max_attempts!r}"
            )
        if self.timeout_s is not None and not 0 < self.timeout_s <= _TIMEOUT_S_MAX:
            raise ConfigurationError(
                f"timeout_s of a step must be above 0 and at most a week, got {self.timeout_s!r}"
            )
        if self.on_doubt not in ("fail", "retry") and not callable(self.on_doubt):
            raise ConfigurationError(f"on_doubt must be fail, retry or a function, got {self.on_doubt!r}")
        if self.once and self.max_attempts > 1:
            raise ConfigurationError("a step with once=True has one try: leave max_attempts out")
        if not self.once and self.on_doubt != "fail":
            raise ConfigurationError("on_doubt is for a step with once=True: any other is simply run again")


_TIMEOUT_S_MAX: Final = 7 * 24 * 3600.0


class StepFunction(Generic[P, R_co]):
    """A function with `@step`. A run calls it by `await run.step(charge, order)`, a unit test by `charge.function`."""

    def __init__(
        self,
        function: Callable[P, Any],
        name: str,
        rules: StepRules = StepRules(),  # noqa: B008 - frozen
        *,
        target: str = "",
    ) -> None:
        self.function = function
        self.name = check_token("step name", name)  #: name in its key in a run
        self.target = target or name  #: name that is recorded as the called function, with any key
        self.rules = rules
        self.is_async = inspect.iscoroutinefunction(function)

    def __repr__(self) -> str:
        """Show the name."""
        return f"<step {self.name}>"

    def options(
        self, *, name: str | None = None, max_attempts: int | None = None, timeout_s: float | None = None
    ) -> StepFunction[P, R_co]:
        """Return the step with another name for its key, or other limits.

        Raises: InvalidTokenError, ConfigurationError.
        """
        given = {"max_attempts": max_attempts, "timeout_s": timeout_s}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        rules = msgspec.structs.replace(self.rules, **changes)
        return StepFunction(self.function, name or self.name, rules, target=self.target)

    @functools.cached_property
    def signature(self) -> TaskSignature:
        """The types of input and result, as of a task: for a call that another process makes.

        Raises: TaskDefinitionError.
        """
        return TaskSignature(self.function, self.name)

    @functools.cached_property
    def _parameters(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def digest(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the digest of an input, 16 hexadecimal digits; "" if it is not JSON, so that it is not compared.

        Raises: InvalidInputError for arguments that the function does not take.
        """
        try:
            named = self._parameters.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInputError(f"step {self.name}: {error}") from error
        return self.digest_of(named)

    def digest_of(self, value: Any) -> str:
        """Return the digest of any value; "" if it is not JSON."""
        try:
            return digest_of(value)
        except InvalidInputError:
            return ""

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        try:
            hints = get_type_hints(self.function, include_extras=True)
        except (NameError, TypeError, AttributeError) as error:
            raise TaskDefinitionError(
                f"step {self.name}: an annotation cannot be resolved at run time ({error}): import it for real"
            ) from error
        return result_decoder(hints.get("return", Any), f"step {self.name}")

    def read(self, text: bytes) -> Any:
        """Return a recorded result, read by the function's return annotation.

        Raises: InvalidInputError for a value of another type, TaskDefinitionError.
        """
        try:
            return self._decoder.decode(text)
        except UNREADABLE as error:
            raise InvalidInputError(
                f"step {self.name} is annotated to return something else: {error}"
            ) from error


def digest_of(value: Any) -> str:
    """Return the digest of a value for an event; equal values have equal digests. Raises: InvalidInputError."""
    return hashlib.sha256(encode_sorted(value, what="input of a step")).hexdigest()[:_DIGEST_DIGITS]


def as_step(function: StepFunction[..., R] | Callable[..., Any]) -> StepFunction[..., Any]:
    """Return a plain function as a step with the rules that `@step` has by default.

    Raises: TaskDefinitionError for a function without a name of its own, and for a task.
    """
    if isinstance(function, StepFunction):
        return cast("StepFunction[..., Any]", function)
    if isinstance(function, Task | TaskWithOptions):
        raise TaskDefinitionError(
            f"{function.unpacked[0].name} is a task, which a run calls as a job of its own: use run.call or run.map; "
            "a step is a function, plain or with @step"
        )
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise TaskDefinitionError(
            f"{function!r} has no name that a step could be found by again: define a function, "
            "or make it a step with @step(name=...)"
        )
    return StepFunction(function, name)


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> StepFunction[P, R]: ...
@overload
def step(function: Callable[P, R], /) -> StepFunction[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    max_attempts: int = 1,
    backoff: Backoff | None = None,
    timeout_s: float | None = None,
    retry_on: ExceptionTypes = (),
    give_up_on: ExceptionTypes = (),
    run_in: RunIn = "auto",
    once: bool = False,
    on_doubt: OnDoubt = "fail",
) -> _Decorator: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    max_attempts: int = 1,
    backoff: Backoff | None = None,
    timeout_s: float | None = None,
    retry_on: ExceptionTypes = (),
    give_up_on: ExceptionTypes = (),
    run_in: RunIn = "auto",
    once: bool = False,
    on_doubt: OnDoubt = "fail",
) -> Any:
    """Make a function, async or not, a step: `@step` or `@step(max_attempts=..., timeout_s=..., once=...)`.

    A run calls it and records its end; a later attempt gets the recorded result. Each try is recorded. `once`: the
    intent is recorded before the call. A run that finds the intent without an end does not call the step again: it
    raises StepInDoubtError, or follows `on_doubt`.

    Raises: TaskDefinitionError for an object that is no plain function, InvalidTokenError, ConfigurationError.
    """
    rules = StepRules(
        rules=Rules(run_in=run_in, backoff=backoff or Backoff(), retry_on=retry_on, give_up_on=give_up_on),
        max_attempts=max_attempts,
        timeout_s=timeout_s,
        once=once,
        on_doubt=on_doubt,
    )

    def decorate(decorated: Any) -> StepFunction[Any, Any]:
        if inspect.isclass(decorated) or not hasattr(decorated, "__name__"):
            raise TaskDefinitionError(f"{decorated!r} cannot be a step: decorate a function with @step")
        if inspect.isasyncgenfunction(decorated) or inspect.isgeneratorfunction(decorated):
            raise TaskDefinitionError(
                f"{decorated.__qualname__} cannot be a step: it yields, and a step has one result; return a list"
            )
        return StepFunction(decorated, name or decorated.__name__, rules)

    return decorate if function is None else decorate(function)


class _Decorator:
    """The type of `step(...)` with options; never instantiated."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> StepFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> StepFunction[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Decorate; the real decorator is a closure of `step`."""
        raise AssertionError(function)
