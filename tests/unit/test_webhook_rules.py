"""Rules of routes: which deliveries a condition is for, which input a recipe makes, and that both have bounds."""

from __future__ import annotations

import json
from typing import Any, cast
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import each_row

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.hooks.match import (
    CONDITIONS_MAX,
    RuleInput,
    build_input,
    check_condition,
    check_input,
    document_of,
    headers_named,
    holds,
)
from jobledger.ledger.model.hooks.pointers import DEPTH_MAX, NOTHING, check_pointer, value_at

#: The document and the places of RFC 6901, section 5.
RFC = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}
PUSH = {
    "ref": "refs/heads/main",
    "repository": {"name": "shop", "private": False, "stars": 1},
    "commits": [{"id": "c1"}, {"id": "c2"}],
    "total": 250,
    "nothing": None,
}
Conditions = st.SearchStrategy[dict[str, Any]]
DELIVERED = RuleInput({"x-github-event": "push", "user-agent": "GitHub-Hookshot/1"}, PUSH)

plain = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5)
documents = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/", max_size=3), inner, max_size=3)
    ),
    max_leaves=15,
)
names = st.sampled_from(["X-A", "x-b"])
pointers = st.sampled_from(["", "/", "/a", "/b", "/a/b", "/0", "/a/0", "/~0", "/~1"])
tests_at = st.fixed_dictionaries(
    {},
    optional={
        "is": plain,
        "in": st.lists(plain, min_size=1, max_size=3),
        "prefix": st.text(min_size=1, max_size=2),
        "exists": st.booleans(),
        "above": st.integers(-5, 5),
        "below": st.integers(-5, 5),
    },
).filter(bool)
tests_header = st.fixed_dictionaries(
    {},
    optional={"is": st.text(max_size=3), "prefix": st.text(min_size=1, max_size=2), "exists": st.booleans()},
).filter(bool)


def on(subject: str, name: str, tests: dict[str, Any]) -> dict[str, Any]:
    return {subject: name, **tests}


def joined(word: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {word: parts}


def several(inner: Conditions) -> Conditions:
    return st.builds(joined, st.sampled_from(["all", "any", "none"]), st.lists(inner, min_size=1, max_size=3))


conditions = st.recursive(
    st.builds(on, st.just("at"), pointers, tests_at) | st.builds(on, st.just("header"), names, tests_header),
    several,
    max_leaves=10,
)
deliveries = st.builds(
    RuleInput,
    st.dictionaries(st.sampled_from(["x-a", "x-b"]), st.text(max_size=3)),
    documents | st.just(NOTHING),
)


@each_row(
    "pointer, expected",
    [
        ("", RFC),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", RFC),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
        ("/foo/2", NOTHING),
        ("/foo/-", NOTHING),
        ("/foo/00", NOTHING),
        ("/foo/0/x", NOTHING),
        ("/bar", NOTHING),
    ],
)
def test_a_pointer_leads_where_its_rfc_says_but_for_the_whole_document(
    pointer: str, expected: object
) -> None:
    assert check_pointer(pointer) == pointer
    assert value_at(RFC, pointer) == expected


@each_row("pointer", ["foo", "/a~2", "/a~", 7, None, "/" * (DEPTH_MAX + 1), "/" + "x" * 1_000])
def test_what_is_no_pointer_is_refused(pointer: object) -> None:
    with pytest.raises(InvalidInputError, match="JSON pointer"):
        check_pointer(pointer)


def members(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).items())
    items: list[Any] = value
    return list(enumerate(items)) if isinstance(value, list) else []


@given(documents)
def test_every_place_of_a_document_can_be_pointed_at(document: Any) -> None:
    def visit(value: Any, pointer: str) -> None:
        assert value_at(document, pointer) == value
        for name, member in members(value):
            if pointer or name != "":  # `/` is the whole document
                visit(member, f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}")

    visit(document, "")


@each_row(
    "when, expected",
    [
        ({}, True),
        ({"header": "X-GitHub-Event", "is": "push"}, True),
        ({"header": "x-github-event", "is": "Push"}, False),
        ({"header": "X-GitHub-Event", "in": ["ping", "push"]}, True),
        ({"header": "User-Agent", "prefix": "GitHub-"}, True),
        ({"header": "X-Missing", "exists": False}, True),
        ({"header": "X-Missing", "exists": True}, False),
        ({"header": "X-Missing", "is": ""}, False),
        ({"at": "/repository/name", "is": "shop"}, True),
        ({"at": "/repository/name", "in": ["a", "b"]}, False),
        ({"at": "/ref", "prefix": "refs/heads/"}, True),
        ({"at": "/total", "above": 100, "below": 500}, True),
        ({"at": "/total", "above": 250}, False),
        ({"at": "/total", "is": 250.0}, True),
        ({"at": "/total", "prefix": "2"}, False),
        ({"at": "/ref", "above": 1}, False),
        ({"at": "/repository/private", "is": False}, True),
        ({"at": "/repository/private", "is": 0}, False),
        ({"at": "/repository/stars", "is": True}, False),
        ({"at": "/repository/private", "above": -1}, False),
        ({"at": "/nothing", "is": None}, True),
        ({"at": "/nothing", "exists": True}, True),
        ({"at": "/nowhere", "is": None}, False),
        ({"at": "/nowhere", "exists": False}, True),
        ({"at": "/commits/1/id", "is": "c2"}, True),
        ({"at": "/commits", "is": "c2"}, False),
        ({"all": [{"at": "/total", "above": 1}, {"at": "/total", "below": 2}]}, False),
        ({"any": [{"at": "/total", "above": 1}, {"at": "/total", "below": 2}]}, True),
        ({"none": [{"at": "/total", "above": 1}, {"at": "/total", "below": 2}]}, False),
        ({"none": [{"at": "/total", "below": 2}]}, True),
    ],
)
def test_a_condition_holds_as_it_reads(when: dict[str, Any], expected: bool) -> None:
    check_condition(when)
    assert holds(when, DELIVERED) is expected


@given(conditions, deliveries)
def test_what_is_a_condition_always_has_an_answer_and_its_opposite(
    when: dict[str, Any], given_: RuleInput
) -> None:
    check_condition(when)
    found = holds(when, given_)
    assert holds({"none": [when]}, given_) is not found
    assert holds({"all": [when]}, given_) is holds({"any": [when]}, given_) is found
    assert holds(msgspec.json.decode(msgspec.json.encode(when)), given_) is found


@given(conditions, conditions, deliveries)
def test_conditions_join_as_in_logic(one: dict[str, Any], other: dict[str, Any], given_: RuleInput) -> None:
    first, second = holds(one, given_), holds(other, given_)
    assert holds({"all": [one, other]}, given_) is (first and second)
    assert holds({"any": [one, other]}, given_) is (first or second)
    assert holds({"none": [one, other]}, given_) is not (first or second)


def nested(depth: int) -> dict[str, Any]:
    when: dict[str, Any] = {"at": "/total", "exists": True}
    for _ in range(depth - 1):
        when = {"all": [when]}
    return when


def test_conditions_have_a_depth_and_a_number() -> None:
    check_condition(nested(DEPTH_MAX))
    assert holds(nested(DEPTH_MAX), DELIVERED)
    assert not holds(nested(DEPTH_MAX + 1), DELIVERED)  # as nobody could set it
    wide = {"any": [{"at": "", "exists": True}] * (CONDITIONS_MAX - 1)}
    check_condition(wide)
    for when in (nested(DEPTH_MAX + 1), nested(10_000), {"all": [wide, wide]}):
        with pytest.raises(
            InvalidInputError, match="a rule has at most 200 conditions, 64 within each other"
        ):
            check_condition(when)


@each_row(
    "when, sentence",
    [
        ([], "a condition is a JSON object"),
        ("push", "a condition is a JSON object"),
        ({"is": 1}, "one of header, at, all, any and none"),
        ({"at": "/a", "header": "b", "is": 1}, "one of header, at, all, any and none"),
        ({"all": []}, "all is a list of conditions"),
        ({"all": {}}, "all is a list of conditions"),
        ({"any": [{"at": "/a", "is": 1}], "is": 1}, "any is a list of conditions"),
        ({"none": [7]}, "a condition is a JSON object"),
        ({"at": "a", "is": 1}, "no JSON pointer"),
        ({"at": "/a"}, "one or several of is, in, prefix, exists, above, below"),
        ({"at": "/a", "like": "x"}, "one or several of"),
        ({"at": "/a", "is": {}}, "is must be a text, a number"),
        ({"at": "/a", "in": []}, "in must be a list of 1 to 200"),
        ({"at": "/a", "in": "abc"}, "in must be a list of 1 to 200"),
        ({"at": "/a", "in": [[]]}, "in must be a list of 1 to 200"),
        ({"at": "/a", "in": [1] * 201}, "in must be a list of 1 to 200"),
        ({"at": "/a", "prefix": 1}, "prefix must be a text"),
        ({"at": "/a", "exists": 1}, "exists must be true or false"),
        ({"at": "/a", "above": "1"}, "above must be a number"),
        ({"at": "/a", "below": True}, "below must be a number"),
        ({"header": "", "is": "x"}, "the name of a header"),
        ({"header": 7, "is": "x"}, "the name of a header"),
        ({"header": "X-A", "above": 1}, "one or several of is, in, prefix, exists"),
        ({"header": "X-A", "is": 1}, "a header is text"),
        ({"header": "X-A", "in": ["a", None]}, "a header is text"),
        ({"header": "Authorization", "exists": True}, "holds a secret"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_is_wrong(when: object, sentence: str) -> None:
    for whole in (when, {"all": [when]}):
        with pytest.raises(InvalidInputError) as refused:
            check_condition(whole)
        assert sentence in str(refused.value)


@each_row(
    "recipe, expected",
    [
        ({}, {}),
        ({"*": "/"}, PUSH),
        ({"*": "/repository"}, PUSH["repository"]),
        ({"payload": "/", "again": {"at": "/"}}, {"payload": PUSH, "again": PUSH}),
        ({"*": "/", "total": 7, "ref": "/nowhere"}, {**{k: v for k, v in PUSH.items() if k != "ref"}, "total": 7}),
        ({"*": "/commits"}, {}),
        ({"*": "/nowhere", "a": 1}, {"a": 1}),
        ({"repo": "/repository/name", "first": "/commits/0"}, {"repo": "shop", "first": {"id": "c1"}}),
        ({"kind": "push", "n": 3, "none": None, "flag": True, "list": ["/ref"]},
         {"kind": "push", "n": 3, "none": None, "flag": True, "list": ["/ref"]}),
        ({"path": {"value": "/ref"}, "all": {"at": ""}, "empty": ""}, {"path": "/ref", "all": PUSH, "empty": ""}),
        ({"event": {"header": "X-GitHub-Event"}, "gone": {"header": "X-Gone"}}, {"event": "push"}),
    ],
)  # fmt: skip
def test_a_recipe_makes_the_input_that_it_says(recipe: dict[str, Any], expected: object) -> None:
    check_input(recipe)
    assert build_input(recipe, DELIVERED) == expected


@each_row(
    "recipe, sentence",
    [
        ([], "input is a JSON object"),
        ({"a": "/~"}, "parameter 'a': '/~' is no JSON pointer"),
        ({"*": 7}, "parameter '*': give the pointer to an object"),
        ({"a": {}}, "give one of at, header and value"),
        ({"a": {"at": "/x", "value": 1}}, "give one of at, header and value"),
        ({"a": {"b": 1}}, "give one of at, header and value"),
        ({"a": {"at": "x"}}, "is no JSON pointer"),
        ({"a": {"header": "Cookie"}}, "holds a secret"),
        ({str(number): 1 for number in range(101)}, "input has 101 parameters"),
    ],
)
def test_what_is_no_recipe_is_refused_with_the_parameter(recipe: object, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_input(recipe)
    assert sentence in str(refused.value)


@given(st.dictionaries(st.sampled_from("*ab"), pointers.filter(bool), max_size=3), deliveries)
def test_whatever_comes_an_input_is_an_object_that_can_be_written(
    recipe: dict[str, Any], given_: RuleInput
) -> None:
    check_input(recipe)
    built = build_input(recipe, given_)
    assert msgspec.json.decode(msgspec.json.encode(built)) == built


def test_the_headers_that_a_rule_looks_at_are_known() -> None:
    when = {"all": [{"header": "X-A", "is": "1"}, {"none": [{"header": "X-B", "exists": True}]}]}
    assert headers_named(when, [{"header": "X-C"}, "/x"]) == {"x-a", "x-b", "x-c"}
    assert headers_named({}, []) == set()


@each_row(
    "body, content_type, expected",
    [
        (b'{"a": 1}', "application/json", {"a": 1}),
        (b'{"a": 1}', "", {"a": 1}),
        (b"[" * 10_000, "application/json", NOTHING),
        (b"[" * 10_000 + b"]" * 10_000, "application/json", NOTHING),
        (b"[" * 99 + b"]" * 99, "application/json", msgspec.json.decode(b"[" * 99 + b"]" * 99)),
        (b"[" * 100 + b"]" * 100, "application/json", NOTHING),
        (b"1,2", "application/json", NOTHING),
        (b"1],[2", "application/json", NOTHING),
        (b"\xff", "application/json", NOTHING),
        (b"", "application/json", NOTHING),
        (b"<a/>", "text/xml", NOTHING),
        (b"command=%2Fdeploy&text=&x=1&x=2", "application/x-www-form-urlencoded; charset=utf-8",
         {"command": "/deploy", "text": "", "x": ["1", "2"]}),
        (urlencode({"payload": json.dumps(PUSH)}).encode(), "application/x-www-form-urlencoded", PUSH),
        (b"payload=x", "application/x-www-form-urlencoded", {"payload": "x"}),
        (b"a=%ff\xff", "application/x-www-form-urlencoded", NOTHING),
        (b"&".join([b"a=1"] * 1_001), "application/x-www-form-urlencoded", NOTHING),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_a_body_is_read_as_json_or_as_a_form(body: bytes, content_type: str, expected: object) -> None:
    assert document_of(body, content_type) == expected


@given(st.binary(max_size=50), st.sampled_from(["", "application/x-www-form-urlencoded"]))
def test_no_body_breaks_the_reader(body: bytes, content_type: str) -> None:
    document_of(body, content_type)
