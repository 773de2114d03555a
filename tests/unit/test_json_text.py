"""What may become an input or a result, and what is refused because a reader could not have it back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import each_row

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.json_text import DEPTH_MAX, check_text, encode_value

WHAT = "result of task t"


class Struct(msgspec.Struct):
    value: Any = None


@dataclasses.dataclass
class Data:
    value: Any


@dataclasses.dataclass(slots=True)
class Slots:
    value: Any


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_values_come_back_as_they_were(value: Any) -> None:
    text = encode_value(value, what=WHAT)
    assert msgspec.json.decode(text) == value
    assert check_text(text, what=WHAT) == text


_WRAPS: list[Callable[[Any], Any]] = [
    lambda bad: bad,
    lambda bad: [1, bad],
    lambda bad: (bad,),
    lambda bad: {"a": {"b": [None, bad]}},
    lambda bad: {bad},
    lambda bad: frozenset([bad]),
    Struct,
    lambda bad: Data([bad]),
    lambda bad: Slots({"a": bad}),
    lambda bad: [Struct(Data(bad))],
]


@each_row("bad", [math.nan, math.inf, -math.inf], ids=str)
@each_row("wrap", _WRAPS)
def test_numbers_that_json_cannot_say_are_refused_wherever_they_are(bad: float, wrap: Any) -> None:
    with pytest.raises(InvalidInputError, match="JSON cannot say"):
        encode_value(wrap(bad), what=WHAT)


@each_row("value", [None, {"a": None}, "null", [Data(None), Struct()], {"null": 1.5}])
def test_a_null_that_is_meant_is_no_number(value: Any) -> None:
    assert b"null" in encode_value(value, what=WHAT)


@pytest.mark.parametrize("depth", [1, DEPTH_MAX - 1, DEPTH_MAX])
def test_nesting_up_to_the_limit_is_allowed(depth: int) -> None:
    text = encode_value(nested(depth), what=WHAT)
    assert check_text(text, what=WHAT) == text


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 5_000])
def test_nesting_beyond_the_limit_is_refused(depth: int) -> None:
    with pytest.raises(InvalidInputError, match="deeper than 100"):
        encode_value(nested(depth), what=WHAT)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000]
)
def test_a_text_nested_beyond_the_limit_is_refused_without_harm(text: bytes) -> None:
    with pytest.raises(InvalidInputError, match="deeper than 100"):
        check_text(text, what=WHAT)


@pytest.mark.parametrize(
    "value", ["[" * 200, '"' * 50 + "{" * 200, "\\" * 51 + "[" * 200, ["[" * 90, '\\"' + "{" * 90]]
)
def test_brackets_within_strings_do_not_count(value: Any) -> None:
    text = encode_value(value, what=WHAT)
    assert check_text(text, what=WHAT) == text


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert msgspec.json.decode(encode_value([[]] * 10_000, what=WHAT)) == [[]] * 10_000


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["a", "\udc80b"]])
def test_half_surrogate_pairs_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="Unicode"):
        encode_value(value, what=WHAT)


@each_row("value", [object(), 1j, {(1, 2): 3}, lambda: 1, iter([])])
def test_what_is_no_json_is_refused_with_a_sentence(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="result of task t cannot be written as JSON"):
        encode_value(value, what=WHAT)


@each_row(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b"nul",
        b"NaN",
        b"1 2",
        b"'a'",
        b'{"a":1,}',
        b'"\xff"',
        b"01",
        b'"\x01"',
        b"\xef\xbb\xbf1",
    ],
)
def test_a_text_that_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInputError, match="not valid JSON"):
        check_text(text, what=WHAT)


def test_a_raw_value_is_checked_as_text() -> None:
    with pytest.raises(InvalidInputError):
        check_text(encode_value(msgspec.Raw(b'{"never": '), what=WHAT), what=WHAT)
