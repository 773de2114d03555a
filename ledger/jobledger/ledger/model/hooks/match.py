"""Rules of a route: the deliveries that they match, and the inputs that they make of these. Pure, and bounded.

A condition is JSON: `{"header": "X-GitHub-Event", "is": "push"}`, `{"at": "/total", "above": 100, "below": 500}`, or
`all`, `any` or `none` of several. A definition is checked when it is set; an unchecked condition matches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qs

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.hooks.pointers import DEPTH_MAX, NOTHING, check_pointer, value_at
from jobledger.ledger.model.json_text import check_text

#: Conditions of one rule, and values of one `in`: together they bound how long a match can take.
CONDITIONS_MAX: Final = 200
VALUES_MAX: Final = 200
PARAMETERS_MAX: Final = 100
_FORM: Final = "application/x-www-form-urlencoded"
_FORM_FIELDS_MAX: Final = 1_000
_JOINING: Final = ("all", "any", "none")
_SHOWN_MAX: Final = 80
#: Headers with secrets or signatures: no rule may ask for them, and none becomes part of an event.
SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization", "x-gitlab-token"})


class RuleInput(msgspec.Struct, frozen=True):
    """The parts of a delivery that rules can see."""

    headers: Mapping[str, str] = {}  #: headers by their names in lower case
    document: Any = None  #: the body as JSON; `NOTHING` if it is no JSON


def document_of(body: bytes, content_type: str = "") -> Any:
    """Return a body as rules see it: JSON as its value, a form as an object of texts, anything else as `NOTHING`.

    A form whose only field is `payload` is the JSON in that field, as several providers send it.
    """
    if content_type.partition(";")[0].strip().lower() != _FORM:
        return _json(body)
    try:
        form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX)
    except ValueError:
        return NOTHING
    fields = {name: values[0] if len(values) == 1 else values for name, values in form.items()}
    payload = fields.get("payload")
    if len(fields) == 1 and isinstance(payload, str):
        found = _json(payload.encode())
        return fields if found is NOTHING else found
    return fields


def _json(text: bytes) -> Any:
    try:
        check_text(b"[" + text + b"]", what="body")  # one level deeper: an input may hold all of it
        return msgspec.json.decode(text)
    except (InvalidInputError, msgspec.MsgspecError):
        return NOTHING


def check_condition(when: object, *, secret_headers: frozenset[str] = SECRET_HEADERS) -> None:
    """Refuse a value that is no condition, is nested too deep, or asks for a secret. `{}` always holds.

    Raises: InvalidInputError, naming the part.
    """
    if when == {}:
        return
    left = [CONDITIONS_MAX]
    _check(when, 1, left, secret_headers)


def _check(when: object, depth: int, left: list[int], secret_headers: frozenset[str]) -> None:
    left[0] -= 1
    if depth > DEPTH_MAX or left[0] < 0:
        raise InvalidInputError(
            f"a rule has at most {CONDITIONS_MAX} conditions, {DEPTH_MAX} within each other: write it in several rules"
        )
    if not isinstance(when, dict):
        raise InvalidInputError(f"a condition is a JSON object, got {_shown(when)}")
    condition = cast("dict[str, object]", when)
    subjects = [name for name in ("header", "at", *_JOINING) if name in condition]
    if len(subjects) != 1:
        raise InvalidInputError(
            f"a condition has one of header, at, all, any and none, got {_shown(condition)}"
        )
    (subject,) = subjects
    if subject in _JOINING:
        _check_joined(condition, subject, depth, left, secret_headers)
        return
    if subject == "at":
        check_pointer(condition["at"])
    else:
        _check_header(condition["header"], secret_headers)
    _check_tests(condition, subject)


def _check_joined(
    condition: dict[str, object], word: str, depth: int, left: list[int], secret_headers: frozenset[str]
) -> None:
    parts = condition[word]
    if len(condition) != 1 or not isinstance(parts, list) or not parts:
        raise InvalidInputError(f"{word} is a list of conditions, alone in its object: {_shown(condition)}")
    for part in cast("list[object]", parts):
        _check(part, depth + 1, left, secret_headers)


def _check_header(name: object, secret_headers: frozenset[str]) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > _SHOWN_MAX:
        raise InvalidInputError(f"header must be the name of a header, got {_shown(name)}")
    if name.lower() in secret_headers:
        raise InvalidInputError(f"the header {name} holds a secret: a rule cannot ask for it")


def _check_tests(condition: dict[str, object], subject: str) -> None:
    tests = {name: value for name, value in condition.items() if name != subject}
    known = _TESTS if subject == "at" else _HEADER_TESTS
    if not tests or not tests.keys() <= known.keys():
        raise InvalidInputError(
            f"a condition on {subject} has one or several of {', '.join(known)}, got {_shown(condition)}"
        )
    for name, value in tests.items():
        problem = _WRONG[name](value)
        if problem:
            raise InvalidInputError(f"{name} {problem}, got {_shown(value)}")
    if subject == "header" and not all(isinstance(each, str) for each in _texts(tests)):
        raise InvalidInputError(f"a header is text: compare it with text, got {_shown(condition)}")


def _texts(tests: Mapping[str, object]) -> Iterable[object]:
    yield from ([tests["is"]] if "is" in tests else [])
    yield from cast("list[object]", tests.get("in", []))


def holds(when: Mapping[str, Any], delivered: RuleInput, depth: int = 1) -> bool:
    """Return whether a condition holds for a delivery; `{}` always does."""
    if not when or depth > DEPTH_MAX:
        return not when
    if "all" in when:
        return all(holds(part, delivered, depth + 1) for part in when["all"])
    if "any" in when:
        return any(holds(part, delivered, depth + 1) for part in when["any"])
    if "none" in when:
        return not any(holds(part, delivered, depth + 1) for part in when["none"])
    if "header" in when:
        found: Any = delivered.headers.get(when["header"].lower(), NOTHING)
        return all(_HEADER_TESTS[name](found, wanted) for name, wanted in when.items() if name != "header")
    found = value_at(delivered.document, when["at"])
    return all(_TESTS[name](found, wanted) for name, wanted in when.items() if name != "at")


def _is(found: Any, wanted: Any) -> bool:
    """Compare plain values as JSON does: 1 equals 1.0, and no number equals `true`."""
    if not isinstance(found, str | int | float | None) or isinstance(found, bool) != isinstance(wanted, bool):
        return False
    return bool(found == wanted)


def _number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)


_Test = Callable[[Any, Any], bool]
_HEADER_TESTS: Final[Mapping[str, _Test]] = {
    "is": _is,
    "in": lambda found, wanted: any(_is(found, each) for each in wanted),
    "prefix": lambda found, wanted: isinstance(found, str) and found.startswith(wanted),
    "exists": lambda found, wanted: (found is not NOTHING) == wanted,
}
_TESTS: Final[Mapping[str, _Test]] = {
    **_HEADER_TESTS,
    "above": lambda found, wanted: _number(found) and found > wanted,
    "below": lambda found, wanted: _number(found) and found < wanted,
}


def _plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


_WRONG: Final[Mapping[str, Callable[[Any], str]]] = {
    "is": lambda value: "" if _plain(value) else "must be a text, a number, true, false or null",
    "in": lambda value: (
        ""
        if isinstance(value, list) and 0 < len(value) <= VALUES_MAX and all(map(_plain, value))  # pyright: ignore[reportUnknownArgumentType]
        else f"must be a list of 1 to {VALUES_MAX} plain values"
    ),
    "prefix": lambda value: "" if isinstance(value, str) and value else "must be a text",
    "exists": lambda value: "" if isinstance(value, bool) else "must be true or false",
    "above": lambda value: "" if _number(value) else "must be a number",
    "below": lambda value: "" if _number(value) else "must be a number",
}


def check_input(wanted: object, *, secret_headers: frozenset[str] = SECRET_HEADERS) -> None:
    """Refuse a value that is no recipe of an input.

    A recipe is an object that has for each parameter a pointer (a text that begins with `/`), a constant, or one of
    `{"at": pointer}`, `{"header": name}` and `{"value": any JSON}`. The parameter `*` stands for all members of the
    object at its pointer. The pointer `/` is the whole body, wherever it stands.

    Raises: InvalidInputError, naming the parameter.
    """
    if not isinstance(wanted, dict):
        raise InvalidInputError(f"input is a JSON object, got {_shown(wanted)}")
    recipe = cast("dict[str, object]", wanted)
    if len(recipe) > PARAMETERS_MAX:
        raise InvalidInputError(f"input has {len(recipe)} parameters: give at most {PARAMETERS_MAX}")
    for name, source in recipe.items():
        try:
            if name == "*":
                _check_object(source)
            check_source(source, secret_headers)
        except InvalidInputError as error:
            raise InvalidInputError(f"input, parameter {ascii(name)[:_SHOWN_MAX]}: {error}") from None


def _check_object(source: object) -> None:
    if not isinstance(source, str) or not source.startswith("/"):
        raise InvalidInputError('give the pointer to an object; "/" hands over the whole body')


def check_source(source: object, secret_headers: frozenset[str] = SECRET_HEADERS) -> None:
    """Refuse an invalid source of a value: see `check_input`. Raises: InvalidInputError."""
    if isinstance(source, str) and source.startswith("/"):
        check_pointer(source)
    elif isinstance(source, dict):
        words = cast("dict[str, object]", source)
        if len(words) != 1 or not words.keys() <= {"at", "header", "value"}:
            raise InvalidInputError(f"give one of at, header and value, got {_shown(words)}")
        if "at" in words:
            check_pointer(words["at"])
        if "header" in words:
            _check_header(words["header"], secret_headers)


def build_input(recipe: Mapping[str, Any], delivered: RuleInput) -> dict[str, Any]:
    """Return the input that a recipe makes of a delivery. A parameter whose place the delivery lacks is left out."""
    built: dict[str, Any] = {}
    everything = recipe.get("*")
    if everything is not None:
        found = value_at(delivered.document, everything)
        built.update(cast("dict[str, Any]", found) if isinstance(found, dict) else {})
    for name, source in recipe.items():
        if name != "*":
            value = source_value(source, delivered)
            built.pop(name, None)
            if value is not NOTHING:
                built[name] = value
    return built


def is_constant(source: Any) -> bool:
    """Return whether a source gives the same value for every delivery."""
    if isinstance(source, dict):
        return "value" in source
    return not (isinstance(source, str) and source.startswith("/"))


def source_value(source: Any, delivered: RuleInput) -> Any:
    """Return what a source gives for a delivery; `NOTHING` where that lacks it."""
    if isinstance(source, str) and source.startswith("/"):
        return value_at(delivered.document, source)
    if not isinstance(source, dict):
        return source
    words = cast("dict[str, Any]", source)
    if "value" in words:
        return words["value"]
    if "at" in words:
        return value_at(delivered.document, words["at"])
    return delivered.headers.get(words["header"].lower(), NOTHING)


def headers_named(when: Mapping[str, Any], among: Iterable[Any]) -> set[str]:
    """Return the names, in lower case, of the headers that a rule looks at in its condition and its sources."""
    found: set[str] = set()
    _collect(when, found, 1)
    sources = [cast("dict[str, Any]", each) for each in among if isinstance(each, dict)]
    return found | {each["header"].lower() for each in sources if "header" in each}


def _collect(when: Mapping[str, Any], found: set[str], depth: int) -> None:
    if "header" in when:
        found.add(when["header"].lower())
    for word in _JOINING:
        for part in when.get(word, ()) if depth <= DEPTH_MAX else ():
            _collect(part, found, depth + 1)


def _shown(value: object) -> str:
    return ascii(value)[:_SHOWN_MAX]
