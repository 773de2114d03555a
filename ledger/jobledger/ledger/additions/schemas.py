"""Types by which msgspec checks inputs and signals, made from their announced JSON Schemas. Pure.

What is checked: names, required and unknown fields; types, nested as deep as they are; enumerations, ranges of numbers,
lengths and patterns; the formats date-time, date, time, duration, uuid and decimal. Not checked, but left to the
worker's code: `allOf`, `not` and conditions, a type inside of itself, alternatives that msgspec cannot tell apart, such
as two kinds of object. Any value passes there.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Union, cast

import msgspec

_REF: Final = "#/$defs/"
_FORMATS: Final[dict[str, Any]] = {
    "date-time": dt.datetime,
    "date": dt.date,
    "time": dt.time,
    "duration": dt.timedelta,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
}
_SIMPLE: Final[dict[str, Any]] = {"integer": int, "number": float, "boolean": bool, "null": None}
_META: Final = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
    "pattern": "pattern",
}
ANY_INPUT: Final = dict[str, Any]  #: of a task whose arguments are not known
#: Exceptions which mean that no type can be made of a schema.
_UNUSABLE: Final = (TypeError, ValueError, KeyError, AttributeError, RecursionError)


def type_of(schema: Any) -> Any:
    """Return a type that a JSON value must have; Any where the schema says nothing usable."""
    try:
        return _usable(_Reader(schema).read(schema))
    except _UNUSABLE:
        return Any


def type_of_input(schema: Any) -> Any:
    """Return a type that a JSON object of arguments must have; `ANY_INPUT` where the schema says nothing usable."""
    found = type_of(schema)
    return found if isinstance(found, type) and issubclass(found, msgspec.Struct) else ANY_INPUT


class _Reader:
    """Reads one schema."""

    def __init__(self, schema: Any) -> None:
        self._definitions: Mapping[str, Any] = schema.get("$defs", {}) if isinstance(schema, dict) else {}
        self._read: dict[str, Any] = {}  #: types by their definitions' names; Any while one is under way

    def read(self, schema: Any) -> Any:
        """Return the type of a part; Any where it cannot be said."""
        if not isinstance(schema, dict):
            return Any
        part = cast("dict[str, Any]", schema)
        if "$ref" in part:
            return self._referred(part["$ref"])
        if "enum" in part or "const" in part:
            return _literal(part.get("enum", [part.get("const")]))
        for word in ("anyOf", "oneOf"):
            if word in part:
                return _union([self.read(each) for each in part[word]])
        kind = part.get("type")
        if isinstance(kind, list):
            kinds: list[Any] = part["type"]
            return _union([self.read({**part, "type": each}) for each in kinds])
        if "allOf" in part or "not" in part or "if" in part:
            return Any
        return _usable(self._of_kind(kind, part))

    def _referred(self, ref: str) -> Any:
        name = ref.removeprefix(_REF)
        if name not in self._read:
            self._read[name] = Any
            self._read[name] = self.read(self._definitions[name])
        return self._read[name]

    def _of_kind(self, kind: Any, part: dict[str, Any]) -> Any:
        if kind == "object":
            return self._object(part)
        if kind == "array":
            return self._array(part)
        if kind == "string":
            return _string(part)
        return _limited(_SIMPLE[kind], part) if kind in _SIMPLE else Any

    def _array(self, part: dict[str, Any]) -> Any:
        if "prefixItems" in part:
            if part.get("items") is not False:
                return list[Any]
            return tuple[tuple(self.read(each) for each in part["prefixItems"])]  # type: ignore[misc] # made here
        return _limited(list[self.read(part.get("items"))], part)  # type: ignore[misc] # made here

    def _object(self, part: dict[str, Any]) -> Any:
        others = part.get("additionalProperties", True)
        if "properties" not in part and others is not False:
            return dict[str, self.read(others)]  # type: ignore[misc] # made here
        fields: list[Any] = []
        names: dict[str, str] = {}
        required = set(part.get("required", ()))
        for number, (name, schema) in enumerate(part.get("properties", {}).items()):
            field = f"f{number}"  # whatever the argument is called
            names[field] = name
            kind = self.read(schema)
            fields.append((field, kind) if name in required else (field, kind, _default(schema)))
        return msgspec.defstruct(
            "Input", fields, rename=names, forbid_unknown_fields=others is False, kw_only=True
        )


def _default(schema: Any) -> Any:
    """Return the default of a field that may be left out: the schema's default as JSON, else UNSET."""
    if not isinstance(schema, dict) or "default" not in schema:
        return msgspec.UNSET
    value: Any = cast("dict[str, Any]", schema)["default"]
    return msgspec.field(default_factory=lambda: value)


def _literal(values: list[Any]) -> Any:
    if not all(value is None or type(value) in (str, int) for value in values):
        return Any
    return Literal[tuple(values)]


def _union(kinds: list[Any]) -> Any:
    """Return the union of several types; Any where msgspec cannot tell them apart."""
    return Any if Any in kinds or not kinds else _usable(Union[tuple(kinds)])  # noqa: UP007 - made here


def _usable(kind: Any) -> Any:
    try:
        msgspec.json.Decoder(kind)
    except _UNUSABLE:
        return Any
    return kind


def _string(part: dict[str, Any]) -> Any:
    if part.get("contentEncoding") == "base64":
        return bytes
    return _FORMATS.get(part.get("format", "")) or _limited(str, part)


def _limited(kind: Any, part: dict[str, Any]) -> Any:
    given = {name: part[word] for word, name in _META.items() if word in part}
    try:
        return Annotated[kind, msgspec.Meta(**given)] if given else kind
    except (TypeError, ValueError, re.error):  # such as a pattern of another dialect
        return kind
