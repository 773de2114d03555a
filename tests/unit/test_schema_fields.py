"""Forms of tasks: the fields that a schema gives, and the input that a form says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jobledger.gateway.pages.page import Fields
from jobledger.gateway.pages.schema_fields import fields_of, input_of
from jobledger.gateway.problems import ProblemError

SCHEMA: dict[str, Any] = {
    "$ref": "#/$defs/Send",
    "$defs": {
        "Send": {
            "type": "object",
            "required": ["to", "cents", "kind"],
            "properties": {
                "to": {"type": "string"},
                "cents": {"type": "integer"},
                "share": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
                "urgent": {"type": "boolean", "default": True},
                "kind": {"$ref": "#/$defs/Kind"},
                "lines": {"type": "array", "items": {"type": "string"}, "default": []},
            },
        },
        "Kind": {"enum": ["mail", "sms"]},
    },
}


def _sent(**given: str) -> Fields:
    return Fields({f"arg.{name}": [value] for name, value in given.items()})


def test_each_argument_has_a_field_of_its_kind() -> None:
    found = fields_of(SCHEMA)
    assert found is not None
    assert [(each.name, each.kind, each.required, each.default) for each in found] == [
        ("to", "text", True, ""),
        ("cents", "whole", True, ""),
        ("share", "number", False, ""),
        ("urgent", "flag", False, "true"),
        ("kind", "choice", True, ""),
        ("lines", "json", False, "[]"),
    ]
    assert found[4].choices == ("mail", "sms")


@pytest.mark.parametrize("schema", [True, None, {}, {"$ref": "#/$defs/none"}, {"properties": []}])
def test_what_tells_no_argument_is_typed_as_json(schema: Any) -> None:
    assert fields_of(schema) is None
    assert input_of(None, Fields({"input": ['{"a": 1}']})) == b'{"a": 1}'
    assert input_of(None, Fields({})) == b"{}"


def test_a_schema_that_refers_to_itself_ends() -> None:
    around = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert fields_of(around) is None


def test_a_form_says_an_input() -> None:
    sent = _sent(to=" ann ", cents="7", share="", urgent="false", kind="sms", lines='["x"]')
    assert msgspec.json.decode(input_of(fields_of(SCHEMA), sent)) == {
        "to": " ann ",
        "cents": 7,
        "urgent": False,
        "kind": "sms",
        "lines": ["x"],
    }


@pytest.mark.parametrize(("name", "value"), [("cents", "seven"), ("cents", "true"), ("lines", "[")])
def test_what_is_no_value_is_told_with_its_field(name: str, value: str) -> None:
    with pytest.raises(ProblemError, match=name):
        input_of(fields_of(SCHEMA), _sent(**{name: value}))
