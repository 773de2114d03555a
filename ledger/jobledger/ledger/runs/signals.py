"""`Signal`: a named, typed message that can be sent to a run; also the search for signals in a workflow's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, Generic, TypeVar

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.signature import UNREADABLE, result_decoder, schema_of_type

T = TypeVar("T")


class Signal(Generic[T]):
    """A message that runs wait for, and the type of its value: `approved = Signal("approved", Approval)`.

    A run takes it with `await run.wait(approved)`; `await ledger.signal("order-77", approved, Approval(...))` sends it.
    """

    def __init__(self, name: str, type: type[T]) -> None:  # noqa: A002 - the public name of the option
        """Raises: InvalidTokenError, TaskDefinitionError for a type that JSON cannot hold."""
        self.name = check_token("signal name", name)
        self.type = type
        self._decoder: msgspec.json.Decoder[Any] = result_decoder(type, f"signal {name}")

    def __repr__(self) -> str:
        """Show the name."""
        return f"<signal {self.name}>"

    def encode(self, value: T, /) -> bytes:
        """Return a value as JSON text, after a check that it can be read as the signal's type.

        Raises: InvalidInputError.
        """
        text = encode_value(value, what=f"value of signal {self.name}")
        self.read(text)
        return text

    def json_schema(self) -> Any:
        """Return the JSON Schema of its value; True (any value) if the type's own code fails."""
        return schema_of_type(self.type)

    def read(self, text: bytes) -> T:
        """Return a value that was sent.

        Raises: InvalidInputError for a value of another type, for example from another version of the code.
        """
        try:
            found: T = self._decoder.decode(text)
        except UNREADABLE as error:
            raise InvalidInputError(
                f"the value of signal {self.name} is no {_name(self.type)}: {error}"
            ) from error
        return found


def signals_in(function: Callable[..., Any]) -> tuple[Signal[Any], ...]:
    """Return the signals that a function names, itself or in the functions of its module that it names.

    Signals of one name and different types are left out, since it is not clear which of them a wait means.
    """
    found: dict[str, Signal[Any]] = {}
    unsure: set[str] = set()
    for signal in _referred(function, set()):
        if found.setdefault(signal.name, signal).type != signal.type:
            unsure.add(signal.name)
    return tuple(signal for name, signal in found.items() if name not in unsure)


_FUNCTIONS_MAX: Final = 100  #: most functions that are searched for one workflow


def _referred(function: Any, seen: set[int]) -> Iterator[Signal[Any]]:
    if not isinstance(function, FunctionType) or id(function) in seen or len(seen) >= _FUNCTIONS_MAX:
        return
    seen.add(id(function))
    for value in _values_named(function):
        if isinstance(value, Signal):
            yield value
        elif isinstance(value, FunctionType) and value.__module__ == function.__module__:
            yield from _referred(value, seen)


def _values_named(function: FunctionType) -> Iterator[object]:
    """Yield the values of the names in a function's code: from its closure, its module, and modules that it names."""
    names = set(_names_in(function.__code__))
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield value
        if isinstance(value, ModuleType):
            yield from (vars(value)[each] for each in names & vars(value).keys())


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


def _name(kind: object) -> str:
    return getattr(kind, "__name__", None) or str(kind)
