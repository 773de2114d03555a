"""The part of JSON Schema that the events' schemas use, checked by the book; an unknown keyword is an error.

Small on purpose, so that the tests need no further dependency.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, cast

Schema = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip
_SAID = {"title", "description", "default", "$schema", "$id", "$defs"}  # restrict nothing
_KNOWN = _SAID | {
    "type", "const", "enum", "pattern", "format", "properties", "required", "items", "additionalProperties", "anyOf",
    "oneOf", "$ref", "minimum", "maximum", "minItems", "maxItems",
}  # fmt: skip


def violations(value: Any, schema: Schema, root: Schema | None = None, at: str = "") -> Iterator[str]:
    """Yield a sentence for each place at which a value does not fit."""
    root = schema if root is None else root
    unknown = set(schema) - _KNOWN
    assert not unknown, f"this check does not know {unknown}"
    if "$ref" in schema:
        yield from violations(value, resolved(root, schema["$ref"]), root, at)
    if "type" in schema and not _is(value, schema["type"]):
        yield f"{at or 'it'} is not of type {schema['type']}: {value!r:.60}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{at} is {value!r:.60}, not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is {value!r:.60}, which is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{at} is {value!r:.60}, which does not match {schema['pattern']}"
    for keyword, is_apart in (("minimum", operator.lt), ("maximum", operator.gt)):
        if keyword in schema and is_apart(value, schema[keyword]):
            yield f"{at} is {value!r:.60}, {keyword} {schema[keyword]}"
    if schema.get("format") == "date-time" and datetime.fromisoformat(value).tzinfo is None:
        yield f"{at} is a time without a zone"
    for keyword, wanted in (("anyOf", None), ("oneOf", 1)):
        if keyword in schema:
            fitting = sum(not any(violations(value, each, root, at)) for each in schema[keyword])
            if not fitting or (wanted is not None and fitting != wanted):
                yield f"{at or 'it'} fits {fitting} of {keyword}"
    yield from _members(value, schema, root, at)


def _members(value: Any, schema: Schema, root: Schema, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{at}.{name} is missing"
        for name, member in cast("Schema", value).items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inner is not None:
                yield from violations(member, inner, root, f"{at}.{name}")
    if isinstance(value, list) and "items" in schema:
        members = cast("Sequence[Any]", value)
        if not schema.get("minItems", 0) <= len(members) <= schema.get("maxItems", len(members)):
            yield f"{at} has {len(members)} items"
        for number, member in enumerate(members):
            yield from violations(member, schema["items"], root, f"{at}[{number}]")


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def resolved(root: Schema, reference: str) -> Any:
    """Return what a reference within the document leads to."""
    assert reference.startswith("#/"), reference
    found: Any = root
    for part in reference[2:].split("/"):
        found = found[part]
    return found
