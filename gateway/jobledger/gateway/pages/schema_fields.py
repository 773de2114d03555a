"""The fields of a form from the JSON Schema of a task's input or of a signal, and the value from such a form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec

from jobledger.gateway.pages.page import Fields
from jobledger.gateway.problems import ProblemError

Kind = Literal["text", "whole", "number", "flag", "choice", "json"]

FIELDS_MAX: Final = 40
_KINDS: Final[dict[str, Kind]] = {"string": "text", "integer": "whole", "number": "number", "boolean": "flag"}
_DEPTH_MAX: Final = 8
_PREFIX: Final = "arg."
#: Name of the only field of a value that is no object.
_WHOLE: Final = ""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One argument."""

    name: str
    kind: Kind
    required: bool
    text: str  #: its description, "" without one
    default: str  #: default as a person would type it, "" without one
    choices: tuple[str, ...] = ()

    @property
    def input_name(self) -> str:
        """The name of the field in the form."""
        return _PREFIX + self.name


def fields_of(schema: Any) -> tuple[Field, ...] | None:
    """Return a field for each argument; None if the schema does not list them: then JSON has to be typed."""
    found = _resolved(schema, schema)
    properties = found.get("properties")
    if not isinstance(properties, dict) or len(cast("dict[str, Any]", properties)) > FIELDS_MAX:
        return None
    required = {str(each) for each in found.get("required") or ()}
    named = cast("dict[str, Any]", properties)
    return tuple(
        _field(name, _resolved(each, schema), required=name in required) for name, each in named.items()
    )


def value_fields(schema: Any) -> tuple[Field, ...] | None:
    """Return the fields of any value: one without a name if it is no object, () for null; None as in `fields_of`."""
    found = _resolved(schema, schema)
    if found.get("type") == "null":
        return ()
    field = _field(_WHOLE, found, required=True)
    return (field,) if field.kind != "json" else fields_of(schema)


def _resolved(given: Any, whole: Any) -> dict[str, Any]:
    """Return a part of a schema with its reference resolved; for "a type or null", the type."""
    part: Any = given
    for _ in range(_DEPTH_MAX):
        if not isinstance(part, dict):
            return {}
        found = cast("dict[str, Any]", part)
        options = [each for each in found.get("anyOf") or () if each != {"type": "null"}]
        if "$ref" in found:
            name = str(found["$ref"]).rpartition("/")[2]
            definitions: dict[str, dict[str, Any]] = cast("dict[str, Any]", whole).get("$defs") or {}
            part = definitions.get(name, {}) | {key: found[key] for key in found if key != "$ref"}
        elif len(options) == 1:
            part = {**found, **options[0]}
            del part["anyOf"]
        else:
            return found
    return {}


def _field(name: str, part: Mapping[str, Any], *, required: bool) -> Field:
    given = part.get("default", "")
    kind = _KINDS.get(str(part.get("type")), "json")
    choices = _choices(part.get("enum"))
    kind = "choice" if choices else kind
    default = given if isinstance(given, str) and kind != "json" else msgspec.json.encode(given).decode()
    return Field(
        name=name,
        kind=kind,
        required=required and "default" not in part,
        text=str(part.get("description") or part.get("title") or ""),
        default="" if given in ("", None) else default,
        choices=choices,
    )


def _choices(given: Any) -> tuple[str, ...]:
    """Return the words that an argument is limited to; none if it may have other values."""
    try:
        return tuple(msgspec.convert(given or [], list[str]))
    except msgspec.ValidationError:
        return ()


def input_of(fields: tuple[Field, ...] | None, sent: Fields) -> bytes:
    """Return the input from a form, as JSON text. Raises: ProblemError, which names the field."""
    if fields is None:
        return (sent.text("input").strip() or "{}").encode()
    values = {
        each.name: _value(each, sent.text(each.input_name))
        for each in fields
        if each.kind == "flag"
        or sent.text(each.input_name).strip()
        or (each.required and each.kind == "text")
    }
    return msgspec.json.encode(values)


def value_of(fields: tuple[Field, ...] | None, sent: Fields) -> bytes:
    """Return the value from a form of `value_fields` as JSON text, made only of fields that a person filled in.

    Raises: ProblemError, which names the field; also if every field is empty.
    """
    if fields == ():
        return b"null"
    typed = {
        each.name: _value(each, sent.text(each.input_name))
        for each in fields or ()
        if sent.text(each.input_name).strip()
    }
    text = sent.text("value").strip().encode() if fields is None else msgspec.json.encode(typed)
    if not text or not (typed or fields is None):
        raise ProblemError("JOB_INVALID_INPUT", "say what the signal says: its value is empty")
    return msgspec.json.encode(typed[_WHOLE]) if _WHOLE in typed else text


def filled(fields: tuple[Field, ...] | None, text: str) -> tuple[Field, ...] | None:
    """Return the fields filled with an input; None (type JSON then) if they would not send back that very input.

    `text`: a JSON object.
    """
    given: Any = msgspec.json.decode(text)
    if fields is None or not isinstance(given, dict):
        return None
    values = cast("dict[str, Any]", given)
    found = tuple(
        msgspec.structs.replace(each, default=_typed(each, values[each.name]) if each.name in values else "")
        for each in fields
    )
    if not all(_fits(each) for each in found):
        return None
    sent = Fields({each.input_name: [each.default] for each in found})
    try:
        return found if msgspec.json.decode(input_of(found, sent)) == values else None
    except ProblemError:
        return None


def _fits(field: Field) -> bool:
    """Return whether a browser would send the field's default back unchanged."""
    if field.kind == "choice":
        return field.default in ("", *field.choices)
    return field.kind == "json" or not set(field.default) & set("\r\n")


def _typed(field: Field, value: Any) -> str:
    """Return a value as a person would type it."""
    is_text = isinstance(value, str) and field.kind != "json"
    return value if is_text else msgspec.json.encode(value).decode()


def _value(field: Field, text: str) -> Any:
    if field.kind == "flag":
        return text == "true"
    if field.kind in {"text", "choice"}:
        return text
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ProblemError("JOB_INVALID_INPUT", f"{field.name}: {text[:60]!r} is no JSON value") from error
    if field.kind != "json" and (isinstance(found, bool) or not isinstance(found, int | float)):
        raise ProblemError("JOB_INVALID_INPUT", f"{field.name} must be a number, got {text[:60]!r}")
    return found
