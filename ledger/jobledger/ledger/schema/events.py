"""The stored form of every event as JSON Schema (2020-12), for readers in other languages. Pure.

Made from the classes themselves: types, defaults, docstrings and the comments on their fields. What a schema promises
holds for ever: fields may be added, so readers ignore those that they do not know.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from jobledger.ledger.model.aggregates import AGGREGATES, event_name
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import InvalidInputError

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
#: With a zone, in a year that every reader can hold; see `envelope.TIME_MIN`.
_TIME: Final = r"^(19[7-9]\d|[2-9]\d{3})-.*(Z|[+-]\d\d:?\d\d)$"
_TOKEN: Final = "^[A-Za-z0-9_-]{1,64}$"
#: Fields that are words of a subject as well.
_TOKENS: Final = frozenset({"task", *(field for each in AGGREGATES.values() for field in each.key)})
_HEXADECIMAL: Final = frozenset({"prev", "sha256", "merkle_root", "head_hash", "previous_root", "digest"})
_WRITTEN_WHEN_EMPTY: Final = (msgspec.NODEFAULT, list, dict, set)  # made by these, an empty value is left out


def described() -> Iterator[tuple[str, str, type[msgspec.Struct]]]:
    """Yield aggregate, type and class of every event there is."""
    for aggregate in AGGREGATES.values():
        for tag, cls in aggregate.types.items():
            yield aggregate.name, tag, cls


def event_schema(event_type: str) -> Schema:
    """Return the schema of one type of event, whole: with `$schema`, `$id` and what it refers to.

    `event_type`: its name as `aggregates.event_name` has it.

    Raises: InvalidInputError for a type that there is not.
    """
    for aggregate, tag, cls in described():
        if event_name(aggregate, tag) == event_type:
            builder = SchemaBuilder("#/$defs/")
            found = builder.of_struct(cls)
            head: Schema = {"$schema": DIALECT, "$id": _identity(f"{aggregate}:{tag}")}
            return {**head, **found, **({"$defs": builder.definitions} if builder.definitions else {})}
    known = ", ".join(event_name(aggregate, tag) for aggregate, tag, _ in described())
    raise InvalidInputError(f"there is no event type {event_type[:60]!r}; the types: {known}")


def all_events_schema() -> Schema:
    """Return one schema that every event fits, each type under `$defs`."""
    builder = SchemaBuilder("#/$defs/")
    events = {event_name(aggregate, tag): builder.of_struct(cls) for aggregate, tag, cls in described()}
    return {
        "$schema": DIALECT,
        "$id": _identity("any"),
        "title": "event",
        "description": "Any event of the ledger; its subject and `type` say which one.",
        # Not `oneOf`: two kinds of chains may have a type of the same name, told apart by the subject.
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in events],
        "$defs": {**events, **builder.definitions},
    }


def _identity(name: str) -> str:
    return f"urn:jobledger:event:{name}:v1"  # the form's version, as in every event's `v`


_NO_DEFAULTS: Final = (msgspec.NODEFAULT, msgspec.UNSET, NO_VALUE)


class SchemaBuilder:
    """Makes schemas of classes; what they have in common is referred to, and collected in `definitions`."""

    def __init__(self, reference: str) -> None:
        self._reference = reference  #: what precedes a definition's name, such as "#/$defs/"
        self.definitions: dict[str, Schema] = {}

    def of_struct(self, cls: type[msgspec.Struct]) -> Schema:
        """Return the schema of one class, without `$id`."""
        info = types.type_info(cls)
        assert isinstance(info, types.StructType), "events are structs, written as objects"
        notes = field_notes(cls)
        properties: dict[str, Schema] = {}
        required: list[str] = []
        if info.tag_field is not None:
            properties[info.tag_field] = {"const": info.tag, "description": "Which event it is."}
            required.append(info.tag_field)
        for field in info.fields:
            properties[field.encode_name] = self._of_field(field, notes.get(field.name, ""))
            if field.required or field.default_factory not in _WRITTEN_WHEN_EMPTY:
                required.append(field.encode_name)
        return {
            "title": cls.__name__ if info.tag is None else str(info.tag),
            "description": _first_paragraph(cls),
            "type": "object",
            "properties": properties,
            "required": required,
        }

    def _of_field(self, field: types.Field, note: str) -> Schema:
        found = self.of(field.type)
        if found.get("type") == "string" and "enum" not in found:
            is_of_owner = field.name == "key" and not field.required  # `person:17/1`
            if field.name in _TOKENS and not is_of_owner:
                found = {**found, "pattern": _TOKEN}
            elif field.name in _HEXADECIMAL:
                found = {**found, "pattern": "^[0-9a-f]*$"}
        if note:
            found = {**found, "description": note}
        if not any(field.default is each for each in _NO_DEFAULTS):
            found = {**found, "default": msgspec.json.decode(msgspec.json.encode(field.default))}
        return found

    def of(self, info: types.Type) -> Schema:  # noqa: PLR0911 - one flat match over the types that events use
        """Return the schema of a value."""
        match info:
            case types.StructType():
                return self._refer(info.cls)
            case types.UnionType():
                return {"anyOf": [self.of(each) for each in info.types]}
            case types.LiteralType():
                return {"type": "string", "enum": list(info.values)}
            case types.EnumType():
                return {"type": "string", "enum": [each.value for each in info.cls]}
            case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
                return {"type": "array", "items": self.of(info.item_type)}
            case types.TupleType():  # of one type throughout, such as the first and last item of a range
                size = len(info.item_types)
                return {
                    "type": "array",
                    "items": self.of(info.item_types[0]),
                    "minItems": size,
                    "maxItems": size,
                }
            case types.DictType():
                return {"type": "object", "additionalProperties": self.of(info.value_type)}
            case types.DateTimeType():
                return {"type": "string", "format": "date-time", "pattern": _TIME}
            case types.IntType(ge=least, le=most) if least is not None:
                return {"type": "integer", "minimum": least, "maximum": most}
            case types.RawType() | types.AnyType():
                return {}
            case _:
                return {"type": _PLAIN[type(info)]}

    def _refer(self, cls: type[msgspec.Struct]) -> Schema:
        if cls.__name__ not in self.definitions:
            self.definitions[cls.__name__] = {}  # known from here on, also to itself
            self.definitions[cls.__name__] = self.of_struct(cls)
        return {"$ref": self._reference + cls.__name__}


_PLAIN: Final[Mapping[type[types.Type], str]] = {
    types.StrType: "string",
    types.IntType: "integer",
    types.FloatType: "number",
    types.BoolType: "boolean",
    types.NoneType: "null",
    types.BytesType: "string",  # base64
}


_LINE_BEGINS: Final = frozenset({tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


def _first_paragraph(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


@functools.cache
def field_notes(cls: type) -> Mapping[str, str]:
    """Return the `#:` comments on the fields of a class and of its base classes."""
    notes: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if issubclass(each, msgspec.Struct) and each is not msgspec.Struct:
            notes |= _own_notes(each)
    return notes


@functools.cache
def _own_notes(cls: type) -> Mapping[str, str]:
    return _notes_in(_sources(cls.__module__).get(cls.__name__, ""))


@functools.cache
def _sources(module: str) -> Mapping[str, str]:
    """Return the source of each class of a module: `inspect.getsource` would parse the module for every one of them."""
    try:
        text = inspect.getsource(sys.modules[module])
    except OSError:  # run from where there are no sources: schemas without these descriptions
        return {}
    lines = text.splitlines(keepends=True)
    classes = (each for each in ast.parse(text).body if isinstance(each, ast.ClassDef))
    return {each.name: "".join(lines[each.lineno - 1 : each.end_lineno]) for each in classes}


def _notes_in(source: str) -> dict[str, str]:
    """Find `name: type ...  #: note`, also where the formatter broke the line, and notes on lines of their own above."""
    notes: dict[str, str] = {}
    name = ""
    above: list[str] = []
    begins = True  # a logical line begins
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            note = token.string.removeprefix("#:").strip()
            if token.string.startswith("#:") and begins:
                above.append(note)
            elif token.string.startswith("#:") and name:
                notes[name] = note
        elif token.type in _LINE_BEGINS:
            begins = True
        elif begins and token.type != tokenize.NL:
            name = token.string if token.type == tokenize.NAME else ""
            if name and above:
                notes[name] = " ".join(above)
            above.clear()
            begins = False
    return notes
