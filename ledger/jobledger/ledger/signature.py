"""The types of a task's input and result: read from its annotations, and checked on the way to and from JSON."""

from __future__ import annotations

import contextlib
import copy
import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import (
    Any,
    ClassVar,
    Final,
    Never,
    NoReturn,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import msgspec.inspect

from jobledger.ledger.model.errors import InvalidInputError, ResultMismatchError, TaskDefinitionError
from jobledger.ledger.model.foreign_types import (
    from_builtin,
    is_checked_dataclass,
    is_known,
    schema_of,
    to_builtin,
)
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.outcome import WISHES

#: The errors of a decoder for a text of another type than wanted.
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, TypeError)
#: Return annotations that promise nothing about a result.
_NO_PROMISE: Final = (inspect.Signature.empty, object, Never, NoReturn)


class ReadsInput(Protocol):
    """The input of a task; see `TaskSignature` and `AnnouncedInput`."""

    @property
    def what(self) -> str:
        """The name of the input in errors."""
        ...

    def decode(self, text: bytes | msgspec.Raw) -> dict[str, Any]:
        """Return the arguments in an input's JSON text, defaults included."""
        ...

    def read_result(self, text: bytes, job_id: str) -> Any:
        """Return a result in the type that the task promises."""
        ...


class GivenByWorker:
    """The base class of values that a worker passes to a task: a parameter of such a type is not part of the input."""

    __slots__ = ()
    #: Whether only runs have such a parameter.
    is_of_runs: ClassVar[bool] = False


class TaskSignature:
    """The types of a task: its input, a JSON object of exactly its parameters, and its result."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """Raises: TaskDefinitionError for a type that JSON cannot hold, and an annotation that cannot be resolved."""
        self._task_name = name
        self.what: Final = f"input of task {name}"  #: name of the input in errors
        parameters, hints = _parameters(function, name)
        self.context_parameter = next((p.name for p in parameters if _given(hints.get(p.name))), None)
        #: The type of that parameter.
        self.given = None if self.context_parameter is None else _given(hints[self.context_parameter])
        self._parameters = [p for p in parameters if p.name != self.context_parameter]
        self._types = {p.name: hints.get(p.name, Any) for p in self._parameters}
        self._positional = [p.name for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        try:
            self._struct = msgspec.defstruct(
                name,
                [_field(p, self._types[p.name]) for p in self._parameters],
                forbid_unknown_fields=True,
                kw_only=True,
            )
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
                self._struct, dec_hook=from_builtin
            )
        except TypeError as error:
            message = f"task {name}: a parameter's type cannot be read from JSON: {error}"
            raise TaskDefinitionError(message) from error
        self._names = tuple(p.name for p in self._parameters)
        for parameter, wanted in self._types.items():
            _refuse_foreign(wanted, f"task {name}: parameter {parameter}")
        self._result_decoder = result_decoder(hints.get("return", Any), f"task {name}")

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that are a job's input, in their order."""
        return self._names

    @property
    def plain_names(self) -> tuple[str, ...]:
        """The parameters whose values are plain JSON: reading and writing a value again does not change it."""
        return tuple(name for name in self._names if _is_plain(msgspec.inspect.type_info(self._types[name])))

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the input's JSON text after checking it against the signature.

        Raises: InvalidInputError with the task, the parameter and what is wrong.
        """
        if args:
            kwargs = self.named(args, kwargs)
        text = encode_value(kwargs, what=self.what)
        self._read(text)
        return text

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of the parameters that may be left out."""
        return {p.name: p.default for p in self._parameters if p.default is not p.empty}

    def check_known(self, named: Mapping[str, Any], late: Collection[str]) -> dict[str, Any]:
        """Check an input, except the arguments in `late`, whose values come later; return it as JSON values.

        Raises: InvalidInputError with the task, the parameter and what is wrong.
        """
        check_names(self._task_name, self._names, self.defaults, named)
        plain: dict[str, Any] = {}
        for name, value in named.items():
            text = encode_value(value, what=f"argument {name} of task {self._task_name}")
            plain[name] = msgspec.json.decode(text)
            try:
                if name not in late:
                    msgspec.json.decode(text, type=self._types[name], dec_hook=from_builtin)
            except UNREADABLE as error:
                raise InvalidInputError(f"task {self._task_name}, argument {name}: {error}") from error
        return plain

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by their parameters' names. Raises: InvalidInputError."""
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

    def json_schema(self) -> Any:
        """Return the JSON Schema of the input; True, which lets anything through, if a type's own code fails."""
        schema = schema_of_type(self._struct)
        if schema is not True:
            self._tell_defaults(schema)
        return schema

    def _tell_defaults(self, schema: Any) -> None:
        """Add the defaults to the properties, since the types do not have their values."""
        properties = schema["$defs"][schema["$ref"].rpartition("/")[2]]["properties"]
        for name, value in self.defaults.items():
            with contextlib.suppress(Exception):  # JSON cannot hold this default: it is left out
                told = msgspec.json.decode(encode_value(value, what=self.what))
                known = properties[name]
                properties[name] = (
                    {**known, "default": told} if isinstance(known, dict) else {"default": told}
                )

    def read_result(self, text: bytes, job_id: str) -> Any:
        """Return a result in the type of the task's return annotation; without one as plain JSON values.

        Raises: ResultMismatchError.
        """
        try:
            return self._result_decoder.decode(text)
        except UNREADABLE as error:
            raise ResultMismatchError(job_id, self._task_name, str(error)) from error

    def parse_words(self, words: Mapping[str, str]) -> dict[str, Any]:
        """Read key=value words by the parameters' types: a str stays as it is, the rest is read as JSON would be.

        Raises: InvalidInputError.
        """
        return parse_words(self._task_name, self._types, words)


def schema_of_type(kind: Any) -> Any:
    """Return the JSON Schema of a type; True, which lets anything through, if a type's own code fails."""
    definitions: dict[str, Any] = {}
    try:
        schema = msgspec.json.schema(
            kind, schema_hook=lambda part: schema_of(part, definitions), ref_template="#/$defs/{name}"
        )
    except Exception:  # noqa: BLE001 - a model's schema is made by its own code
        return True
    schema.setdefault("$defs", {}).update(definitions)
    return schema


def check_names(task: str, names: Sequence[str], optional: Collection[str], named: Collection[str]) -> None:
    """Refuse unknown and missing arguments of a task. Raises: InvalidInputError."""
    unknown = sorted(set(named) - set(names))
    missing = [name for name in names if name not in named and name not in optional]
    if unknown or missing:
        what = f"has no argument {unknown[0]!r}" if unknown else f"needs the argument {missing[0]!r}"
        raise InvalidInputError(f"task {task} ({', '.join(names)}) {what}")


def parse_words(task: str, types: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Read key=value words by the types of a task's arguments; see `TaskSignature.parse_words`."""
    parsed: dict[str, Any] = {}
    for name, word in words.items():
        if name not in types:
            known = ", ".join(types) or "none"
            message = f"task {task} has no argument {name!r}; its arguments: {known}"
            raise InvalidInputError(message)
        parsed[name] = _parse_word(task, name, types[name], word)
    return parsed


def _parse_word(task: str, name: str, wanted: Any, word: str) -> Any:
    if wanted is Any:
        return _json_or_text(word)
    # Lax conversion reads numbers, booleans and dates from text; structured values are read as JSON.
    with contextlib.suppress(*UNREADABLE):
        found = msgspec.convert(word, wanted, strict=False, dec_hook=from_builtin)
        return msgspec.to_builtins(found, enc_hook=to_builtin)
    with contextlib.suppress(*UNREADABLE):
        found = msgspec.json.decode(word, type=wanted, dec_hook=from_builtin)
        return msgspec.to_builtins(found, enc_hook=to_builtin)
    message = f"task {task}: argument {name}={word[:60]!r} is not {_type_name(wanted)}"
    raise InvalidInputError(message)


def _json_or_text(word: str) -> Any:
    try:
        return msgspec.json.decode(word)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return word


def _type_name(wanted: Any) -> str:
    return getattr(wanted, "__name__", None) or str(wanted).replace("typing.", "")


def result_decoder(returned: Any, what: str) -> msgspec.json.Decoder[Any]:
    """Return a decoder of the results of a task or step, without the outcomes that it may return instead.

    Raises: TaskDefinitionError for a type that JSON cannot hold.
    """
    if get_origin(returned) in (Union, types.UnionType):
        results = tuple(each for each in get_args(returned) if each not in WISHES)
        returned = Union[results] if results else Any  # noqa: UP007 - made here
    if returned in _NO_PROMISE or returned in WISHES:
        returned = Any
    try:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(returned, dec_hook=from_builtin)
    except TypeError as error:
        message = f"{what}: the type of its result cannot be read from JSON: {error}"
        raise TaskDefinitionError(message) from error
    _refuse_foreign(returned, f"{what}: its result")
    return decoder


def _refuse_foreign(wanted: Any, what: str) -> None:
    """Raise TaskDefinitionError for a type that JSON cannot hold, itself or a part of it."""
    for foreign in _foreign_types(msgspec.inspect.type_info(wanted), set()):
        inside = "is" if foreign is wanted else "holds"
        advice = (
            "a dataclass of pydantic, whose checks would not be made: use a model or a standard dataclass"
            if is_checked_dataclass(foreign)
            else f"a {_type_name(foreign)}, which JSON cannot hold: use a type that msgspec knows, a Path or a pydantic model"
        )
        raise TaskDefinitionError(f"{what} {inside} {advice}")


def _foreign_types(node: Any, seen: set[int]) -> Iterator[Any]:
    """Yield every class in a type that cannot be written and read; `object` counts as Any."""
    if isinstance(node, tuple):
        for each in node:  # pyright: ignore[reportUnknownVariableType] # nodes and fields
            yield from _foreign_types(each, seen)
    elif isinstance(node, msgspec.inspect.CustomType):
        if node.cls is not object and not is_known(node.cls):
            yield node.cls
    elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in seen:
        seen.add(id(node))  # a type may hold itself
        if isinstance(node, msgspec.inspect.DataclassType) and is_checked_dataclass(node.cls):
            yield node.cls
        yield from _foreign_types(tuple(getattr(node, name) for name in node.__struct_fields__), seen)


_PLAIN: Final = (
    msgspec.inspect.AnyType,
    msgspec.inspect.BoolType,
    msgspec.inspect.FloatType,
    msgspec.inspect.IntType,
    msgspec.inspect.LiteralType,
    msgspec.inspect.NoneType,
    msgspec.inspect.StrType,
)


def _is_plain(node: msgspec.inspect.Type) -> bool:
    if isinstance(node, msgspec.inspect.ListType):
        return _is_plain(node.item_type)
    if isinstance(node, msgspec.inspect.DictType):
        return isinstance(node.key_type, msgspec.inspect.StrType) and _is_plain(node.value_type)
    if isinstance(
        node, msgspec.inspect.UnionType
    ):  # only with None, since other unions could be read as several types
        kinds = [each for each in node.types if not isinstance(each, msgspec.inspect.NoneType)]
        return len(kinds) == 1 and _is_plain(kinds[0])
    return isinstance(node, _PLAIN)


def _parameters(
    function: Callable[..., Any], task_name: str
) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        message = (
            f"task {task_name}: an annotation cannot be resolved at run time ({error}): import it for real"
        )
        raise TaskDefinitionError(message) from error
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            message = (
                f"task {task_name}: parameter {parameter} cannot be part of an input: name every argument"
            )
            raise TaskDefinitionError(message)
    return parameters, hints


def _given(hint: Any) -> type[GivenByWorker] | None:
    """Return the type in an annotation, if it is one that workers pass."""
    for each in (hint, *get_args(hint)):
        if isinstance(each, type) and issubclass(each, GivenByWorker):
            return each
    return None


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    default = parameter.default
    return (parameter.name, hint, msgspec.field(default_factory=lambda: copy.deepcopy(default)))
