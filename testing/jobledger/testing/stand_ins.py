"""What is called in place of steps and tasks while runs are tested."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.runs.steps import StepFunction
from jobledger.ledger.signature import TaskSignature
from jobledger.ledger.tasks import Task, TaskFunction

#: What is called in place of a step, of a task, or of the function of either.
Fakes = Mapping[Any, Callable[..., Any]]


class StandIns:
    """Fakes by what they stand for; whatever would run in a process of the pool runs here, too."""

    def __init__(self, fakes: Fakes | None = None) -> None:
        """Raises: ConfigurationError for a fake that cannot be called."""
        self._of: dict[Callable[..., Any], Callable[..., Any]] = {}
        #: The tasks that have a fake.
        self.tasks: list[Task[..., Any]] = [each for each in fakes or {} if isinstance(each, Task)]
        for replaced, fake in (fakes or {}).items():
            function = replaced.function if isinstance(replaced, StepFunction | Task) else replaced
            if not callable(function):
                raise ConfigurationError(
                    f"only a step, a task or a function can have a fake, got {replaced!r}"
                )
            if not callable(fake):
                raise ConfigurationError(f"the fake of {replaced!r} must be a function, got {fake!r}")
            self._of[function] = fake

    def of_step(self, step: StepFunction[..., Any]) -> StepFunction[..., Any]:
        """Return the step to call in place of a step: with the same arguments, and a result read as the same type."""
        fake = self._of.get(step.function)
        if fake is not None:
            return StepFunction(fake, step.name)
        return StepFunction(step.function, step.name) if step.rules.rules.run_in == "process" else step

    def of_task(self, task: Task[Any, Any]) -> Task[Any, Any]:
        """Return the task to run: its fake, which gets the job's input alone, or itself in this process."""
        fake = self._of.get(task.function)
        if fake is not None:
            return _faked(task, fake)
        if task.rules.run_in != "process":
            return task
        here = copy.copy(task)
        here.rules = msgspec.structs.replace(task.rules, run_in="auto")
        return here


def _faked(task: Task[Any, Any], fake: Callable[..., Any]) -> Task[Any, Any]:
    parameters = [
        each
        for name, each in inspect.signature(task.function).parameters.items()
        if name != task.signature.context_parameter
    ]

    async def call(**given: Any) -> Any:
        positional = [given[each.name] for each in parameters if each.kind is not each.KEYWORD_ONLY]
        named = {each.name: given[each.name] for each in parameters if each.kind is each.KEYWORD_ONLY}
        found = fake(*positional, **named)
        return await found if inspect.isawaitable(found) else found

    rules = msgspec.structs.replace(task.rules, run_in="auto", heartbeat_s=None)
    here = TaskFunction[Any, Any, Any, Any](call, task.name, task.defaults, rules)
    here.signature = _without_given(task, parameters)
    return here


def _without_given(task: Task[Any, Any], parameters: list[inspect.Parameter]) -> TaskSignature:
    """Return the signature of a task without what its worker gives it."""

    def plain() -> None: ...

    hints = inspect.get_annotations(task.function, eval_str=True)
    hints.pop(task.signature.context_parameter or "", None)
    plain.__annotations__ = hints
    plain.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return TaskSignature(plain, task.name)
