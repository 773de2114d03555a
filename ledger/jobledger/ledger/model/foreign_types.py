"""Types that inputs and results may have, though msgspec does not know them: paths, and pydantic models.

pydantic itself checks and writes a model. It is not imported here: code that has a model has imported it.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Any

import msgspec


def is_known(kind: object) -> bool:
    """Return whether values of a type that msgspec does not know can be written and read here."""
    return isinstance(kind, type) and issubclass(kind, (PurePath, *_models()))


def is_model(value: object) -> bool:
    """Return whether a value is a model of pydantic 2."""
    return isinstance(value, _models())


def _models() -> tuple[type[Any], ...]:
    base: type[Any] | None = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return () if base is None or not hasattr(base, "model_validate_json") else (base,)


def is_checked_dataclass(kind: object) -> bool:
    """Return whether a class is a dataclass of pydantic, whose checks msgspec would skip."""
    return hasattr(kind, "__dataclass_fields__") and hasattr(kind, "__pydantic_validator__")


def to_builtin(value: Any) -> Any:
    """Return a value of such a type as JSON values; called by msgspec.

    Raises: TypeError for any other type.
    """
    if isinstance(value, PurePath):
        return str(value)
    if is_model(value):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def from_builtin(kind: type[Any], value: Any) -> Any:
    """Make a value of such a type from JSON values; called by msgspec.

    Raises: TypeError, ValueError with what is wrong, without the value.
    """
    if kind is object:
        return value
    if issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise TypeError(f"Expected `str` for a `{kind.__name__}`, got `{type(value).__name__}`")
        return kind(value)
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise ValueError(_reasons(error)) from error


def schema_of(kind: type[Any], definitions: dict[str, Any]) -> Any:
    """Return the JSON Schema of values of such a type; True, which lets anything through, for any other.

    Schemas that a model refers to are added to `definitions`, which belong at the top of the whole schema.
    """
    if issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    if not issubclass(kind, _models()):
        return True
    found = kind.model_json_schema(ref_template=f"#/$defs/{kind.__name__}.{{model}}")
    parts = found.pop("$defs", {})
    definitions.update({f"{kind.__name__}.{name}": part for name, part in parts.items()})
    return found


def _reasons(error: Any) -> str:
    """Return what pydantic found wrong, on one line; its own text quotes the input."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in found
    )
